"""Sources that know the answer: the ceiling of all sources, and chosen acceptance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field

from bmoe_core.guard import check_draft
from bmoe_core.hookspecs import hookimpl
from bmoe_core.sources import OpenSource
from bmoe_core.steps import common_prefix
from bmoe_core.target.protocol import Target


@define(eq=False)
class OracleSource:
    """Drafts what the target is going to say.

    It knows that from an earlier run. Where a batch falls to the other side of a near tie, the run
    parts from the one it was told; told its own run, it is right again up to the next such place.

    Attributes:
        reference: the prompt and the tokens after it; empty: it declines.
    """

    reference: Sequence[int] = field(factory=list, init=False)

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> list[int] | None:
        """The next ``n_max`` tokens of the reference."""
        return list(self.reference[len(tokens) : len(tokens) + n_max])


@define(eq=False)
class HindsightSource:
    """Another source whose drafts are cut to what the target is going to accept.

    It declines where nothing would be. So it is what a gate could do with that source's own drafts
    if it knew the answer.

    Attributes:
        inner: the source.
        n_vocab: token ids are below this.
        reference: as the oracle's.
    """

    inner: OpenSource
    n_vocab: int
    reference: Sequence[int] = field(factory=list, init=False)

    @hookimpl
    def prepare_context(self, context_params: Any) -> None:
        """As the source's."""
        self.inner.prepare_context(context_params)

    @hookimpl
    def open(self, target: Target) -> None:
        """As the source's."""
        self.inner.open(target)

    @hookimpl
    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """As the source's."""
        self.inner.begin(prompt, n_past)

    @hookimpl
    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """As the source's."""
        self.inner.observe(tokens, n_past)

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> list[int]:
        """The source's draft up to the first token that the target will not choose."""
        drafted = check_draft(self.inner.draft(tokens, n_max), n_max, self.n_vocab).tokens
        return list(drafted[: common_prefix(drafted, self.reference[len(tokens) :])])

    @hookimpl
    def close(self) -> None:
        """As the source's."""
        self.inner.close()


@define(eq=False)
class SyntheticSource:
    """Drafts tokens each of which is right with probability ``p``, by itself.

    A draft of n tokens is then accepted up to the first wrong one: (p + p² + … + pⁿ) tokens on the
    average. Which positions are right depends on ``seed`` and the position alone.

    Attributes:
        p: the probability, 0 to 1.
        n_vocab: token ids are below this.
        reference: as the oracle's.
    """

    p: float
    n_vocab: int
    seed: int = 0
    reference: Sequence[int] = field(factory=list, init=False)

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> list[int] | None:
        """The next tokens of the reference, some of them replaced by another."""
        start = len(tokens)
        true = self.reference[start : start + n_max]
        return [
            token if self._is_right(start + i) else (token + 1) % self.n_vocab
            for i, token in enumerate(true)
        ]

    def _is_right(self, position: int) -> bool:
        return random.Random(self.seed * 1_000_003 + position).random() < self.p
