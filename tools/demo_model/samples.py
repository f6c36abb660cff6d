"""Batches: what a training step reads, drawn from the corpus by (seed, step) alone.

So a resumed run sees what an uninterrupted one would have seen, with no state to store.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .tokenizer import END_ID

KINDS = ("library", "tests", "docs", "tasks", "span", "tile", "random")
# Repeats first, so that copying circuits form within the first few hundred steps; tiles and
# random tokens then go away, because a model that keeps seeing loops writes loops.
EARLY = np.array([0.22, 0.04, 0.08, 0.22, 0.12, 0.12, 0.20])
LATE = np.array([0.30, 0.10, 0.14, 0.36, 0.10, 0.00, 0.00])
EARLY_UNTIL, LATE_FROM = 400, 1000


def mixture(step: int) -> np.ndarray:
    """Chances of the kinds at a step: early, then linear to late."""
    blend = np.clip((step - EARLY_UNTIL) / (LATE_FROM - EARLY_UNTIL), 0, 1)
    return EARLY * (1 - blend) + LATE * blend


@dataclass(frozen=True)
class Batch:
    """tokens (B, T + 1): inputs and, shifted by one, targets. kinds (B,) index KINDS."""

    tokens: np.ndarray
    kinds: np.ndarray


class Samples:
    """Rows of `length` tokens from the streams of one split."""

    def __init__(self, folder: Path, split: str, length: int, n_vocab: int, seed: int) -> None:
        self.length, self.n_vocab, self.seed = length, n_vocab, seed
        self.streams = {
            kind: np.fromfile(folder / f"{kind}.{split}.u16", dtype=np.uint16)
            for kind in ("library", "tests", "docs", "tasks")
        }
        self.task_starts = np.flatnonzero(self.streams["tasks"] == END_ID) + 1
        last = len(self.streams["tasks"]) - length
        self.task_starts = self.task_starts[self.task_starts < last]

    def batch(self, step: int, n_rows: int) -> Batch:
        rng = np.random.default_rng((self.seed, step))
        kinds = rng.choice(len(KINDS), size=n_rows, p=mixture(step))
        rows = [self.row(KINDS[kind], rng) for kind in kinds]
        return Batch(np.stack(rows).astype(np.int64), kinds)

    def row(self, kind: str, rng: np.random.Generator) -> np.ndarray:
        if kind == "random":
            period = rng.integers(1, self.n_vocab, size=rng.integers(8, 129))
            return np.resize(period, self.length)
        if kind == "tile":
            return np.resize(self._cut("library", int(rng.integers(16, 201)), rng), self.length)
        if kind == "span":
            return self._repeated_span(rng)
        if kind == "tasks":
            start = rng.choice(self.task_starts)
            return self.streams["tasks"][start : start + self.length]
        return self._cut(kind, self.length, rng)

    def _cut(self, kind: str, n_tokens: int, rng: np.random.Generator) -> np.ndarray:
        stream = self.streams[kind]
        start = rng.integers(0, len(stream) - n_tokens)
        return stream[start : start + n_tokens]

    def _repeated_span(self, rng: np.random.Generator) -> np.ndarray:
        """Unrelated text in which one span of code stands twice, at random places."""
        row = self._cut("library", self.length, rng).copy()
        size = int(rng.integers(24, self.length * 2 // 5))
        span = self._cut(("library", "tests", "docs")[rng.integers(3)], size, rng)
        first = int(rng.integers(0, self.length - 2 * size))
        second = int(rng.integers(first + size, self.length - size + 1))
        row[first : first + size] = span
        row[second : second + size] = span
        return row
