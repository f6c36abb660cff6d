"""The parts of a block, each with llama.cpp's conventions for `qwen35moe`.

Activations are (B, T, n_embd); matrices are kept (out, in), which is also their order in GGUF.
Weights are f32; `project` computes in the dtype of its input.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig
from .delta import gated_delta_rule


def matrix(*shape: int, std: float = 0.02) -> nn.Parameter:
    """A normal matrix; std 0 for projections into the residual stream, which start silent."""
    return nn.Parameter(torch.randn(*shape) * std)


def project(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalised in f32, returned in x's dtype; the weight is used as it is (no 1 + w)."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


def l2_norm(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


class Rope(nn.Module):
    """NeoX rotation of the first n_rot dimensions: pair (i, i + n_rot / 2)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, n_positions: int = 4096) -> None:
        super().__init__()
        half = config.n_rot // 2
        frequency = config.rope_base ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(n_positions, dtype=torch.float32)[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.n_pairs = half

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, T, head_dim), positions 0 to T - 1."""
        n_tokens, half = x.shape[2], self.n_pairs
        cos, sin = self.cos[:n_tokens].to(x.dtype), self.sin[:n_tokens].to(x.dtype)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class Attention(nn.Module):
    """Grouped-query attention; q and k are normalised per head, the output has a sigmoid gate."""

    def __init__(self, config: ModelConfig, rope: Rope) -> None:
        super().__init__()
        self.config, self.rope = config, rope
        width, d = config.n_head * config.head_dim, config.n_embd
        self.attn_q = matrix(2 * width, d)
        self.attn_k = matrix(config.n_head_kv * config.head_dim, d)
        self.attn_v = matrix(config.n_head_kv * config.head_dim, d)
        self.attn_output = matrix(d, width, std=0.0)
        self.attn_q_norm = nn.Parameter(torch.ones(config.head_dim))
        self.attn_k_norm = nn.Parameter(torch.ones(config.head_dim))

    def qkvg(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v as (B, H, T, head_dim), kv heads repeated; gate as (B, T, H * head_dim)."""
        c = self.config
        n_batch, n_tokens, _ = x.shape
        # attn_q is interleaved per head: [query | gate].
        q, gate = project(x, self.attn_q).view(n_batch, n_tokens, c.n_head, -1).chunk(2, -1)
        k = project(x, self.attn_k).view(n_batch, n_tokens, c.n_head_kv, c.head_dim)
        v = project(x, self.attn_v).view(n_batch, n_tokens, c.n_head_kv, c.head_dim)
        q = self.rope(rms_norm(q, self.attn_q_norm, c.norm_eps).transpose(1, 2))
        k = self.rope(rms_norm(k, self.attn_k_norm, c.norm_eps).transpose(1, 2))
        groups = c.n_head // c.n_head_kv
        k = k.repeat_interleave(groups, 1)
        v = v.transpose(1, 2).repeat_interleave(groups, 1)
        return q, k, v, gate.reshape(n_batch, n_tokens, -1)

    def finish(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """mixed (B, H, T, head_dim) -> (B, T, n_embd)."""
        return project(mixed.transpose(1, 2).flatten(2) * gate.sigmoid(), self.attn_output)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, gate = self.qkvg(x)
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True), gate)


