"""Gates without a model: simulated machines, and runs of a policy over a simulated text.

A machine says what a decode of so many positions costs, a text which of a source's tokens are
right. The times that a policy is told are noisy; the costs that a run is judged by are not.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from bmoe_core.policy import Outcome, Policy, Trial, VerifyAll
from bmoe_core.steps import NO_DRAFT
from bmoe_core.testing.texts import Text

MOST_PENDING = 16
"""Tokens that wait to be decoded anew; more are at once."""

Curve = Callable[[int], float]
"""The cost of a decode of so many positions, in decodes of one."""


def flat(positions: int) -> float:
    """A GPU with idle arithmetic units: 65 positions cost 1.64."""
    return 1.0 + 0.01 * (positions - 1)


def steep(positions: int) -> float:
    """A small model on two cores, as measured at 1, 2, 4, 8 and 16 positions, and extended."""
    points = ((1, 1.0), (2, 1.6), (4, 2.4), (8, 3.8), (16, 7.0), (65, 27.0), (97, 40.0))
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
        switch: plain decodes that a decode costs beside, if the last one had other positions.
        merged: the kept tokens are decoded anew along with the next ones instead.
        draft_fixed: plain decodes that asking for a draft costs whatever its length.
        draft_each: plain decodes that each token asked for adds.
        noise: standard deviation of the logarithm of a measured time.
        outliers: share of measured times that are five times too long.
        first: factor of the first measured time of each width.
    """

    curve: Curve = steep
    plain_s: float = 0.01
    drift: float = 0.0
    switch: float = 0.0
    replay: float = 0.0
    merged: bool = False
    draft_fixed: float = 0.001
    draft_each: float = 0.0
    noise: float = 0.15
    outliers: float = 0.01
    first: float = 1.3

    def draft_cost(self, n_asked: int) -> float:
        """What asking for so many tokens costs, in plain decodes."""
        return self.draft_fixed + self.draft_each * n_asked


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
    position, n_pending, cost, plain_cost = 0, 0, 0.0, 0.0
    trace: list[tuple[int, float, int]] = []
    by_regime: dict[str, tuple[int, float]] = {}
    regimes = getattr(text, "regimes", None)
    policy.begin()
    policy.calibrate([clock.measure_trial(n) for n in policy.calibration(1 + room)])
    while position < n_tokens:
        slow = 1.0 + machine.drift * position
        n_asked = policy.ask(room)
        draft, draft_cost = NO_DRAFT, 0.0
        if n_asked:
            draft = text.propose(position, n_asked)
            draft_cost = machine.draft_cost(n_asked)
        n_verified = policy.choose(draft, clock.measure(draft_cost * slow))
        n_accepted = text.accept(draft, n_verified) if n_verified else 0
        followed = text.follow(position, 1 + n_accepted)
        n_decoded = n_pending + 1 + n_verified
        decode_cost = clock.decode_cost(n_decoded)
        rollback_cost = 0.0
        n_kept, n_pending = n_pending + 1 + n_accepted, 0
        if n_accepted < n_verified:
            rollback_cost = machine.replay * machine.curve(n_kept)
            if machine.merged:
                n_pending = n_kept
                if n_pending > MOST_PENDING:
                    rollback_cost, n_pending = machine.curve(n_kept), 0
        policy.learn(
            Outcome(
                followed,
                clock.measure_decode(decode_cost * slow, n_decoded),
                clock.measure(rollback_cost * slow),
                n_pending,
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
class FixedWidth(VerifyAll):
    """Verifies every draft of up to ``width`` tokens, as ``--draft N --gate off`` does."""

    width: int

    def ask(self, room: int) -> int:
        """The width."""
        return min(self.width, room)


@define(eq=False)
class _Clock:
    """Noisy measurements of costs."""

    machine: Machine
    rng: random.Random
    _seen: set[int] = field(factory=set)
    _n_last: int = 1

    def decode_cost(self, n_positions: int) -> float:
        """What the next decode costs, without noise."""
        switched, self._n_last = n_positions != self._n_last, n_positions
        return self.machine.curve(n_positions) + self.machine.switch * switched

    def measure(self, cost: float) -> float:
        machine = self.machine
        factor = math.exp(self.rng.gauss(0.0, machine.noise))
        if self.rng.random() < machine.outliers:
            factor *= 5.0
        return cost * factor * machine.plain_s

    def measure_trial(self, n: int) -> Trial:
        draft_s = self.measure(self.machine.draft_cost(n))
        return Trial(n, self.measure_decode(self.decode_cost(n), n), draft_s)

    def measure_decode(self, cost: float, n_positions: int) -> float:
        factor = 1.0 if n_positions in self._seen else self.machine.first
        self._seen.add(n_positions)
        return factor * self.measure(cost)
