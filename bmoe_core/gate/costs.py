"""What target decodes cost, learned from their times.

Times are kept as a level, the seconds of a plain decode, and for each rung a ratio to it. As the
context grows, or another program takes its share of the machine, everything gets slower together:
the level follows, and the ratios of widths that were not tried for long stay right.
"""

from __future__ import annotations

import math
import statistics

from attrs import define, field

from bmoe_core.gate.ladder import RUNG_OF, RUNGS, growth

OUTLIER = 2.0
"""A time is taken for at most this many times the expected one: if it is no accident, the
expectation comes up to it within a few decodes."""
ACCIDENT = 1.3
"""A step is charged at most this many times what was expected. Accidents happen to plain decodes
too, and one charged in full would spend the whole allowance."""
LOG_ACCIDENT = math.log(ACCIDENT)
"""The most that one decode of the warm-up is taken to be off by: of an accident among them."""
N_WARM_UP = 3
"""Plain decodes, at least, before anything is judged; their median is the first level."""
MAX_WARM_UP = 32
"""As many are taken where they are so noisy that the level is in doubt by more than WARM_DOUBT."""
WARM_DOUBT = 0.03
"""The doubt about the level with which judging begins."""
ROUGH_DOUBT = 0.06
"""The doubt with which what pays by far is seen to pay."""
BY_FAR = 10.0
"""How many times that doubt it has to pay by."""
PRIOR_SLOPE = 0.4
"""Plain decodes that a further position is taken to cost before any width was tried: about that of
a small model on two cores, where a decode waits for arithmetic. Elsewhere it is less."""
FIRST_NOISE = 0.1
"""Standard deviation, at first, of the logarithm of a decode's time around what is expected."""
LEAST_NOISE = 0.02
"""The least it is taken for."""
NOISE_WEIGHT = 0.05
"""Weight of the newest decode in the noise."""
MEAN_WEIGHT = 0.02
"""Weight of the newest plain decode in their mean."""
SWITCH_PRIOR = 1.0
"""Decodes that the presumption counts for that a switch costs nothing."""
SWITCH_WEIGHT = 0.1
"""Least weight of the newest such decode in what a switch costs."""
SWITCHED_NOISE = 4.0
"""Variance of the time of a decode after a switch, in those of others, where its width was seen
without one: it says more about the switch."""
LEVEL_DRIFT = 0.01**2
"""Variance that the logarithm of the level gains with each decode: a context that grows."""
LEVEL_JUMP = 0.1**2
"""Variance that it gains with a new generation, whose context is another one."""
LEVEL_SURPRISE = 2.0
"""Standard deviations that a plain decode's time is taken for at most, by the level: one that lies
further off is an accident, more likely than not."""
LEVEL_EXCESS = 0.02
"""Share of the square of what lies beyond that by which the level's variance grows: if it was the
machine that changed, the next decodes count for more."""
LEVEL_SHARE = 0.025
"""Share of a well-known width's surprise that the level takes: drift while nothing is plain."""
N_WELL_KNOWN = 8
"""Decodes after which a width is well known."""
RATIO_PRIOR = 0.3**2
"""Variance of the logarithm of a ratio that was never measured."""
RATIO_DRIFT = 0.025**2
"""Variance that it gains with each decode of another width, so that a width which was unlucky
looks worth another try after some hundred decodes."""
UNTRIED = 0.9
"""What a width that was never tried may well cost, of what the line between its neighbours says."""
OPTIMISM = 1.5
"""Standard deviations below its estimate that a width may well cost: what is uncertain is tried."""
SURPRISE = 1.5
"""Standard deviations above its estimate that a width's time is taken for at most: an accident must
not keep a width from being tried again."""
FIRST_DOUBT = 0.25**2
"""Variance beside the noise of the first decode of a width after one of another, which may have to
build and allocate what later ones use."""
N_REDRAWN = 8
"""Decodes of a well-known width, which moves little, for each time that its neighbours that were
never measured are derived from it anew."""
N_AGING = 16
"""Decodes after which the ratios' variances are brought up to date."""