class DeltaNet(nn.Module):
    """Gated delta net behind a causal depthwise convolution; value head i reads key head i % n."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d, heads = config.n_embd, config.n_v_heads
        self.attn_qkv = matrix(config.conv_dim, d)
        self.attn_gate = matrix(config.value_dim, d)
        self.ssm_conv1d = matrix(config.conv_dim, config.conv_kernel, std=0.3)
        self.ssm_beta = matrix(heads, d)
        self.ssm_alpha = matrix(heads, d)
        # Decay rates spread over heads; steps between 0.001 and 0.1, through softplus.
        self.ssm_a_log = nn.Parameter(torch.linspace(1, 16, heads).log())
        step = torch.logspace(-3, -1, heads)
        self.ssm_dt = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.ssm_norm = nn.Parameter(torch.ones(config.state_size))
        self.ssm_out = matrix(d, config.value_dim, std=0.0)

    def convolve(self, x: Tensor) -> Tensor:
        """Causal, per channel, no bias; the last tap is the current token."""
        taps, n_tokens = self.config.conv_kernel, x.shape[1]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        weight = self.ssm_conv1d.to(x.dtype)
        mixed = padded[:, :n_tokens] * weight[:, 0]
        for i in range(1, taps):
            mixed = mixed + padded[:, i : i + n_tokens] * weight[:, i]
        return F.silu(mixed)

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v (B, H, T, state) and log_decay, beta (B, H, T) for the recurrence, in f32."""
        c = self.config
        n_batch, n_tokens, _ = x.shape
        qkv = self.convolve(project(x, self.attn_qkv)).float()
        q, k, v = qkv.split((c.key_dim, c.key_dim, c.value_dim), -1)
        q = l2_norm(q.view(n_batch, n_tokens, -1, c.state_size), c.norm_eps)
        k = l2_norm(k.view(n_batch, n_tokens, -1, c.state_size), c.norm_eps)
        q = q * (1 / math.sqrt(c.state_size))
        tiles = c.n_v_heads // c.n_k_heads
        q, k = (y.transpose(1, 2).repeat(1, tiles, 1, 1) for y in (q, k))
        v = v.view(n_batch, n_tokens, -1, c.state_size).transpose(1, 2)
        # alpha and beta stay f32 in the file, so they are computed in f32 here too.
        wide = x.float()
        alpha = F.softplus(F.linear(wide, self.ssm_alpha) + self.ssm_dt)
        log_decay = -self.ssm_a_log.exp() * alpha
        beta = F.linear(wide, self.ssm_beta).sigmoid()
        return q, k, v.contiguous(), log_decay.transpose(1, 2), beta.transpose(1, 2)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """mixed (B, H, T, state), gated by a projection of x -> (B, T, n_embd)."""
        c = self.config
        gate = project(x, self.attn_gate).view(*x.shape[:2], -1, c.state_size)
        mixed = rms_norm(mixed.transpose(1, 2), self.ssm_norm, c.norm_eps).to(x.dtype)
        return project((mixed * F.silu(gate)).flatten(2), self.ssm_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(x, gated_delta_rule(*self.inputs(x)))


class Experts(nn.Module):
    """Routed experts and one shared expert, as ONE dense product with zero weights.

    Computing every expert costs four times the products and none of the gathering; on a CPU with
    matrix units that is the faster way for experts this small.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        e, ff, d, shared = config.n_expert, config.n_ff, config.n_embd, config.n_ff_shared
        self.ffn_gate_inp = matrix(e, d)
        self.ffn_gate_exps = matrix(e, ff, d)
        self.ffn_up_exps = matrix(e, ff, d)
        self.ffn_down_exps = matrix(e, d, ff, std=0.0)
        self.ffn_gate_inp_shexp = matrix(1, d)
        self.ffn_gate_shexp = matrix(shared, d)
        self.ffn_up_shexp = matrix(shared, d)
        self.ffn_down_shexp = matrix(d, shared, std=0.0)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (B, T, E), zero off the top k and summing to 1 on it; and the balance loss."""
        c = self.config
        chance = F.linear(x.float(), self.ffn_gate_inp).softmax(-1)
        top, index = chance.topk(c.n_expert_used, -1)
        top = top / top.sum(-1, keepdim=True)
        weights = torch.zeros_like(chance).scatter(-1, index, top)
        share = (weights > 0).float().mean((0, 1)) / c.n_expert_used
        return weights, c.n_expert * (share.detach() * chance.mean((0, 1))).sum()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, balance = self.route(x)
        shared = F.linear(x.float(), self.ffn_gate_inp_shexp).sigmoid()
        up = torch.cat((self.ffn_up_exps.flatten(0, 1), self.ffn_up_shexp))
        gate = torch.cat((self.ffn_gate_exps.flatten(0, 1), self.ffn_gate_shexp))
        down = torch.cat((self.ffn_down_exps.transpose(0, 1).flatten(1), self.ffn_down_shexp), 1)
        scale = torch.cat(
            (
                weights.repeat_interleave(self.config.n_ff, -1),
                shared.expand(*shared.shape[:-1], self.config.n_ff_shared),
            ),
            -1,
        )
        hidden = F.silu(project(x, gate)) * project(x, up) * scale.to(x.dtype)
        return project(hidden, down), balance
