"""Muon for the matrices inside the blocks, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .model import DemoModel

# Router, decay and step projections are small and touchy; embeddings are tables, not maps.
ADAM_NAMES = ("token_embd", "output", "ffn_gate_inp", "ssm_alpha", "ssm_beta", "ssm_conv1d")


def orthogonalise(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration on a stack (N, rows, cols): singular values pulled towards 1."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.transpose(-1, -2) if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; equal shapes go through one batched product."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                state["momentum"].lerp_(param.grad, 1 - group["momentum"])
                update = param.grad.lerp(state["momentum"], group["momentum"])
                shapes[param.shape].append((param, update))
            for shape, pairs in shapes.items():
                stack = torch.stack([update for _, update in pairs])
                flat = orthogonalise(stack.view(-1, *shape[-2:])).view(stack.shape).float()
                scale = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
                for (param, _), direction in zip(pairs, flat, strict=True):
                    param.mul_(1 - group["lr"] * group["decay"])
                    param.add_(direction, alpha=-scale)


def optimizers(model: DemoModel, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Both optimizers over the parameters that require a gradient."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, param in model.named_parameters():
        if param.requires_grad:
            leaf = name.rsplit(".", 1)[-1]
            is_matrix = param.ndim >= 2 and not leaf.startswith(ADAM_NAMES[2:])
            is_matrix = is_matrix and leaf not in ADAM_NAMES[:2]
            (matrices if is_matrix else others).append(param)
    adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [Muon(matrices, lr=muon_lr), adam]
