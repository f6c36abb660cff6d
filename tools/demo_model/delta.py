"""The gated delta rule, chunk by chunk, so that nearly all of it is matrix products.

Per head, with state S of shape (key, value):

    S <- exp(g_t) S;   S <- S + k_t (beta_t (v_t - k_t S))^T;   o_t = q_t S

Inside a chunk the updates form a unit lower triangular system; its inverse turns the chunk into
a few products, and only the chunk states are sequential.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class UnitLowerInverse(torch.autograd.Function):
    """(I + N)^-1 for strictly lower triangular N (..., C, C), C a power of two."""

    @staticmethod
    def forward(ctx: Any, n: Tensor) -> Tensor:
        """N is nilpotent: (I + N)^-1 = (I - N)(I + N^2)(I + N^4)..., log2 C products."""
        size = n.shape[-1]
        inverse = torch.eye(size, dtype=n.dtype, device=n.device) - n
        power, reach = n, 2
        while reach < size:
            power = power @ power
            inverse = inverse + inverse @ power
            reach *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, chunk: int = 32
) -> Tensor:
    """Outputs (B, H, T, V) from q, k (B, H, T, K), v (B, H, T, V), log_decay and beta (B, H, T).

    q and k arrive normalised and q scaled. T is padded to a multiple of the chunk: a padded
    token has beta 0 and decay 1, so it changes nothing.
    """
    n_tokens = q.shape[2]
    pad = -n_tokens % chunk
    if pad:
        q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        log_decay, beta = (torch.nn.functional.pad(x, (0, pad)) for x in (log_decay, beta))
    split = (*q.shape[:2], -1, chunk)
    q, k, v = (x.reshape(*split, x.shape[-1]) for x in (q, k, v))
    total = log_decay.reshape(split).cumsum(-1)
    beta = beta.reshape(split).unsqueeze(-1)

    # decay[i, j] = what is left at i of something written at j; masked before exp, so no inf.
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    gap = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~causal, float("-inf"))
    decay = gap.exp()
    k_beta = k * beta
    k_t = k.transpose(-1, -2)
    solve = UnitLowerInverse.apply((k_beta @ k_t * decay).tril(-1))
    since_start = total.unsqueeze(-1).exp()
    until_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    own = solve @ (v * beta)
    from_state = solve @ (k_beta * since_start)
    read_inside = q @ k_t * decay
    read_state = q * since_start
    write = (k * until_end).transpose(-1, -2)
    keep = total[..., -1].exp()[..., None, None]

    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    outputs = []
    for i in range(q.shape[2]):
        value = own[:, :, i] - from_state[:, :, i] @ state
        outputs.append(read_state[:, :, i] @ state + read_inside[:, :, i] @ value)
        state = state * keep[:, :, i] + write[:, :, i] @ value
    return torch.stack(outputs, 2).flatten(2, 3)[:, :, :n_tokens]
