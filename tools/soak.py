"""Generate for a long time, in every way at random, and check each answer.

Sources, prompts, lengths, stop strings, temperatures and cancellations are drawn at random, and
contexts are kept, so that answers go on from each other. Every greedy answer is decoded once more
plainly: no token's logit may lie far below the highest. Memory that no file backs must not grow.

usage: python tools/soak.py [--tokens N] [--seed N] [-m MODEL]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from bmoe_core import Answer, Generator, LlamaModel, LlamaTarget, Sampling, hookimpl, open_source
from bmoe_core.footprint import Footprint
from bmoe_core.models import demo_model
from bmoe_core.testing.consistency import plain_gaps

N_CTX = 512
MAX_GAP = 0.5
"""Logits below the highest that a token may lie: as far as a batch's rounding may reach."""
MAX_GROWTH_MIB = 16.0
"""Anonymous memory that may come on top after the warm-up."""
WARM_UP = 10_000
"""Tokens after which every context has been used for long prompts and short ones."""
STOPS = ("\n", "\n\n", "the", ". ", "def", "return", " =", "e")
TEXTS = (
    "def main():\n    total = 0\n    for i in range(10):\n        total += i\n    return total\n",
    "one, two, three, four, five. one, two, three, four, five. one, two,",
    "The tides come about because the moon",
    '{"name": "a", "value": 1}, {"name": "b", "value": 2}, {"name": "c",',
)


@define(eq=False)
class Soak:
    """The state of a run and what it has seen."""

    model: LlamaModel
    random: random.Random
    plain: LlamaTarget
    generators: dict[str, Generator]
    n_tokens: int = 0
    n_checked: int = 0
    worst_gap: float = 0.0
    ends: collections.Counter[str] = field(factory=collections.Counter)
    by_source: collections.Counter[str] = field(factory=collections.Counter)
    _last: dict[str, list[int]] = field(factory=dict)

    def answer(self) -> None:
        """One answer, checked."""
        name = self.random.choice(list(self.generators))
        generator = self.generators[name]
        greedy = self.random.random() < 0.75
        answer = generator.generate(
            self._prompt(name),
            n_predict=self.random.choice([1, 2, 7, 40, 150, 400]),
            stop=self.random.sample(STOPS, self.random.choice([0, 0, 1, 2])),
            sampling=Sampling() if greedy else self._sampling(),
        )
        self._consume(answer)
        held = answer.held_tokens()
        if generator.target.n_past != len(held):
            raise AssertionError(f"{name}: {generator.target.n_past} held, {len(held)} known")
        if len(answer.tokens) != answer.summary.n_generated:
            raise AssertionError(f"{name}: the counts differ")
        self._last[name] = held
        self.n_tokens += len(answer.tokens)
        self.ends[answer.finish_reason.value] += 1
        self.by_source[name] += len(answer.tokens)
        if greedy and answer.tokens:
            self._check(name, answer)

    def _prompt(self, name: str) -> list[int]:
        text = self.random.choice(TEXTS)[: self.random.randint(1, 100)]
        tokens = self.model.tokenize(text)
        last = self._last.get(name, [])
        if len(last) < N_CTX // 2 and self.random.random() < 0.5:
            return last[: self.random.randint(0, len(last))] + tokens
        return tokens

    def _sampling(self) -> Sampling:
        return Sampling(
            temp=self.random.choice([0.3, 1.0, 2.0]),
            repeat_penalty=self.random.choice([1.0, 1.3]),
            seed=self.random.randrange(10**6),
        )

    def _consume(self, answer: Answer) -> None:
        n_wanted = self.random.randint(0, 30) if self.random.random() < 0.2 else None
        pieces = []
        for i, piece in enumerate(answer):
            pieces.append(piece)
            if i == n_wanted:
                break
        answer.close()
        if not answer.text.startswith("".join(pieces)):
            raise AssertionError("the pieces are not the text")

    def _check(self, name: str, answer: Answer) -> None:
        tokens = answer.prompt + answer.tokens
        gap = float(plain_gaps(self.plain, tokens, answer.n_prompt).max())
        self.n_checked += len(answer.tokens)
        self.worst_gap = max(self.worst_gap, gap)
        if gap > MAX_GAP:
            raise AssertionError(f"{name}: a token {gap:.3f} below the highest, after {tokens}")


@define(eq=False)
class Noise:
    """A source that mostly guesses: repeats, noise, or nothing. It keeps nothing of what it saw."""

    n_vocab: int
    random: random.Random

    @hookimpl
    def draft(self, tokens: np.ndarray[Any, np.dtype[np.int32]], n_max: int) -> list[int]:
        """Up to ``n_max`` tokens of any kind."""
        if self.random.random() < 0.3:
            return []
        n = self.random.randint(1, n_max)
        if self.random.random() < 0.5:
            return [int(token) for token in tokens[-n:]]
        return [self.random.randrange(self.n_vocab) for _ in range(n)]


def run(path: Path, n_tokens: int, seed: int) -> list[str]:
    """Soak until ``n_tokens`` have been generated; the lines of the report.

    Raises:
        AssertionError: something was wrong.
    """
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        mtp = open_source("mtp")
        model = stack.enter_context(LlamaModel(path, prepare=mtp.prepare_model))
        sources = {
            "none": None,
            "ngram": open_source("ngram", {"min_match": 1}),
            "mtp": mtp,
            "noise": open_source(Noise(model.n_vocab, random.Random(seed)), name="noise"),
        }
        generators = {
            name: stack.enter_context(
                Generator(
                    model, draft_source=source, draft=4, n_ctx=N_CTX, n_threads=1, strict=True
                )
            )
            for name, source in sources.items()
        }
        plain = stack.enter_context(LlamaTarget(model, n_ctx=N_CTX, n_threads=1))
        soak = Soak(model, random.Random(seed), plain, generators)
        early: float | None = None
        while soak.n_tokens < n_tokens:
            soak.answer()
            if early is None and soak.n_tokens > WARM_UP:
                early = anonymous_mib()
        late = anonymous_mib()
        growth = 0.0 if early is None else late - early
    ends = ", ".join(f"{n} {reason}" for reason, n in soak.ends.most_common())
    shares = ", ".join(f"{n} by {name}" for name, n in soak.by_source.most_common())
    lines = [
        f"{soak.n_tokens} tokens ({shares})",
        f"{sum(soak.ends.values())} answers ({ends})",
        f"{soak.n_checked} greedy tokens decoded again plainly: none more than "
        f"{soak.worst_gap:.4f} below the highest logit",
        f"anonymous memory: {late:.1f} MiB, {growth:+.1f} MiB since {WARM_UP} tokens",
        f"{time.perf_counter() - started:.0f} s",
    ]
    if growth > MAX_GROWTH_MIB:
        raise AssertionError("memory grew: " + "; ".join(lines))
    return lines


def anonymous_mib() -> float:
    """Memory of this process that no file backs; all of it where that is not told apart."""
    now = Footprint.now()
    return now.rss_mib if now.rss_anon_mib is None else now.rss_anon_mib


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-m", "--model", type=Path, default=demo_model())
    options = parser.parse_args()
    for line in run(options.model, options.tokens, options.seed):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
