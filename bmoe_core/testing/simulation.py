"""Gates without a model: simulated machines, texts and draft sources.

A machine says what a decode of so many positions costs, a text which of a source's tokens are
right. Costs that a policy is told are noisy; costs that a run is judged by are not.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import define, field, frozen

from bmoe_core.policy import Outcome, Policy
from bmoe_core.steps import NO_DRAFT, Draft

WRONG = -1
"""Stands for a wrong token in a draft; the right token at each position is the position."""

Curve = Callable[[int], float]
"""The cost of a decode of so many positions, in decodes of one."""


def flat(positions: int) -> float:
    """A GPU with idle arithmetic units: 65 positions cost 1.64."""
    return 1.0 + 0.01 * (positions - 1)


def steep(positions: int) -> float:
    """A small model on two cores, as measured at 1, 2, 4, 8 and 16 positions, and extended."""
    points = ((1, 1.0), (2, 1.6), (4, 2.4), (8, 3.8), (16, 7.0), (65, 27.0))
    for (left, low), (right, high) in itertools.pairwise(points):
        if positions <= right:
            return low + (high - low) * (positions - left) / (right - left)
    raise ValueError(f"{positions} positions")


def mixture(positions: int) -> float:
    """A mixture of experts bound by memory: 0.4 for what is shared, the rest for distinct experts.

    Of E experts with k used a token, a batch of w independent tokens touches
    E (1 - (1 - k/E)^w) on average; here k/E is 1/16.
    """
    return 0.4 + 0.6 * 16 * (1.0 - (1.0 - 1 / 16) ** positions)


@frozen(kw_only=True)
class Machine:
    """What things cost, in seconds.

    Attributes:
        curve: of the decodes.
        plain_s: seconds of a plain decode at the beginning.
        drift: share that it gains with each token, as a context grows.
        replay: the share of decoding the kept tokens anew that a rollback costs.
        draft_fixed: plain decodes that asking for a draft costs whatever its length.
        draft_each: plain decodes that each token asked for adds.
        noise: standard deviation of the logarithm of a measured time.
        outliers: share of measured times that are five times too long.
        first: factor of the first measured time of each width.
    """

    curve: Curve = steep
    plain_s: float = 0.01
    drift: float = 0.0
    replay: float = 0.0
    draft_fixed: float = 0.001
    draft_each: float = 0.0
    noise: float = 0.15
    outliers: float = 0.01
    first: float = 1.3


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
    """

    hits: Sequence[bool]
    evidence: Sequence[int | None]
    regimes: Sequence[str]

    def propose(self, position: int, n_max: int) -> Draft:
        evidence = self.evidence[position]
        if evidence is None:
            return NO_DRAFT
        ahead = range(position + 1, position + 1 + n_max)
        return Draft([p if self.hits[p] else WRONG for p in ahead], evidence)

    def accept(self, draft: Draft, n_verified: int) -> int:
        n = 0
        while n < n_verified and draft.tokens[n] != WRONG:
            n += 1
        return n

    def follow(self, position: int, n_tokens: int) -> Sequence[int]:
        return range(position + 1, position + 1 + n_tokens)


@define(eq=False)
class Adversary:
    """Drafts are right as long as they are not verified, and wrong once they are.

    Attributes:
        bait: verified drafts in a row that are right before one that is wrong.
    """

    bait: int = 0
    _given: int = field(default=0, init=False)

    def propose(self, position: int, n_max: int) -> Draft:
        return Draft(list(range(position + 1, position + 1 + n_max)), evidence=1)

    def accept(self, draft: Draft, n_verified: int) -> int:
        if self._given < self.bait:
            self._given += n_verified > 0
            return n_verified
        self._given = 0
        return 0

    def follow(self, position: int, n_tokens: int) -> Sequence[int]:
        return range(position + 1, position + 1 + n_tokens)


def _scripted(hits: list[bool], regimes: list[str]) -> Scripted:
    """A source that has matched for as long as it was right, 12 tokens at most, from 3 on."""
    evidence: list[int | None] = []
    run = 0
    for hit in hits:
        run = run + 1 if hit else 0
        evidence.append(min(run, 12) if run >= 3 else None)
    return Scripted(hits, evidence, regimes)


