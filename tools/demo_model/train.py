"""Train: `python -m tools.demo_model.train --corpus run/corpus --out run/main`.

Warm up, hold, decay. The decay starts at --decay-at, or early once the file `decay-now` stands in
--out; it takes --decay-steps (none by default: `antiloop` decays), and then the run is over.
Everything depends on the step alone, so a stopped run goes on from its checkpoint as if nothing
had happened. `--head-only --from FILE` freezes the trunk and trains the head to follow it: at
depth 1 on every row, at depth 2 on --head-rows of them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from .checkpoint import Run, load_weights
from .config import ModelConfig
from .losses import Losses, head_losses, training_losses
from .model import DemoModel
from .optim import optimizers
from .samples import KINDS, Samples

SEED = 7
WARM_UP = 100
CHECKPOINT_S = 180.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=Path("run/corpus"))
    parser.add_argument("--out", type=Path, default=Path("run/main"))
    parser.add_argument("--from", dest="start", type=Path, help="checkpoint to take weights from")
    parser.add_argument("--head-only", action="store_true", help="freeze everything but the head")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument(
        "--head-rows",
        type=int,
        default=2,
        help="rows that also train the head; with --head-only, rows at depth 2",
    )
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--first-step", type=int, default=0, help="where the data schedule starts")
    parser.add_argument("--decay-at", type=int, default=2000)
    parser.add_argument("--decay-steps", type=int, default=0)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--compile", action="store_true", help="fuse the layers with torch.compile")
    parser.add_argument("--pid-file", type=Path)
    return parser.parse_args()


def rate(step: int, decay_at: int, decay_steps: int) -> float:
    """Fraction of the full learning rate: up, flat, and linearly down to 0."""
    if step < decay_at:
        return min(1.0, (step + 1) / WARM_UP)
    return max(0.0, 1 - (step - decay_at) / decay_steps)


def scale_rates(
    engines: Sequence[torch.optim.Optimizer], full_rates: Sequence[float], factor: float
) -> None:
    """Set each engine's learning rate to its share of the full one."""
    for engine, full in zip(engines, full_rates, strict=True):
        engine.param_groups[0]["lr"] = full * factor


def descend(model: DemoModel, engines: Sequence[torch.optim.Optimizer], losses: Losses) -> None:
    """One optimizer step down the gradient of the total loss, clipped to a norm of 1."""
    losses.total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for engine in engines:
        engine.step()
        engine.zero_grad()


def fuse(model: DemoModel) -> None:
    """Compile each layer on its own: equal layers share one compilation."""
    torch._inductor.config.compile_threads = 1
    for layer in model.layers:
        layer.compile(dynamic=False)
    model.mtp.compile(dynamic=False)


class Log:
    """Means since the last line, per kind of row, appended to log.txt and printed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sums: dict[str, list[float]] = defaultdict(list)
        self.started = time.perf_counter()

    def add(self, losses: Losses, kinds: np.ndarray) -> None:
        self.sums["head"].append(float(losses.head))
        for kind, loss in zip(kinds, losses.tokens.mean(1).tolist(), strict=True):
            self.sums[KINDS[kind]].append(loss)

    def line(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")
        print(text, flush=True)

    def flush(self, step: int, n_tokens: int, factor: float) -> None:
        passed = time.perf_counter() - self.started
        means = " ".join(f"{name} {np.mean(v):.3f}" for name, v in sorted(self.sums.items()))
        self.line(f"step {step} rate {factor:.2f} {n_tokens / passed:.0f} tok/s | {means}")
        self.sums.clear()
        self.started = time.perf_counter()


def validate(model: DemoModel, samples: Samples, n_rows: int) -> str:
    """Loss on held-out library code and tasks, and on the second copy of random tokens.

    Gradients stay enabled, so that the compiled training graph serves here too.
    """
    report = []
    for kind in ("library", "tasks", "random"):
        rng = np.random.default_rng(1)
        total = []
        for _ in range(3):
            rows = np.stack([samples.row(kind, rng) for _ in range(n_rows)]).astype(np.int64)
            tokens = torch.from_numpy(rows)
            logits = model.logits(model.trunk(tokens[:, :-1])[0]).detach()
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
            ).view(n_rows, -1)
            total.append(loss[:, 160:].mean() if kind == "random" else loss.mean())
        report.append(f"{kind} {torch.stack(total).mean():.3f}")
    return "valid " + " ".join(report)


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.pid_file:
        args.pid_file.write_text(f"{os.getpid()}\n")
    torch.manual_seed(SEED)
    config = ModelConfig()
    model = DemoModel(config, torch.bfloat16)
    if args.start:
        load_weights(model, args.start)
    if args.head_only:
        for name, param in model.named_parameters():
            param.requires_grad_(name.startswith("mtp."))
    engines = optimizers(model, args.muon_lr, args.adam_lr)
    full_rates = [engine.param_groups[0]["lr"] for engine in engines]
    run = Run(args.out / "checkpoint.pt", model, engines)
    run.decay_at = args.decay_at
    run.resume()
    if args.compile:
        fuse(model)
    train = Samples(args.corpus, "train", args.length + 1, config.n_vocab, SEED)
    valid = Samples(args.corpus, "valid", args.length + 1, config.n_vocab, SEED)
    log = Log(args.out / "log.txt")
    saved = time.monotonic()

    while run.step < run.decay_at + args.decay_steps:
        if run.step < run.decay_at and (args.out / "decay-now").exists():
            run.decay_at = run.step
        factor = rate(run.step, run.decay_at, args.decay_steps)
        scale_rates(engines, full_rates, factor)
        batch = train.batch(args.first_step + run.step, args.rows)
        tokens = torch.from_numpy(batch.tokens)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if args.head_only:
            losses = head_losses(model, inputs, targets, args.head_rows)
        else:
            distil = run.step >= run.decay_at
            losses = training_losses(model, inputs, targets, args.head_rows, distil)
        descend(model, engines, losses)
        log.add(losses, batch.kinds)
        run.step += 1
        if run.step % 25 == 0:
            log.flush(run.step, 25 * inputs.numel(), factor)
        if run.step % 250 == 0:
            log.line(validate(model, valid, args.rows))
            log.started = time.perf_counter()
        if time.monotonic() - saved > CHECKPOINT_S:
            run.save()
            saved = time.monotonic()
    run.save()
    log.line(f"done at step {run.step}")


if __name__ == "__main__":
    main()