@define(eq=False)
class DecodeCosts:
    """The time of a verify decode at each rung, and what taking a rejection back adds to it.

    Level and ratios are Kalman filters on the logarithm of the time: an observation moves an
    estimate by its variance / (its variance + the noise's), so that the first ones count most. The
    covariance of level and ratios is left out, and to make up for that the level is moved by plain
    decodes mainly.

    Measured ratios are not made to grow with the width. They do not have to: a kernel for four
    positions at a time makes four cheaper than three.

    Attributes:
        plain_s: seconds of a plain decode; None before the first. The middle of its distribution,
            which has a tail.
        warm: whether enough plain decodes were seen to judge anything by.
        mean: what a plain decode takes on average, in those: above 1 by the tail, of which one
            decode counts for OUTLIER at most.
        ratio: for each rung, the time of its decode in plain decodes.
        low: what it may well cost: the same, less OPTIMISM standard deviations.
        bound: the same, and for rungs never tried an upper bound: to decode twice as many
            positions at once costs no more than two decodes.
        replay: seconds to take a rejection back, as a share of decoding anew what is kept: about
            1 where a target does that, about 0 where a memory can be cut.
        switch: plain decodes that a decode of other positions than the last one's costs beside: its
            graph is built anew, and what the processor holds near is of little use.
        merges: whether it decodes them anew along with the next decode instead.
    """

    plain_s: float | None = field(default=None, init=False)
    warm: bool = field(default=False, init=False)
    mean: float = field(default=1.0, init=False)
    ratio: list[float] = field(init=False)
    low: list[float] = field(init=False)
    bound: list[float] = field(init=False)
    replay: float = field(default=0.0, init=False)
    switch: float = field(default=0.0, init=False)
    merges: bool = field(default=False, init=False)
    _warm_up: list[float] = field(factory=list, init=False)
    _noise: float = field(default=FIRST_NOISE**2, init=False)
    _level_variance: float = field(default=FIRST_NOISE**2, init=False)
    _variances: list[float] = field(init=False)
    _n_seen: list[int] = field(init=False)
    _is_steady: list[bool] = field(init=False)
    """For each rung, whether it was seen without a switch."""
    _n_switched: int = field(default=0, init=False)
    _mean_switch: float = field(default=0.0, init=False)
    _n_rejected: int = field(default=0, init=False)
    _n_unaged: int = field(default=0, init=False)
    _widest: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.ratio = [1.0 + PRIOR_SLOPE * n for n in RUNGS]
        self._variances = [0.0] + [RATIO_PRIOR] * (len(RUNGS) - 1)
        self._n_seen = [0] * len(RUNGS)
        self._is_steady = [False] * len(RUNGS)
        self.low = list(self.ratio)
        self.bound = [max(ratio, 2.0) for ratio in self.ratio]
        self.bound[0] = 1.0

    @property
    def doubt(self) -> float:
        """Standard deviation of the logarithm of ``plain_s``: about its relative error."""
        return math.sqrt(self._level_variance)

    @property
    def edge(self) -> float | None:
        """By what share a step has to beat the plain rate, for the doubt about that rate.

        None where too little is known to judge anything.
        """
        if self.warm:
            return self.doubt
        if len(self._warm_up) < N_WARM_UP or self.doubt > ROUGH_DOUBT:
            return None
        return BY_FAR * self.doubt

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a decode's time around what is expected."""
        return math.sqrt(self._noise)

    @property
    def highest(self) -> int:
        """The highest rung that may be tried: at most twice the widest decode so far."""
        return growth(self._widest)

    @property
    def measured(self) -> dict[int, float]:
        """For each number of positions that a verify decode had, its time in plain decodes."""
        return {1 + RUNGS[i]: self.ratio[i] for i, n in enumerate(self._n_seen) if n}

    def is_well_known(self, rung: int) -> bool:
        """Whether that many decodes of a width were seen that one more tells little."""
        return self._n_seen[rung] > N_WELL_KNOWN

    def is_explored(self, rung: int, n_tokens: int) -> bool:
        """Whether it is well known, and the next one known if a draft of so many tokens has it."""
        return self.is_well_known(rung) and self._n_seen[min(rung + 1, RUNG_OF[n_tokens])] > 0

    def begin(self) -> None:
        """A new generation: its context is longer or shorter than the last one's."""
        self._level_variance += LEVEL_JUMP

    def waiting(self, n_pending: int) -> float:
        """What tokens that wait to be decoded anew add to the next decode, in plain decodes."""
        rung = RUNG_OF[n_pending]
        if RUNGS[rung] == n_pending:
            return self.ratio[rung] - 1.0
        share = (n_pending - RUNGS[rung]) / (RUNGS[rung + 1] - RUNGS[rung])
        return self.ratio[rung] + share * (self.ratio[rung + 1] - self.ratio[rung]) - 1.0

    def after_rejection(self, rung: int) -> float:
        """What it costs, in plain decodes, that the first wrong token is the last one of ``rung``.

        Tokens before it are decoded anew: at once, or along with the next decode.
        """
        cost = self.replay * self.ratio[rung - 1]
        return cost + self.ratio[rung] - 1.0 if self.merges else cost

    def charge(self, rung: int, n_pending: int, n_kept: int | None, seconds: float) -> float:
        """The plain decodes that a step is charged for its time.

        Args:
            rung: of its decode.
            n_pending: tokens that it decoded anew beside.
            n_kept: positions kept in the rollback after it, or None where there was none.
            seconds: of both.
        """
        assert self.plain_s is not None
        expected = self.bound[rung] + self.waiting(n_pending) + self.switch
        if n_kept is not None:
            expected += self.replay * self.ratio[RUNG_OF[n_kept - 1]]
        return min(seconds / self.plain_s, ACCIDENT * expected)

    def observe_plain(self, seconds: float, *, switched: bool) -> None:
        """Learn from a plain decode.

        Args:
            seconds: its time.
            switched: the decode before it had more positions. It tells what that costs, and little
                about plain decodes.
        """
        if not self.warm and not (switched and self._warm_up):
            self._warm_to(seconds)
            return
        assert self.plain_s is not None
        if switched:
            self._learn_switch(seconds / self.plain_s - 1.0)
            return
        self._age()
        logarithm = math.log(_clipped(seconds / self.plain_s))
        self.mean += MEAN_WEIGHT * (min(seconds / self.plain_s, OUTLIER) - self.mean)
        gain = self._level_variance / (self._level_variance + self._noise)
        most = LEVEL_SURPRISE * math.sqrt(self._level_variance + self._noise)
        self.plain_s *= math.exp(gain * min(max(logarithm, -most), most))
        self._level_variance *= 1.0 - gain
        excess = abs(logarithm) - most
        if excess > 0.0:
            self._level_variance += LEVEL_EXCESS * excess**2
        square = min(logarithm**2, 9.0 * self._noise)
        noise = self._noise + NOISE_WEIGHT * (square - self._noise)
        self._noise = max(noise, LEAST_NOISE**2)

    def _learn_switch(self, beside: float) -> None:
        self._n_switched += 1
        weight = max(1.0 / (self._n_switched + SWITCH_PRIOR), SWITCH_WEIGHT)
        self._mean_switch += weight * (min(max(beside, -1.0), 1.0) - self._mean_switch)
        self.switch = max(self._mean_switch, 0.0)

    def _warm_to(self, seconds: float) -> None:
        self._warm_up.append(seconds)
        level = self.plain_s = statistics.median(self._warm_up)
        logarithms = [math.log(each / level) for each in self._warm_up]
        n = len(logarithms)
        # The prior counts for two observations; the median takes one.
        squares = sum(min(abs(each), LOG_ACCIDENT) ** 2 for each in logarithms)
        self._noise = (2.0 * FIRST_NOISE**2 + squares) / (1.0 + n)
        self._level_variance = self._noise / n
        self.warm = n == MAX_WARM_UP or (n >= N_WARM_UP and self.doubt <= WARM_DOUBT)

    def observe_verify(self, rung: int, seconds: float, *, switched: bool) -> None:
        """Learn from a verify decode.

        Args:
            rung: of the decode.
            seconds: its time, rollback not included.
            switched: the decode before it had another number of positions.
        """
        assert self.plain_s is not None
        self._age()
        noise = self._noise
        if switched:
            if self._is_steady[rung]:
                self._learn_switch(seconds / self.plain_s - self.ratio[rung])
                noise *= SWITCHED_NOISE
            seconds -= self.switch * self.plain_s
        else:
            self._is_steady[rung] = True
        is_first = not self._n_seen[rung]
        self._n_seen[rung] += 1
        self._widest = max(self._widest, rung)
        variance = self._variances[rung]
        if is_first and switched:
            noise += FIRST_DOUBT
        gain = variance / (variance + noise)
        surprise = _clipped(seconds / (self.plain_s * self.ratio[rung]))
        surprise = min(surprise, math.exp(SURPRISE * math.sqrt(variance + noise)))
        self.ratio[rung] *= surprise**gain
        self._variances[rung] = variance * (1.0 - gain)
        if self.ratio[rung] < 1.0:
            # No decode is cheaper than a narrower one: it is the level that was too high.
            self.plain_s *= self.ratio[rung]
            self.ratio[rung] = 1.0
        if self.is_well_known(rung):
            self.plain_s *= surprise**LEVEL_SHARE
        self.low[rung], self.bound[rung] = self._likely_low(rung), self.ratio[rung]
        if not self.is_well_known(rung) or self._n_seen[rung] % N_REDRAWN == 0:
            self._draw_neighbours(rung)

    def observe_rollback(self, n_kept: int, seconds: float) -> None:
        """Learn from a rollback that kept ``n_kept`` positions of the last decode."""
        assert self.plain_s is not None
        share = seconds / (self.plain_s * self.ratio[RUNG_OF[n_kept - 1]])
        self._n_rejected += 1
        weight = max(1.0 / self._n_rejected, 0.1)
        self.replay += weight * (min(share, OUTLIER) - self.replay)

    def _age(self) -> None:
        self._level_variance += LEVEL_DRIFT
        self._n_unaged += 1
        if self._n_unaged == N_AGING:
            self._n_unaged = 0
            for rung in range(1, len(RUNGS)):
                aged = self._variances[rung] + N_AGING * RATIO_DRIFT
                self._variances[rung] = min(aged, RATIO_PRIOR)
                if self._n_seen[rung]:
                    self.low[rung] = self._likely_low(rung)

    def _likely_low(self, rung: int) -> float:
        return max(self.ratio[rung] * math.exp(-OPTIMISM * math.sqrt(self._variances[rung])), 1.0)

    def _draw_neighbours(self, rung: int) -> None:
        """Derive from a ratio that changed those of its neighbours that were never measured."""
        left, seen = rung - 1, self._n_seen
        while left and not seen[left]:
            left -= 1
        self._draw_line(left, rung, range(left + 1, rung), self.ratio[rung])
        if rung == self._widest:
            beyond = range(rung + 1, len(RUNGS))
            self._draw_line(0, rung, beyond, 2.0 * self.ratio[rung])
            return
        right = rung + 1
        while not seen[right]:
            right += 1
        self._draw_line(rung, right, range(rung + 1, right), self.ratio[right])

    def _draw_line(self, left: int, right: int, rungs: range, bound: float) -> None:
        """Put the ratios of ``rungs`` on the line through two measured ones."""
        if not rungs:
            return
        ratio = self.ratio
        slope = max(ratio[right] - ratio[left], 0.0) / (RUNGS[right] - RUNGS[left])
        for rung in rungs:
            ratio[rung] = ratio[left] + slope * (RUNGS[rung] - RUNGS[left])
            self.low[rung] = max(UNTRIED * ratio[rung], 1.0)
            self.bound[rung] = max(ratio[rung], bound)


def _clipped(surprise: float) -> float:
    return min(max(surprise, 1.0 / OUTLIER), OUTLIER)