def constant(n: int, seed: int, acceptance: float) -> Scripted:
    """Every token is right with the same chance, and the source always drafts."""
    rng = random.Random(seed)
    hits = [rng.random() < acceptance for _ in range(n + 65)]
    return Scripted(hits, [0] * len(hits), ["constant"] * len(hits))


def bursty(n: int, seed: int, burst: int = 40, gap: int = 60) -> Scripted:
    """Copied stretches in other text, of which short runs are copied by chance."""
    rng = random.Random(seed)
    hits: list[bool] = []
    regimes: list[str] = []
    copying = False
    while len(hits) < n + 65:
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
    while len(hits) < n + 65:
        good = (len(hits) // length) % 2 == 0
        hits.append(rng.random() < (0.92 if good else low))
        regimes.append("high" if good else "low")
    return Scripted(hits, [0] * len(hits), regimes)


@frozen
class Run:
    """How a policy did.

    Attributes:
        n_tokens: tokens generated.
        cost: plain decodes of the beginning that they took, without noise.
        plain_cost: what plain decoding would have taken.
        trace: for each step, tokens so far, speed-up over plain so far, draft tokens verified.
        by_regime: tokens and cost in each kind of text.
    """

    n_tokens: int
    cost: float
    plain_cost: float
    trace: Sequence[tuple[int, float, int]]
    by_regime: dict[str, tuple[int, float]]

    @property
    def speed_up(self) -> float:
        """Over plain decoding."""
        return self.plain_cost / self.cost


def simulate(
    policy: Policy, text: Text, machine: Machine, n_tokens: int, *, seed: int = 0, room: int = 64
) -> Run:
    """Run a policy over a text, as the loop would."""
    clock = _Clock(machine, random.Random(seed))
    position, cost, plain_cost = 0, 0.0, 0.0
    trace: list[tuple[int, float, int]] = []
    by_regime: dict[str, tuple[int, float]] = {}
    regimes = getattr(text, "regimes", None)
    policy.begin()
    while position < n_tokens:
        slow = 1.0 + machine.drift * position
        n_asked = policy.ask(room)
        draft, draft_cost = NO_DRAFT, 0.0
        if n_asked:
            draft = text.propose(position, n_asked)
            draft_cost = machine.draft_fixed + machine.draft_each * n_asked
        n_verified = policy.choose(draft, clock.measure(draft_cost * slow))
        n_accepted = text.accept(draft, n_verified) if n_verified else 0
        followed = text.follow(position, 1 + n_accepted)
        decode_cost = machine.curve(1 + n_verified)
        rollback_cost = 0.0
        if n_accepted < n_verified:
            rollback_cost = machine.replay * machine.curve(1 + n_accepted)
        policy.learn(
            Outcome(
                followed,
                clock.measure_decode(decode_cost * slow, n_verified),
                clock.measure(rollback_cost * slow),
            )
        )
        spent = (draft_cost + decode_cost + rollback_cost) * slow
        if regimes is not None:
            n, c = by_regime.get(regimes[position], (0, 0.0))
            by_regime[regimes[position]] = (n + len(followed), c + spent)
        cost += spent
        for p in range(position, position + len(followed)):
            plain_cost += 1.0 + machine.drift * p
        position += len(followed)
        trace.append((position, plain_cost / cost, n_verified))
    return Run(position, cost, plain_cost, trace, by_regime)


@define(eq=False)
class _Clock:
    """Noisy measurements of costs."""

    machine: Machine
    rng: random.Random
    _seen: set[int] = field(factory=set)

    def measure(self, cost: float) -> float:
        machine = self.machine
        factor = math.exp(self.rng.gauss(0.0, machine.noise))
        if self.rng.random() < machine.outliers:
            factor *= 5.0
        return cost * factor * machine.plain_s

    def measure_decode(self, cost: float, n_verified: int) -> float:
        factor = 1.0 if n_verified in self._seen else self.machine.first
        self._seen.add(n_verified)
        return factor * self.measure(cost)
