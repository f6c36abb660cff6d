"""The gate: draft where it pays, as wide as it pays, and never lose more than is allowed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from bmoe_core.gate.allowance import Allowance
from bmoe_core.gate.asking import CHEAP, Asking, DraftCosts
from bmoe_core.gate.costs import OUTLIER, DecodeCosts
from bmoe_core.gate.ladder import MAX_WIDTH, RUNG_OF, RUNGS, STRETCH_OF_RUNG
from bmoe_core.gate.record import GateRecord
from bmoe_core.gate.shadows import Shadows
from bmoe_core.gate.survival import Survival
from bmoe_core.policy import Outcome
from bmoe_core.steps import NO_DRAFT, Draft

MARGIN = 0.02
"""Share by which a step has to beat the plain rate, beside the doubt about that rate: the best of
several estimates looks better than it is."""
HOPELESS = 0.01
"""A chance below which further tokens are not looked at."""
N_MORE = (0, *(after - before for before, after in itertools.pairwise(RUNGS)))
"""Draft tokens that each rung has beyond the one below."""
FREE = (0.0,) * len(RUNGS)
"""What drafting costs once it is done."""


@define(eq=False)
class CostGate:
    """Decides for one source on one target; see :class:`bmoe_core.policy.Policy`.

    What it learned outlives a generation.

    Attributes:
        record: what it did in this generation.
        costs: what decodes cost.
        survival: how drafts fare.
        allowance: what may still be lost.
    """

    record: GateRecord = field(factory=GateRecord, init=False)
    costs: DecodeCosts = field(factory=DecodeCosts, init=False)
    survival: Survival = field(factory=Survival, init=False)
    allowance: Allowance = field(factory=Allowance, init=False)
    _shadows: Shadows = field(init=False)
    _draft_costs: DraftCosts = field(factory=DraftCosts, init=False)
    _asking: Asking = field(factory=Asking, init=False)
    _was_verify: bool = field(default=False, init=False)
    # Of the step under way:
    _asked_rung: int = field(default=0, init=False)
    _is_cheap: bool = field(default=False, init=False)
    _draft: Draft = field(default=NO_DRAFT, init=False)
    _draft_s: float = field(default=0.0, init=False)
    _draft_charge: float = field(default=0.0, init=False)
    _rung: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._shadows = Shadows(self.survival, self.costs)

    def begin(self) -> None:
        """A generation begins."""
        self.record = GateRecord()
        self.costs.begin()
        self.allowance.begin()
        self._shadows.forget()
        self._was_verify = False

    def ask(self, room: int) -> int:
        """How many tokens to ask for: all that cost next to nothing, or as many as should pay."""
        self._asked_rung, self._draft_charge = 0, 0.0
        plain_s = self.costs.plain_s
        if room < 1 or plain_s is None:
            return 0
        drafts = self._draft_costs
        top = min(drafts.highest, RUNG_OF[min(room, MAX_WIDTH)])
        self._is_cheap = not drafts.known or drafts.is_cheap(top, plain_s)
        if self._is_cheap:
            self._asked_rung = top
        elif self.costs.warm:
            self._asked_rung = self._rung_worth_asking(top, plain_s)
        if not self._asked_rung:
            self._asking.skip()
        return RUNGS[self._asked_rung]

    def _rung_worth_asking(self, top: int, plain_s: float) -> int:
        """The best rung for a draft of average evidence, or 0: let the source be."""
        draft_costs = [self._draft_costs.seconds(rung) / plain_s for rung in range(top + 1)]
        by_stretch = self.survival.overall()
        chances = [by_stretch[stretch] for stretch in STRETCH_OF_RUNG]
        rung, _, _ = self._best_rung(chances, top, draft_costs, self._most())
        return rung if rung and self._asking.is_due(draft_costs[rung]) else 0

    def choose(self, draft: Draft, draft_s: float) -> int:
        """How many of the draft's tokens to verify; 0: it goes along as a shadow."""
        if len(draft.tokens) > MAX_WIDTH:
            draft = _cut(draft)
        self._draft, self._rung, self._draft_s, self._draft_charge = draft, 0, 0.0, 0.0
        if self._asked_rung:
            self._charge_draft(draft_s)
        gain = 0.0
        if draft.tokens and self.costs.warm:
            top = RUNG_OF[len(draft.tokens)]
            # What the draft cost is spent, whatever becomes of it.
            chances, most = self._chances(draft), self._most()
            rung, rate, gain_of_rung = self._best_rung(chances, top, FREE, most)
            if rate > 1.0 + MARGIN + self.costs.doubt:
                self._rung, gain = rung, gain_of_rung
        if self._asked_rung:
            self._asking.learn(self._draft_charge, gain)
        return RUNGS[self._rung]

    def _charge_draft(self, draft_s: float) -> None:
        plain_s, drafts, rung = self.costs.plain_s, self._draft_costs, self._asked_rung
        assert plain_s is not None
        in_step, expected = self._asking.in_step, drafts.seconds(rung)
        is_outlier = in_step and drafts.known and draft_s > OUTLIER * expected
        self._draft_s = draft_s
        charge = (OUTLIER * expected if is_outlier else draft_s) / plain_s
        # What asking at every step may cost is a share of its own, not a loss.
        self._draft_charge = max(0.0, charge - CHEAP) if self._is_cheap else charge
        drafts.observe(rung, draft_s, in_step=in_step)

    def _chances(self, draft: Draft) -> list[float]:
        """For each rung, the chance of a token that it has beyond the rung below.

        That is the chance that it is accepted if the tokens before it are; where a rung has several
        more and each has its own evidence, the mean over those.
        """
        evidence = draft.evidence
        if not isinstance(evidence, tuple):
            by_stretch = self.survival.given(evidence)
            return [by_stretch[stretch] for stretch in STRETCH_OF_RUNG]
        given = {value: self.survival.given(value) for value in set(evidence)}
        chances = [1.0]
        for rung in range(1, RUNG_OF[len(evidence)] + 1):
            values = evidence[RUNGS[rung - 1] : RUNGS[rung]]
            stretch = STRETCH_OF_RUNG[rung]
            chances.append(sum(given[value][stretch] for value in values) / len(values))
        return chances

    def _most(self) -> float:
        """What a step may cost that brings one token alone, as where nothing is accepted."""
        return self.allowance.left - self._draft_charge + 1.0 - self.costs.replay

    def _best_rung(
        self, chances: Sequence[float], top: int, draft_costs: Sequence[float], most: float
    ) -> tuple[int, float, float]:
        """The rung of the highest rate that costs ``most`` at most, its rate, and its gain.

        The rate is (1 + S_1 + ... + S_n) / cost, in tokens a plain decode: S_j is the chance that
        the first j tokens are all accepted; the cost is that of the draft, of the verify decode,
        and of decoding anew what is kept, where a rejection needs that.
        """
        costs = self.costs
        ratio, low, bound, replay = costs.ratio, costs.low, costs.bound, costs.replay
        best, best_rate, best_gain = 0, 0.0, 0.0
        survival, n_tokens, n_replayed = 1.0, 1.0, 0.0
        for rung in range(1, min(top, costs.highest) + 1):
            chance, n_more = chances[rung], N_MORE[rung]
            before = survival
            survival *= chance if n_more == 1 else chance**n_more
            lost = before - survival
            # chance + ... + chance^n_more, a geometric series unless the chance is 1.
            n_tokens += chance * lost / (1.0 - chance) if lost else before * n_more
            n_replayed += lost * ratio[rung - 1]
            if bound[rung] + draft_costs[rung] <= most:
                cost = draft_costs[rung] + low[rung] + replay * n_replayed
                if n_tokens > best_rate * cost:
                    best, best_rate, best_gain = rung, n_tokens / cost, n_tokens - cost
            if survival < HOPELESS:
                break
        return best, best_rate, best_gain

    def learn(self, outcome: Outcome) -> None:
        """See what came of the step: book it, then learn from it."""
        followed, rung, record = outcome.followed, self._rung, self.record
        spent_s = outcome.decode_s + outcome.rollback_s
        n_tokens = len(followed)
        n_kept = n_tokens if n_tokens <= RUNGS[rung] else None
        plain_s = self.costs.plain_s
        booked, saved_s = -self._draft_charge, -self._draft_s
        # The decode after a verify decode may be slower for it, and is booked with it.
        if plain_s is not None and (rung or self._was_verify):
            booked += n_tokens * (self.costs.mean - self.costs.doubt)
            booked -= self.costs.charge(rung, n_kept, spent_s)
            saved_s += n_tokens * plain_s - spent_s
        self.allowance.settle(n_tokens, booked)
        self._learn_costs(outcome, rung, n_kept)
        if self._draft.tokens:
            self._shadows.add(self._draft, declined=not rung)
        record.n_declined_rightly += self._shadows.compare(followed)
        record.n_steps += 1
        record.n_asked_steps += self._asked_rung > 0
        record.n_drafted_steps += rung > 0
        record.n_verified += RUNGS[rung]
        record.n_declined += not rung and len(self._draft.tokens) > 0
        record.spent_s += spent_s + self._draft_s
        record.saved_s += saved_s

    def _learn_costs(self, outcome: Outcome, rung: int, n_kept: int | None) -> None:
        if rung:
            self.costs.observe_verify(rung, outcome.decode_s)
            if n_kept is not None:
                self.costs.observe_rollback(n_kept, outcome.rollback_s)
        else:
            self.costs.observe_plain(outcome.decode_s, undisturbed=not self._was_verify)
        self._was_verify = rung > 0

    def to_dict(self) -> dict[str, Any]:
        """The record of this generation, and the costs learned, as JSON-ready values."""
        return self.record.to_dict() | {
            "plain_s": self.costs.plain_s,
            "cost_by_positions": {str(n): cost for n, cost in self.costs.measured.items()},
            "rollback_share": self.costs.replay,
        }


def _cut(draft: Draft) -> Draft:
    evidence = draft.evidence
    if isinstance(evidence, tuple):
        evidence = evidence[:MAX_WIDTH]
    return Draft(draft.tokens[:MAX_WIDTH], evidence)
