"""What a step minimises: the trunk's own loss, and the head's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .model import DemoModel

BALANCE, DEPTH_1, DEPTH_2, UNLIKELIHOOD = 0.01, 0.3, 0.1, 1.5


@dataclass
class Losses:
    """`total` is minimised; `tokens` (B, T) is the trunk's cross-entropy of every token."""

    total: Tensor
    tokens: Tensor
    head: Tensor


def token_loss(rows: Tensor, output: Tensor, targets: Tensor) -> Tensor:
    """rows (B, T, d), output (V, d), targets (B, T) -> cross-entropy (B, T)."""
    logits = F.linear(rows, output.to(rows.dtype)).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(
        targets
    )


def divergence(rows: Tensor, output: Tensor, target_logits: Tensor) -> Tensor:
    """Mean KL of the head's distribution (from its rows) to the trunk's."""
    own = F.linear(rows, output.to(rows.dtype)).float().log_softmax(-1)
    target = target_logits.log_softmax(-1)
    return (target.exp() * (target - own)).sum(-1).mean()


def training_losses(
    model: DemoModel, inputs: Tensor, targets: Tensor, head_rows: int, distil: bool
) -> Losses:
    """The main run: trunk on every row, head at depth 1 on the first `head_rows` of them.

    `distil` makes the trunk's distribution the head's target instead of the next token.
    """
    hidden, balance = model.trunk(inputs)
    tokens = token_loss(hidden, model.output, targets)
    some = hidden[:head_rows]
    if distil:
        head, head_balance = distilled_head(model, inputs[:head_rows], some)
    else:
        rows, head_balance = model.mtp(model.embed(inputs[:head_rows]), some)
        head = token_loss(rows, model.output, targets[:head_rows]).mean()
    total = tokens.mean() + DEPTH_1 * head + BALANCE * (balance + head_balance)
    return Losses(total, tokens.detach(), head.detach())


def unlikelihood(logits: Tensor, targets: Tensor, unwanted: Tensor) -> Tensor:
    """Mean of -log(1 - p(target)) over the unwanted ones; logits (B, T, V), the others (B, T)."""
    if not unwanted.any():
        return logits.sum() * 0
    chance = logits[unwanted].log_softmax(-1).gather(-1, targets[unwanted][:, None]).exp()
    return -torch.log1p(-chance.clamp(max=0.999)).mean()


def antiloop_losses(
    model: DemoModel, inputs: Tensor, targets: Tensor, unwanted: Tensor, head_rows: int
) -> Losses:
    """Ordinary rows first, own greedy texts last: the last `len(unwanted)` rows are only unlearned.

    Both go through the trunk in one batch of the main run's shape, which is compiled already.
    """
    hidden, balance = model.trunk(inputs)
    n_plain = len(inputs) - len(unwanted)
    tokens = token_loss(hidden[:n_plain], model.output, targets[:n_plain])
    head, head_balance = distilled_head(model, inputs[:head_rows], hidden[:head_rows])
    penalty = unlikelihood(model.logits(hidden[n_plain:]), targets[n_plain:], unwanted)
    total = tokens.mean() + DEPTH_1 * head + BALANCE * (balance + head_balance)
    return Losses(total + UNLIKELIHOOD * penalty, tokens.detach(), head.detach())


def distilled_head(model: DemoModel, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Depth 1 against the trunk's distribution: its divergence, and the balance loss."""
    rows, balance = model.mtp(model.embed(inputs), hidden)
    with torch.no_grad():
        wanted = model.logits(hidden)
    return divergence(rows, model.output.detach(), wanted), balance


def head_losses(model: DemoModel, inputs: Tensor, targets: Tensor, deep_rows: int) -> Losses:
    """The tail: all but the head frozen, distilled at depth 1, and at depth 2 on some rows."""
    with torch.no_grad():
        hidden, _ = model.trunk(inputs)
        wanted = model.logits(hidden)
        tokens = F.cross_entropy(wanted.flatten(0, 1), targets.flatten(), reduction="none")
        embedded = model.embed(inputs)
    rows, balance = model.mtp(embedded, hidden)
    first = divergence(rows, model.output, wanted)
    deep = slice(0, deep_rows)
    second_rows = model.mtp.chain(embedded[deep], hidden[deep], rows[deep])
    second = divergence(second_rows, model.output, wanted[deep])
    total = first + DEPTH_2 / DEPTH_1 * second + BALANCE * balance
    return Losses(total, tokens.view_as(targets), first.detach())
