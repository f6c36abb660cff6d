"""What asking a source costs, and whether one that costs something is worth asking."""

from __future__ import annotations

from attrs import define, field

from bmoe_core.gate.costs import OUTLIER
from bmoe_core.gate.ladder import MAX_WIDTH, RUNG_OF, RUNGS

PROBE_SHARE = 0.005
"""Share of the plain time that may go into asking a source that does not pay."""
CHEAP = 0.0075
"""Share of a plain decode below which a source is asked at every step: a lookup beside all but the
smallest models. It is no loss that the allowance has to cover, but a share of its own."""
N_PROBE = 2
"""Askings in a row where a source that was let be is tried again: at the first it catches up on
what it missed, the second shows what it costs when in step."""
N_PUT_OFF = 16
"""Steps for which a source that cannot be afforded is not thought of."""
GAIN_MEMORY = 0.8
"""Weight that the gain of an earlier asking keeps for each later one."""
GAIN_PRIOR = 2.0
"""Askings that the presumption counts for that they bring nothing."""
HIGHEST_AFTER = tuple(RUNG_OF[min(max(2 * n, 1), MAX_WIDTH)] for n in RUNGS)
"""For each rung, the highest that may be asked for after it: of twice its tokens at most."""


@define(eq=False)
class DraftCosts:
    """The seconds of asking for a draft, for each rung asked for."""

    _seconds: list[float | None] = field(init=False)
    _n_seen: list[int] = field(init=False)
    _widest: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._seconds = [None] * len(RUNGS)
        self._n_seen = [0] * len(RUNGS)

    @property
    def known(self) -> bool:
        """Whether it was ever asked."""
        return self._widest > 0

    @property
    def highest(self) -> int:
        """The highest rung that may be asked for: at most twice the tokens of the last such."""
        return HIGHEST_AFTER[self._widest]

    def is_cheap(self, rung: int, plain_s: float) -> bool:
        """Whether asking for so much costs no more than the share CHEAP of a plain decode.

        Of a rung above all that were asked for this is not known: it is taken for as cheap as the
        highest of those, which it exceeds by a factor of two at most.
        """
        return self.seconds(min(rung, self._widest)) <= CHEAP * plain_s

    def seconds(self, rung: int) -> float:
        """Expected seconds; on a line through what is known where that rung was never asked for.

        Where one rung is all that is known, as much as that: asking for more may cost nothing.
        """
        known = self._seconds[rung]
        if known is not None:
            return known
        points = [(RUNGS[i], s) for i, s in enumerate(self._seconds) if s is not None]
        if len(points) < 2:
            return points[0][1] if points else 0.0
        right = next((i for i, (n, _) in enumerate(points) if n > RUNGS[rung]), len(points) - 1)
        (n_left, left_s), (n_right, right_s) = points[max(right - 1, 0)], points[max(right, 1)]
        slope = max(right_s - left_s, 0.0) / (n_right - n_left)
        return max(right_s + slope * (RUNGS[rung] - n_right), 0.0)

    def _without_accident(self, rung: int, seconds: float) -> float:
        """At most OUTLIER times what asking in step takes elsewhere, more tokens costing more."""
        points = zip(RUNGS, self._seconds, self._n_seen, strict=True)
        known = [s * max(RUNGS[rung] / n, 1.0) for n, s, n_seen in points if n_seen and s]
        return min(seconds, OUTLIER * max(known, default=seconds))

    def observe(self, rung: int, seconds: float, *, in_step: bool) -> None:
        """Learn from one asking.

        Args:
            rung: asked for.
            seconds: that it took.
            in_step: the source had nothing to catch up on. What takes longer for that is only
                taken where nothing else is known.
        """
        self._widest = max(self._widest, rung)
        known = self._seconds[rung]
        if known is None or (in_step and not self._n_seen[rung]):
            self._seconds[rung] = self._without_accident(rung, seconds) if in_step else seconds
        elif in_step:
            weight = max(1.0 / (1 + self._n_seen[rung]), 0.1)
            self._seconds[rung] = known + weight * (min(seconds, OUTLIER * known) - known)
        self._n_seen[rung] += in_step


@define(eq=False)
class Asking:
    """Decides when to ask a source whose drafts cost time.

    Such a source is asked at every step while that brings more than it costs. While it does not, it
    is probed: after 1, 2, 4, ... steps, up to the wait at which probes take the share
    PROBE_SHARE of the time. So over n steps that never pay, asking costs at most N_PROBE drafts for
    each doubling, and PROBE_SHARE of the time.
    """

    _gain: float = field(default=0.0, init=False)
    """Plain decodes that an asking brings, its own cost not counted."""
    _n_asked: int = field(default=0, init=False)
    _cost: float = field(default=0.0, init=False)
    """Plain decodes that the last one cost."""
    _wait: int = field(default=1, init=False)
    _n_unasked: int = field(default=1, init=False)
    _n_probes: int = field(default=N_PROBE, init=False)
    _put_off_to: int = field(default=0, init=False)
    """Steps without asking before which there is no use in thinking about it."""

    @property
    def in_step(self) -> bool:
        """Whether the source was asked in the last step too, and has nothing to catch up on."""
        return self._n_unasked == 0

    @property
    def is_put_off(self) -> bool:
        """Whether its drafts could not be afforded a few steps ago."""
        return self._n_unasked < self._put_off_to

    @property
    def is_waiting(self) -> bool:
        """Whether it did not pay and its next probe is not due, at any cost."""
        return self._n_probes <= 0 and self._gain <= self._cost and self._n_unasked + 1 < self._wait

    def is_due(self, cost: float) -> bool:
        """Whether to ask now, at a cost of ``cost`` plain decodes."""
        if self._gain > cost:
            return True
        if self._n_unasked + 1 >= self._wait:
            self._n_probes = N_PROBE
            self._wait = min(2 * self._wait, 1 + int(N_PROBE * cost / PROBE_SHARE))
        self._n_probes -= 1
        return self._n_probes >= 0

    def skip(self) -> None:
        """The source was not asked in this step."""
        self._n_unasked += 1

    def put_off(self) -> None:
        """It cannot be afforded, which a few steps will not change."""
        self._put_off_to = self._n_unasked + N_PUT_OFF

    def learn(self, cost: float, gain: float) -> None:
        """The source was asked: what that cost and is expected to bring, in plain decodes."""
        self._n_unasked = self._put_off_to = 0
        self._cost = cost
        self._n_asked += 1
        weight = max(1.0 / (GAIN_PRIOR + self._n_asked), 1.0 - GAIN_MEMORY)
        self._gain += weight * (gain - self._gain)
        if self._gain > cost:
            self._wait = 1
