"""Trunk, language-model head and MTP block of the demo model, as llama.cpp runs them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .layers import Attention, DeltaNet, Experts, Rope, matrix, project, rms_norm


class Block(nn.Module):
    """Mixer and experts, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, rope: Rope, recurrent: bool) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.attn_norm = nn.Parameter(torch.ones(config.n_embd))
        self.post_attention_norm = nn.Parameter(torch.ones(config.n_embd))
        self.mixer = DeltaNet(config) if recurrent else Attention(config, rope)
        self.experts = Experts(config)

    def feed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The second half of the block: experts on the normed stream, and their balance loss."""
        out, balance = self.experts(rms_norm(x, self.post_attention_norm, self.eps))
        return x + out, balance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.feed(x + self.mixer(rms_norm(x, self.attn_norm, self.eps)))


class MtpBlock(nn.Module):
    """The nextn block: position p sees token p and the hidden row of p - 1, predicts p + 1."""

    def __init__(self, config: ModelConfig, rope: Rope) -> None:
        super().__init__()
        self.config = config
        self.block = Block(config, rope, recurrent=False)
        self.enorm = nn.Parameter(torch.ones(config.n_embd))
        self.hnorm = nn.Parameter(torch.ones(config.n_embd))
        self.shared_head_norm = nn.Parameter(torch.ones(config.n_embd))
        self.eh_proj = matrix(config.n_embd, 2 * config.n_embd)

    def enter(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """embedded (B, T, d) of token p, hidden (B, T, d) of p; shifted here to p - 1."""
        shifted = torch.cat((torch.zeros_like(hidden[:, :1]), hidden[:, :-1]), 1)
        eps = self.config.norm_eps
        pair = (rms_norm(embedded, self.enorm, eps), rms_norm(shifted, self.hnorm, eps))
        return project(torch.cat(pair, -1), self.eh_proj)

    def leave(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.block.feed(x)
        return rms_norm(x, self.shared_head_norm, self.config.norm_eps), balance

    def forward(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Depth 1. Returns the rows (B, T, d) that feed the output matrix, and the balance."""
        x = self.enter(embedded, hidden)
        x = x + self.block.mixer(rms_norm(x, self.block.attn_norm, self.config.norm_eps))
        return self.leave(x)

    def chain(self, embedded: Tensor, hidden: Tensor, first: Tensor) -> Tensor:
        """Depth 2 at every position at once; `first` are the rows depth 1 returned.

        Position p sees token p and depth 1's row of p - 1. What a draft finds in the cache at
        earlier positions was written by depth 1, so those keys and values come from there; only
        position p's own are from this pass.
        """
        mixer, eps = cast(Attention, self.block.mixer), self.config.norm_eps
        earlier = rms_norm(self.enter(embedded, hidden), self.block.attn_norm, eps)
        x = self.enter(embedded, first)
        q, k, v, gate = mixer.qkvg(rms_norm(x, self.block.attn_norm, eps))
        _, old_k, old_v, _ = mixer.qkvg(earlier)
        n_tokens, scale = q.shape[2], self.config.head_dim**-0.5
        seen = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=q.device).tril(-1)
        past = (q @ old_k.transpose(-1, -2)).float().masked_fill(~seen, float("-inf"))
        own = (q * k).sum(-1, keepdim=True).float()
        share = (torch.cat((past, own), -1) * scale).softmax(-1).to(q.dtype)
        mixed = share[..., :-1] @ old_v + share[..., -1:] * v
        return self.leave(x + mixer.finish(mixed, gate))[0]


class DemoModel(nn.Module):
    """The whole model. `dtype` is what activations are computed in; weights stay f32."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        rope = Rope(config)
        self.token_embd = matrix(config.n_vocab, config.n_embd)
        self.layers = nn.ModuleList(
            Block(config, rope, config.is_recurrent(i)) for i in range(config.n_layer)
        )
        self.output_norm = nn.Parameter(torch.ones(config.n_embd))
        self.output = matrix(config.n_vocab, config.n_embd)
        self.mtp = MtpBlock(config, rope)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embd[tokens].to(self.dtype)

    def trunk(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (B, T) -> hidden rows (B, T, d) after output_norm, and the mean balance loss."""
        x, balance = self.embed(tokens), torch.zeros(())
        for layer in self.layers:
            x, extra = layer(x)
            balance = balance + extra
        hidden = rms_norm(x, self.output_norm, self.config.norm_eps)
        return hidden, balance / len(self.layers)

    def logits(self, rows: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, n_vocab), in f32."""
        return project(rows, self.output).float()
