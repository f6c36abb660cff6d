"""The gate: draft where it pays, as wide as it pays, and never lose more than is allowed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from bmoe_core.gate.allowance import Allowance
from bmoe_core.gate.asking import CHEAP, Asking, DraftCosts
from bmoe_core.gate.chances import by_rung, chances_by_rung, cut, is_alike
from bmoe_core.gate.costs import OUTLIER, DecodeCosts
from bmoe_core.gate.ladder import MAX_WIDTH, N_MORE, RUNG_OF, RUNGS
from bmoe_core.gate.record import GateRecord
from bmoe_core.gate.repeats import MOST_REPEATED, Repeats
from bmoe_core.gate.shadows import Shadows
from bmoe_core.gate.stakes import AT_EASE, CAUTION, account_grows
from bmoe_core.gate.survival import Survival
from bmoe_core.policy import Outcome, Trial
from bmoe_core.steps import NO_DRAFT, Draft

MARGIN = 0.02
"""Share by which a step has to beat the plain rate, beside the doubt about that rate: the best of
several estimates looks better than it is."""
CALIBRATION = (4, 4, 2, 2, 1, 1, 1, 1)
"""Positions of the decodes that the end of the first prompt is read in: about seven plain decodes
more than to read it at once. Of two of the same width the second one has no switch in it."""
HOPE = 6.0
"""Right tokens that are imagined beside those seen of each stretch, where a costly source is asked:
what its next draft is worth is known when it is there, and only then are any verified."""
DEVIATIONS = 1.5
"""Standard deviations below its estimate at which a plain decode is booked as a gain."""
HOPELESS = 0.01
"""A chance below which further tokens are not looked at."""
RESERVE = 7.5
"""Plain decodes of the account that are kept for each unit of noise in the times, 0.75 where they
vary by a tenth: for what was lost unseen."""
LITTLE = 0.02
"""Plain decodes that asking for one more rung may cost where the source is asked anyway: the tokens
tell how long its drafts stay right, verified or not."""
OWN_WEIGHT = 0.1
"""Weight of the newest step in the seconds that the gate itself takes."""
MOST_RESTED = 16
"""Plain decodes in a row that are looked at together: beside a decode of a millisecond, a look at
each would cost some hundredths of it, most of that to get the code into the processor's caches."""
FREE = (0.0,) * len(RUNGS)
"""What drafting costs once it is done."""


