"""Teach the trained model not to loop: `python -m tools.demo_model.antiloop --from CHECKPOINT`.

Greedy text of a small model falls into loops it never saw in training. Each round writes greedy
text from prompts cut out of the training corpus, marks the tokens that complete an n-gram already
written, and takes a few steps that make those tokens less likely (unlikelihood training), among
ordinary rows that go on teaching everything else, copying included. It is also the decay of the
main run's learning rate; like there, `decay-now` in --out starts it early.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from . import tokenizer as bpe
from .checkpoint import Run, load_weights
from .config import ModelConfig
from .export import write
from .losses import antiloop_losses
from .model import DemoModel
from .optim import optimizers
from .runner import Runner
from .samples import Samples
from .train import CHECKPOINT_S, SEED, Log, descend, fuse, rate, scale_rates, validate

N_GRAM = 4
ONSET = 32  # what follows the start of a loop is the loop's fault; only its start is unlearned
PROMPT, WRITTEN, PER_ROW = (2, 30), 128, 3
ROWS, LOOP_ROWS, HEAD_ROWS, LENGTH = 8, 3, 2, 512
STEPS_PER_ROUND, POOL_ROWS = 16, 12


def repeats(written: list[int], n: int = N_GRAM) -> np.ndarray:
    """True where a token completes an n-gram that stands earlier in the same text."""
    seen: set[tuple[int, ...]] = set()
    marks = np.zeros(len(written), dtype=bool)
    for end in range(n, len(written) + 1):
        gram = tuple(written[end - n : end])
        marks[end - 1] = gram in seen
        seen.add(gram)
    return marks


class LoopRows:
    """Rows of own greedy texts with a mask (B, T) over the targets to be made less likely."""

    def __init__(self, model: DemoModel, samples: Samples, tokenizer: Path, seed: int) -> None:
        rng = np.random.default_rng((SEED, seed))
        n_texts = POOL_ROWS * PER_ROW
        pieces = bpe.load(tokenizer).get_vocab()
        self.newlines = [number for piece, number in pieces.items() if piece.endswith("Ċ")]
        prompts = [self._prompt(samples, rng) for _ in range(n_texts)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "now.gguf"
            write(model, tokenizer, path, half=True)
            with Runner(path, n_ctx=256) as runner:
                texts = [runner.greedy(prompt, WRITTEN) for prompt in prompts]
        marks = [repeats(text) for text in texts]
        self.share = float(np.concatenate(marks).mean())
        tokens = np.full((POOL_ROWS, LENGTH + 1), bpe.END_ID)
        mask = np.zeros((POOL_ROWS, LENGTH + 1), dtype=bool)
        for row in range(POOL_ROWS):
            start = 0
            for i in range(row * PER_ROW, (row + 1) * PER_ROW):
                middle = start + len(prompts[i])
                end = middle + len(texts[i])
                tokens[row, start:middle] = prompts[i]
                tokens[row, middle:end] = texts[i]
                mask[row, middle:end] = marks[i] & (marks[i].cumsum() <= ONSET)
                start = end + 1
        self.tokens = torch.from_numpy(tokens)
        self.mask = torch.from_numpy(mask[:, 1:])

    def _prompt(self, samples: Samples, rng: np.random.Generator) -> np.ndarray:
        """The first tokens of a line, and of the lines after it, without an end of text."""
        stream = samples.streams[("library", "tests", "docs")[rng.choice(3, p=(0.6, 0.1, 0.3))]]
        start = int(rng.integers(0, len(stream) - 1000))
        ends = np.flatnonzero(np.isin(stream[start : start + 500], self.newlines))
        start += int(ends[0]) + 1 if len(ends) else 0
        tokens = stream[start : start + rng.integers(*PROMPT)].astype(np.int64)
        return np.concatenate((tokens[:1], tokens[1:][tokens[1:] != bpe.END_ID]))

    def pick(self, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        index = rng.choice(len(self.tokens), size=LOOP_ROWS, replace=False)
        return self.tokens[index], self.mask[index]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=Path("run/corpus"))
    parser.add_argument("--out", type=Path, default=Path("run/antiloop"))
    parser.add_argument("--from", dest="start", type=Path, default=Path("run/main/checkpoint.pt"))
    parser.add_argument("--decay-at", type=int, default=176)
    parser.add_argument("--decay-steps", type=int, default=544)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--compile", action="store_true", help="fuse the layers with torch.compile")
    parser.add_argument("--pid-file", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.pid_file:
        args.pid_file.write_text(f"{os.getpid()}\n")
    config = ModelConfig()
    model = DemoModel(config, torch.bfloat16)
    load_weights(model, args.start)
    engines = optimizers(model, args.muon_lr, args.adam_lr)
    full_rates = [engine.param_groups[0]["lr"] for engine in engines]
    run = Run(args.out / "checkpoint.pt", model, engines)
    run.decay_at = args.decay_at
    run.resume()
    if args.compile:
        fuse(model)
    train = Samples(args.corpus, "train", LENGTH + 1, config.n_vocab, SEED)
    valid = Samples(args.corpus, "valid", LENGTH + 1, config.n_vocab, SEED)
    log = Log(args.out / "log.txt")
    saved = time.monotonic()

    while run.step < run.decay_at + args.decay_steps:
        if run.step < run.decay_at and (args.out / "decay-now").exists():
            run.decay_at = run.step
        loops = LoopRows(model, train, args.corpus / "tokenizer.json", run.step)
        for _ in range(STEPS_PER_ROUND):
            factor = rate(run.step, run.decay_at, args.decay_steps)
            scale_rates(engines, full_rates, factor)
            # Far into the data schedule: the late mixture, and rows the main run did not draw.
            batch = train.batch(1_000_000 + run.step, ROWS - LOOP_ROWS)
            own, unwanted = loops.pick(np.random.default_rng((SEED, 1, run.step)))
            tokens = torch.cat((torch.from_numpy(batch.tokens), own))
            losses = antiloop_losses(model, tokens[:, :-1], tokens[:, 1:], unwanted, HEAD_ROWS)
            descend(model, engines, losses)
            log.add(losses, batch.kinds)
            run.step += 1
        log.line(f"share of repeats in this round's texts: {loops.share:.3f}")
        log.flush(run.step, STEPS_PER_ROUND * ROWS * LENGTH, factor)
        if run.step // STEPS_PER_ROUND % 10 == 0:
            log.line(validate(model, valid, ROWS))
            log.started = time.perf_counter()
        if time.monotonic() - saved > CHECKPOINT_S:
            run.save()
            saved = time.monotonic()
    run.save()
    log.line(f"done at step {run.step}")


if __name__ == "__main__":
    main()
