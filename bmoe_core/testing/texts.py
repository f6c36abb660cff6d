"""Simulated texts with a draft source for each, to try gates on.

The right token at each position is the position itself; a draft is right about it or not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import define, field

from bmoe_core.steps import NO_DRAFT, Draft

WRONG = -1
"""Stands for a wrong token in a draft."""
MARGIN = 65
"""Positions that a text goes on beyond its length, for drafts made at its end."""


class Text(Protocol):
    """What a source drafts at each position, and what the target says."""

    def propose(self, position: int, n_max: int) -> Draft:
        """The draft after the settled token at ``position``."""

    def accept(self, draft: Draft, n_verified: int) -> int:
        """How many of the draft's first ``n_verified`` tokens the target confirms."""

    def follow(self, position: int, n_tokens: int) -> Sequence[int]:
        """The tokens after ``position``."""


@define(eq=False)
class Scripted:
    """A text that was decided on beforehand.

    Attributes:
        hits: for each position, whether the source is right about the token there, having been
            right about those before it.
        evidence: for each position, that of a draft made there; None where the source declines.
        regimes: for each position, a name of the kind of text.
        confidence: the source's for each value of its evidence; empty: it tells none.
    """

    hits: Sequence[bool]
    evidence: Sequence[int | None]
    regimes: Sequence[str]
    confidence: Mapping[int, float] = field(factory=dict)

    def propose(self, position: int, n_max: int) -> Draft:
        """See :meth:`Text.propose`."""
        evidence = self.evidence[position]
        if evidence is None:
            return NO_DRAFT
        ahead = range(position + 1, position + 1 + n_max)
        tokens = [p if self.hits[p] else WRONG for p in ahead]
        return Draft(tokens, evidence, self.confidence.get(evidence))

    def accept(self, draft: Draft, n_verified: int) -> int:
        """See :meth:`Text.accept`."""
        n = 0
        while n < n_verified and draft.tokens[n] != WRONG:
            n += 1
        return n

    def follow(self, position: int, n_tokens: int) -> Sequence[int]:
        """See :meth:`Text.follow`."""
        return range(position + 1, position + 1 + n_tokens)


@define(eq=False)
class Adversary:
    """Drafts are right as long as they are not verified, and wrong once they are.

    The source says that it is sure of every token.

    Attributes:
        bait: verified drafts in a row that are right before one that is wrong.
    """

    bait: int = 0
    _given: int = field(default=0, init=False)

    def propose(self, position: int, n_max: int) -> Draft:
        """See :meth:`Text.propose`."""
        return Draft(list(range(position + 1, position + 1 + n_max)), evidence=1, confidence=1.0)

    def accept(self, draft: Draft, n_verified: int) -> int:
        """See :meth:`Text.accept`."""
        if self._given < self.bait:
            self._given += n_verified > 0
            return n_verified
        self._given = 0
        return 0

    def follow(self, position: int, n_tokens: int) -> Sequence[int]:
        """See :meth:`Text.follow`."""
        return range(position + 1, position + 1 + n_tokens)


def _scripted(hits: list[bool], regimes: list[str]) -> Scripted:
    """A source that has matched for as long as it was right, 12 tokens at most, from 3 on.

    Its confidence is that of prompt lookup: by the rule of succession.
    """
    evidence: list[int | None] = []
    run = 0
    for hit in hits:
        run = run + 1 if hit else 0
        evidence.append(min(run, 12) if run >= 3 else None)
    return Scripted(hits, evidence, regimes, {m: (m + 1) / (m + 3) for m in range(3, 13)})


def constant(n: int, seed: int, acceptance: float) -> Scripted:
    """Every token is right with the same chance, and the source always drafts."""
    rng = random.Random(seed)
    hits = [rng.random() < acceptance for _ in range(n + MARGIN)]
    return Scripted(hits, [0] * len(hits), ["constant"] * len(hits))


def bursty(n: int, seed: int, burst: int = 40, gap: int = 60) -> Scripted:
    """Copied stretches in other text, of which short runs are copied by chance."""
    rng = random.Random(seed)
    hits: list[bool] = []
    regimes: list[str] = []
    copying = False
    while len(hits) < n + MARGIN:
        length = 1 + int(rng.expovariate(1 / (burst if copying else gap)))
        hits += [rng.random() < (0.97 if copying else 0.4) for _ in range(length)]
        regimes += ["copy" if copying else "prose"] * length
        copying = not copying
    return _scripted(hits, regimes)


def switching(n: int, seed: int, length: int = 200, low: float = 0.15) -> Scripted:
    """Acceptance is high and low by turns, and the evidence says nothing about it."""
    rng = random.Random(seed)
    hits: list[bool] = []
    regimes: list[str] = []
    while len(hits) < n + MARGIN:
        good = (len(hits) // length) % 2 == 0
        hits.append(rng.random() < (0.92 if good else low))
        regimes.append("high" if good else "low")
    return Scripted(hits, [0] * len(hits), regimes)
