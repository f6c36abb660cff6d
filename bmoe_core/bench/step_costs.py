"""What a decode of several positions costs, and what a draft has to be accepted to pay for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from bmoe_core.target.protocol import Target


@frozen
class WidthCost:
    """A verify decode of one width, against a plain one.

    Attributes:
        draft: its draft tokens; it decodes one position more.
        seconds: median seconds of the decode, of choosing a token at each position, and of rolling
            the draft back.
        ratio: median of seconds / those of a plain decode in the same round.
        low: the lowest such ratio.
        high: the highest.
    """

    draft: int
    seconds: float
    ratio: float
    low: float
    high: float

    @property
    def needed_acceptance(self) -> float | None:
        """Accepted / drafted tokens at which such drafts break even; None: no acceptance does.

        A step that drafts n tokens yields 1 + n × acceptance tokens in the time of ``ratio`` plain
        steps, each of which yields one. The drafting itself is not counted.
        """
        needed = (self.ratio - 1) / self.draft
        return None if needed > 1 else max(0.0, needed)

    @property
    def needed_chance(self) -> float | None:
        """The same as the chance of each token to be right: p + p² + … + pⁿ = ratio − 1."""
        if self.needed_acceptance is None:
            return None
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            if sum(middle**i for i in range(1, self.draft + 1)) < self.ratio - 1:
                low = middle
            else:
                high = middle
        return high


def measure_widths(
    target: Target,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    most: int,
    rounds: int,
    on_round: Callable[[int], Any] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[WidthCost]:
    """Decode the beginning of an answer in batches of 1 to 1 + ``most``, the widths turned about.

    Each batch is rolled back but for its first token, as if the draft had been rejected. The first
    round is not counted.

    Args:
        target: can take ``most`` tokens back.
        prompt: token ids.
        answer: the tokens after it, more than 1 + ``most``.
        most: the widest draft.
        rounds: how often each width is measured.
        on_round: called with the number of rounds done.
        clock: gives seconds.
    """
    seconds: dict[int, list[float]] = {n: [] for n in range(1 + most)}
    position = len(answer)
    for i in range(rounds + 1):
        for n in sorted(seconds, reverse=bool(i % 2)):
            if position + 1 + n > len(answer) or target.n_past + 1 + n > target.n_ctx:
                _prefill(target, prompt)
                position = 0
            batch = answer[position : position + 1 + n]
            started = clock()
            rows = target.decode(batch, len(batch))
            for row in rows:
                row.argmax()
            target.roll_back(target.n_past - n)
            elapsed = clock() - started
            position += 1
            if i:
                seconds[n].append(elapsed)
        on_round(i)
    return [_cost(n, seconds[n], seconds[0]) for n in range(1, 1 + most)]


def _cost(n: int, seconds: Sequence[float], plain: Sequence[float]) -> WidthCost:
    ratios = [wide / single for wide, single in zip(seconds, plain, strict=True)]
    return WidthCost(
        draft=n,
        seconds=statistics.median(seconds),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
    )


def _prefill(target: Target, prompt: Sequence[int]) -> None:
    target.clear()
    for start in range(0, len(prompt), target.n_batch):
        target.decode(prompt[start : start + target.n_batch], 0)