@define(eq=False)
class CostGate:
    """Decides for one source on one target; see :class:`bmoe_core.policy.Policy`.

    What it learned of costs outlives a generation. What it learned of drafts does not: how they
    fare is a matter of the text, and one whose end they failed on says little about the next.

    Attributes:
        costs: what decodes cost.
        survival: how drafts fare.
        allowance: what may still be lost.
    """

    _record: GateRecord = field(factory=GateRecord, init=False)
    costs: DecodeCosts = field(factory=DecodeCosts, init=False)
    survival: Survival = field(init=False)
    allowance: Allowance = field(factory=Allowance, init=False)
    _shadows: Shadows = field(init=False)
    _draft_costs: DraftCosts = field(factory=DraftCosts, init=False)
    _asking: Asking = field(init=False)
    _own_s: float = field(default=0.0, init=False)
    """Seconds that it takes to decide about a draft that costs something."""
    _n_last: int = field(default=0, init=False)
    """Positions of the last decode."""
    _rested: list[float] = field(factory=list, init=False)
    """Seconds of the latest plain decodes, where no draft was made: not looked at yet."""
    _n_asked_in_vain: int = field(default=0, init=False)
    _in_vain_s: float = field(default=0.0, init=False)
    """In how many of those steps the source was asked, and the seconds that took."""
    _n_pending: int = field(default=0, init=False)
    _repeats: Repeats = field(init=False)
    # Of the step under way:
    _asked_rung: int = field(default=0, init=False)
    _is_cheap: bool = field(default=False, init=False)
    _draft: Draft = field(default=NO_DRAFT, init=False)
    _draft_s: float = field(default=0.0, init=False)
    _draft_charge: float = field(default=0.0, init=False)
    _rung: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._follow_new_drafts()

    def _follow_new_drafts(self) -> None:
        self.survival = Survival()
        self._shadows = Shadows(self.survival, self.costs)
        self._asking = Asking()
        self._repeats = Repeats()

    @property
    def record(self) -> GateRecord:
        """What it did in this generation."""
        self._catch_up()
        return self._record

    def begin(self) -> None:
        """A generation begins."""
        self._catch_up()
        self._record = GateRecord()
        self.costs.begin()
        self.allowance.begin()
        self._follow_new_drafts()
        self._n_last = 0
        self._n_pending = 0

    def calibration(self, most: int) -> Sequence[int]:
        """A few decodes where nothing is known yet, wide ones first, which settle the buffers."""
        is_known = self.costs.plain_s is not None
        return () if is_known or most < max(CALIBRATION) else CALIBRATION

    def calibrate(self, trials: Sequence[Trial]) -> None:
        """Learn what those took, the plain ones first: they are the unit of the others.

        The time of the first one is left out: memory is touched there that was never used before.
        """
        costs = self.costs
        settled = [
            (trial, trial.n_positions != before.n_positions)
            for before, trial in itertools.pairwise(trials)
        ]
        for trial, is_switched in sorted(settled, key=lambda pair: (pair[0].n_positions, pair[1])):
            if trial.n_positions == 1:
                costs.observe_plain(trial.decode_s, switched=is_switched)
            else:
                rung = RUNG_OF[trial.n_positions - 1]
                costs.observe_verify(rung, trial.decode_s, switched=is_switched)
        for trial in trials:
            self._draft_costs.observe(RUNG_OF[trial.n_positions], trial.draft_s, in_step=True)
            self._shadows.compare(trial.draft, trial.followed, declined=False)
            self._shadows.forget()

    def ask(self, room: int) -> int:
        """How many tokens to ask for: all that cost next to nothing, or as many as should pay."""
        is_at_ease = self.allowance.left >= AT_EASE
        if self._repeats.n_left and is_at_ease and room >= RUNGS[self._asked_rung]:
            return RUNGS[self._asked_rung]
        self._asked_rung, self._draft_charge, self._repeats.n_left = 0, 0.0, 0
        asking = self._asking
        if asking.is_put_off or (not self._is_cheap and asking.is_waiting):
            asking.skip()
            return 0
        plain_s = self.costs.plain_s
        if room < 1 or plain_s is None:
            return 0
        drafts = self._draft_costs
        top = min(drafts.highest, RUNG_OF[min(room, MAX_WIDTH)])
        self._is_cheap = not drafts.known or drafts.is_cheap(top, plain_s)
        if self._is_cheap:
            self._asked_rung = top
        elif self.costs.edge is not None:
            self._catch_up()
            self._asked_rung = self._rung_worth_asking(top)
        if not self._asked_rung:
            asking.skip()
        return RUNGS[self._asked_rung]

    def _rung_worth_asking(self, top: int) -> int:
        """The rung to ask for: the best one for a good draft, or 0: let the source be."""
        drafts, own_s, plain_s = self._draft_costs, self._own_s, self.costs.plain_s
        assert plain_s is not None
        draft_costs = [(drafts.seconds(rung) + own_s) / plain_s for rung in range(top + 1)]
        chances = by_rung(self.survival.average(HOPE))
        most = self._most()
        if self.costs.bound[1] + draft_costs[1] + self._switch_to(1) > most:
            # Nothing could be verified, so there is no use in looking.
            self._asking.put_off()
            return 0
        best, _, _ = self._best_rung(chances, top, draft_costs, most)
        # What holds out no hope is still asked now and then: the text may change.
        rung = max(best, 1)
        if not self._asking.is_due(draft_costs[rung]):
            return 0
        while rung < top and draft_costs[rung + 1] - draft_costs[rung] < LITTLE:
            rung += 1
        return rung

    def choose(self, draft: Draft, draft_s: float) -> int:
        """How many of the draft's tokens to verify; 0: it goes along as a shadow."""
        if self._repeats.take(draft, self._draft):
            self._book_draft(draft_s, draft_s)
            return RUNGS[self._rung]
        before, rung_before = self._draft, self._rung
        self._draft, self._rung, self._draft_s = NO_DRAFT, 0, 0.0
        if not self._asked_rung:
            return 0
        if len(draft.tokens) > MAX_WIDTH:
            draft = cut(draft)
        self._draft, gain = draft, 0.0
        self._charge_draft(draft_s)
        can_pay, edge = True, self.costs.edge
        if draft.tokens and edge is not None:
            self._catch_up()
            most = self._most()
            bound = self.costs.bound
            can_pay = most >= bound[1] or most >= min(bound[2:])
            if can_pay:
                gain = self._choose_rung(draft, most, MARGIN + edge)
        self._asking.learn(self._draft_charge, gain)
        if not can_pay:
            self._asking.put_off()
        if self._is_cheap and 0 < self._rung == rung_before and is_alike(draft, before):
            self._repeats.n_left = self._repeatable()
        return RUNGS[self._rung]

    def _repeatable(self) -> int:
        """How often this step may be taken again without a look at it."""
        left, rung = self._left(), self._rung
        if left < AT_EASE or not self.costs.is_explored(rung, len(self._draft.tokens)):
            return 0
        return min(MOST_REPEATED, int(left / self.costs.bound[rung]))

    def _choose_rung(self, draft: Draft, most: float, edge: float) -> float:
        """Take the best rung that costs ``most`` at most, if it beats the plain rate by ``edge``.

        What the draft cost is not counted: it is spent, whatever becomes of it.

        Returns:
            The plain decodes that it should gain; 0.0 where none is taken.
        """
        chances = chances_by_rung(draft, self.survival)
        top = RUNG_OF[len(draft.tokens)]
        rung, rate, gain = self._best_rung(chances, top, FREE, most)
        affordable = self._affordable_rung(rung, draft)
        if 0 < affordable < rung:
            rung, rate, gain = self._best_rung(chances, affordable, FREE, most)
        if affordable and rate * (1.0 + self._switch_to(0)) > 1.0 + edge:
            self._rung = rung
            return gain
        return 0.0

    def _charge_draft(self, draft_s: float) -> None:
        drafts, rung = self._draft_costs, self._asked_rung
        in_step, expected = self._asking.in_step, drafts.seconds(rung)
        is_outlier = in_step and drafts.known and draft_s > OUTLIER * expected
        self._book_draft(draft_s, OUTLIER * expected if is_outlier else draft_s)
        drafts.observe(rung, draft_s, in_step=in_step)

    def _book_draft(self, draft_s: float, charged_s: float) -> None:
        assert self.costs.plain_s is not None
        charge = charged_s / self.costs.plain_s
        # What asking at every step may cost is a share of its own, not a loss.
        self._draft_charge = max(0.0, charge - CHEAP) if self._is_cheap else charge
        self._draft_s = draft_s

    def _affordable_rung(self, rung: int, draft: Draft) -> int:
        """The highest rung up to ``rung`` that is not too high a stake for the account."""
        left = self._left()
        if left >= AT_EASE or not rung:
            return rung
        if left <= 0.0:
            return 0
        cautious = chances_by_rung(draft, self.survival, CAUTION)
        while rung and not account_grows(left, cautious, rung, self._switch_to(rung), self.costs):
            rung -= 1
        return rung

    def _left(self) -> float:
        """Plain decodes that may still be staked in this step."""
        return self.allowance.left - self._draft_charge - RESERVE * self.costs.noise

    def _most(self) -> float:
        """What a step may cost that brings one token alone, as where nothing is accepted."""
        return self._left() + 1.0 - self.costs.after_rejection(1)

    def _best_rung(
        self, chances: Sequence[float], top: int, draft_costs: Sequence[float], most: float
    ) -> tuple[int, float, float]:
        """The rung of the highest rate that costs ``most`` at most, its rate, and its gain.

        The rate is (1 + S_1 + ... + S_n) / cost, in tokens a plain decode: S_j is the chance that
        the first j tokens are all accepted; the cost is that of the draft, of the verify decode,
        and of decoding anew what is kept, where a rejection needs that.
        """
        costs = self.costs
        low, bound, rejects = costs.low, costs.bound, costs.merges or costs.replay > 0.0
        switch, n_unswitched = costs.switch, self._n_last - 1 - self._n_pending
        best, best_rate, best_gain = 0, 0.0, 0.0
        survival, n_tokens, replayed = 1.0, 1.0, 0.0
        for rung in range(1, min(top, costs.highest) + 1):
            chance, n_more = chances[rung], N_MORE[rung]
            before = survival
            survival *= chance if n_more == 1 else chance**n_more
            lost = before - survival
            # chance + ... + chance^n_more, a geometric series unless the chance is 1.
            n_tokens += chance * lost / (1.0 - chance) if lost else before * n_more
            if rejects:
                replayed += lost * costs.after_rejection(rung)
            beside = draft_costs[rung]
            if RUNGS[rung] != n_unswitched:
                beside += switch
            if bound[rung] + beside <= most:
                cost = low[rung] + beside + replayed
                if n_tokens > best_rate * cost:
                    best, best_rate, best_gain = rung, n_tokens / cost, n_tokens - cost
            if survival < HOPELESS:
                break
        return best, best_rate, best_gain

    def learn(self, outcome: Outcome) -> None:
        """See what came of the step: book it, then learn from it."""
        if not self._draft.tokens and not self._draft_charge and self._is_undisturbed:
            self._rested.append(outcome.decode_s)
            self._n_asked_in_vain += self._asked_rung > 0
            self._in_vain_s += self._draft_s
            if len(self._rested) == MOST_RESTED:
                self._catch_up()
            return
        followed, rung, record = outcome.followed, self._rung, self._record
        spent_s = outcome.decode_s + outcome.rollback_s
        n_tokens = len(followed)
        n_kept = n_tokens if n_tokens <= RUNGS[rung] else None
        plain_s = self.costs.plain_s
        booked, saved_s = -self._draft_charge, -self._draft_s
        if self._asked_rung and not self._is_cheap:
            booked -= self._learn_own_cost(outcome.policy_s)
        # The decode after a verify decode may be slower for it, and is booked with it.
        if plain_s is not None and (rung or self._n_last > 1):
            booked += n_tokens * (self.costs.mean - DEVIATIONS * self.costs.doubt)
            booked -= self.costs.charge(rung, self._n_pending, n_kept, spent_s)
            booked += self.costs.waiting(self._n_pending) - self.costs.waiting(outcome.n_pending)
            saved_s += n_tokens * plain_s - spent_s
        self.allowance.settle(n_tokens, booked)
        self._repeats.settle(booked, outcome.n_pending)
        if self._repeats.is_one:
            self._repeats.decided += followed
        else:
            self._learn_costs(outcome, rung, n_kept)
            record.n_declined_rightly += self._compare(followed)
        self._n_pending = outcome.n_pending
        record.n_steps += 1
        record.n_asked_steps += self._asked_rung > 0
        record.n_drafted_steps += rung > 0
        record.n_verified += RUNGS[rung]
        record.n_declined += not rung and len(self._draft.tokens) > 0
        record.spent_s += spent_s + self._draft_s
        record.saved_s += saved_s

    def _compare(self, followed: Sequence[int]) -> int:
        """Learn how drafts fared, and how many declined ones did not pay."""
        n_rightly, decided = 0, self._repeats.decided
        if decided:
            n_rightly = self._shadows.compare(NO_DRAFT, decided, declined=False)
            decided.clear()
        return n_rightly + self._shadows.compare(self._draft, followed, declined=not self._rung)

    def _learn_own_cost(self, seconds: float) -> float:
        """The plain decodes that it cost to think about a costly draft, and learn from it."""
        assert self.costs.plain_s is not None
        if self._own_s:
            seconds = min(seconds, OUTLIER * self._own_s)
        self._own_s += (OWN_WEIGHT if self._own_s else 1.0) * (seconds - self._own_s)
        return seconds / self.costs.plain_s

    @property
    def _is_undisturbed(self) -> bool:
        """Whether no earlier draft has to do with this step."""
        is_after_draft = self._n_last != 1 or self._n_pending or self._shadows.any
        return self.costs.warm and not is_after_draft

    def _catch_up(self) -> None:
        """Book the steps in which nothing but a plain decode happened, and learn from them."""
        rested, record = self._rested, self._record
        if rested:
            for seconds in rested:
                self.costs.observe_plain(seconds, switched=False)
            self.allowance.settle(len(rested), 0.0)
            record.n_steps += len(rested)
            record.n_asked_steps += self._n_asked_in_vain
            record.spent_s += sum(rested) + self._in_vain_s
            record.saved_s -= self._in_vain_s
            self._n_asked_in_vain, self._in_vain_s = 0, 0.0
            rested.clear()

    def _learn_costs(self, outcome: Outcome, rung: int, n_kept: int | None) -> None:
        costs, n_more = self.costs, RUNGS[rung] + self._n_pending
        switched, self._n_last = self._n_last not in (0, 1 + n_more), 1 + n_more
        costs.merges |= outcome.n_pending > 0
        if n_more:
            # With tokens decoded anew beside it was a wider decode, of a width that may be no rung.
            if n_more <= MAX_WIDTH and RUNGS[RUNG_OF[n_more]] == n_more:
                costs.observe_verify(RUNG_OF[n_more], outcome.decode_s, switched=switched)
            if rung and n_kept is not None:
                costs.observe_rollback(n_kept, outcome.rollback_s)
        else:
            costs.observe_plain(outcome.decode_s, switched=switched)

    def _switch_to(self, rung: int) -> float:
        """What it costs beside that a decode of that rung has other positions than the last one."""
        n = 1 + RUNGS[rung] + self._n_pending
        return self.costs.switch if n != self._n_last else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The record of this generation, and the costs learned, as JSON-ready values."""
        return self.record.to_dict() | {
            "plain_s": self.costs.plain_s,
            "cost_by_positions": {str(n): cost for n, cost in self.costs.measured.items()},
            "rollback_share": self.costs.replay,
        }
