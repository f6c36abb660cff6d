"""The gate as the loop sees it, on times and drafts made up by hand."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from bmoe_core import CostGate, Draft
from bmoe_core.gate import cost_gate
from bmoe_core.gate.chances import chances_by_rung
from bmoe_core.gate.cost_gate import RESERVE
from bmoe_core.policy import Outcome, Trial, VerifyAll
from bmoe_core.steps import NO_DRAFT
from bmoe_core.testing.simulation import Machine, simulate, steep
from bmoe_core.testing.texts import constant

PLAIN_S = 0.010
COST = {1: 1.0, 2: 1.6, 3: 2.0, 4: 2.4, 5: 2.75, 6: 3.1, 7: 3.45, 8: 3.8, 9: 4.2}
"""Plain decodes that a decode of so many positions costs: a small model on two cores."""


class Bench:
    """Plays the loop for a gate: right tokens are 1, wrong ones 0."""

    def __init__(self, *, draft_s: float = 1e-6, replay: float = 0.0) -> None:
        self.gate = CostGate()
        self.gate.begin()
        self.draft_s, self.replay = draft_s, replay
        self.asked: list[int] = []
        self.verified: list[int] = []
        self.spent = 0.0
        self.n_tokens = 0

    def step(self, n_right: int, *, length: int = 8, evidence: object = None) -> int:
        """One step with a draft whose first ``n_right`` tokens are right; how many are verified."""
        n_asked = self.gate.ask(8)
        n = min(n_asked, length)
        draft = (
            Draft([1] * min(n_right, n) + [0] * max(n - n_right, 0), evidence) if n else NO_DRAFT
        )
        draft_s = self.draft_s * n_asked
        n_verified = self.gate.choose(draft, draft_s)
        n_accepted = min(n_right, n_verified)
        cost = COST[1 + n_verified]
        replay = self.replay * COST[1 + n_accepted] if n_accepted < n_verified else 0.0
        self.gate.learn(Outcome([1] * (1 + n_accepted), cost * PLAIN_S, replay * PLAIN_S))
        self.asked.append(n_asked)
        self.verified.append(n_verified)
        self.spent += cost + replay + draft_s / PLAIN_S
        self.n_tokens += 1 + n_accepted
        return n_verified


def seasoned() -> Bench:
    """One that knows the plain decode well, and a source that is always right."""
    bench = Bench()
    for _ in range(8):
        bench.step(0, length=0)
    for _ in range(30):
        bench.step(8)
    return bench


def let_stake(gate: CostGate, n: float) -> None:
    """Leave ``n`` plain decodes in the account, beside what is kept for what noise has hidden."""
    gate.allowance.left = n + RESERVE * gate.costs.noise


def test_the_first_steps_are_plain() -> None:
    """Until the plain decode is known there is nothing to judge by, to 3% or, for what pays by far,
    to 6%: four of equal times.

    A draft is asked for from the second one on, to see how it fares."""
    bench = Bench()
    assert [bench.step(8) for _ in range(4)] == [0, 0, 0, 0]
    assert bench.asked == [0, 1, 2, 4]
    assert bench.step(8) == 1


def test_a_draft_that_is_always_right_is_verified_ever_wider() -> None:
    """From one token on, each decode at most twice as wide as the widest so far."""
    bench = Bench()
    for _ in range(14):
        bench.step(8)
    assert bench.verified[:5] == [0, 0, 0, 0, 1]
    assert bench.verified[-1] == 8
    for before, after in zip(bench.verified, bench.verified[1:], strict=False):
        assert 1 + after <= 2 * (1 + max(before, *bench.verified[:5]))
    assert bench.n_tokens > 1.3 * bench.spent


def test_a_draft_that_is_never_right_is_soon_declined() -> None:
    """Two plain decodes at most are lost in all, and the drafts go along as shadows."""
    bench = Bench()
    for _ in range(200):
        bench.step(0)
    assert bench.spent - bench.n_tokens < 2.0
    assert bench.asked[-1] == 8
    assert bench.verified[-100:] == [0] * 100
    assert bench.gate.record.n_declined > 190
    assert bench.gate.record.n_declined_rightly == bench.gate.record.n_declined


def test_a_losing_source_comes_back_by_itself() -> None:
    """Shadows show at no cost that the drafts have become right."""
    bench = Bench()
    for _ in range(150):
        bench.step(0)
    for _ in range(60):
        bench.step(8)
    assert min(bench.verified[-10:]) >= 3


def test_evidence_decides() -> None:
    """Of a source that is right with long matches and wrong with short ones, the long ones run."""
    bench = Bench()
    for i in range(200):
        bench.step(8 if i % 2 else 0, evidence=12 if i % 2 else 3)
    assert set(bench.verified[-20::2]) == {0}
    assert min(bench.verified[-19::2]) >= 4


def test_evidence_a_token_cuts_the_draft() -> None:
    """Tokens that are marked as sure are verified, and the doubtful rest is not.

    A narrower width is tried at times, to see whether it has become cheaper."""
    bench = Bench()
    for _ in range(100):
        bench.step(
            3, evidence=("sure",) * 3 + ("doubtful",) * 5 if bench.gate.ask(8) == 8 else None
        )
    assert max(bench.verified[-20:]) == 3
    assert bench.verified[-20:].count(3) >= 15


@pytest.mark.parametrize(("left", "n_verified"), [(0.5, 0), (0.7, 1)])
def test_nothing_is_verified_that_the_allowance_does_not_cover(
    left: float, n_verified: int
) -> None:
    """With 0.5 plain decodes left, one draft token at 1.6 is too dear, however sure it is."""
    bench = seasoned()
    let_stake(bench.gate, left)
    assert bench.step(8) == n_verified


def test_what_cannot_be_paid_for_is_not_asked_for() -> None:
    """A lookup that is asked at every step is let be for 16 where the allowance is spent, and is
    asked again after that; with an account that covers a draft it goes on as before."""
    bench = seasoned()
    assert bench.asked[-1] == 8
    let_stake(bench.gate, 0.5)
    bench.asked.clear()
    for _ in range(30):
        bench.step(8)
    assert [i for i, n in enumerate(bench.asked) if n] == [0, 17]
    let_stake(bench.gate, 5.0)
    bench.asked.clear()
    for _ in range(20):
        bench.step(8)
    assert bench.asked[15:] == [8] * 5


def test_steps_without_a_draft_are_counted_though_they_are_learned_from_later() -> None:
    """20 steps in which a lookup at 10 µs declines: the record has them all, with its time."""
    bench = Bench()
    for _ in range(8):
        bench.step(0, length=0)
    bench.gate.begin()
    n_asked = len(bench.asked)
    for _ in range(20):
        bench.step(0, length=0)
    record = bench.gate.record
    assert record.n_steps == 20
    assert record.n_asked_steps == sum(n > 0 for n in bench.asked[n_asked:]) == 20
    draft_s = sum(bench.asked[n_asked:]) * 1e-6
    assert record.spent_s == pytest.approx(20 * PLAIN_S + draft_s)
    assert record.saved_s == pytest.approx(-draft_s)


def test_replay_is_part_of_the_price() -> None:
    """Where a rejection has the kept tokens decoded again, a draft has to be right more often.

    Right on 3 of 4 steps: 1.75 tokens for 1.6 pay, and for 1.6 + 0.25 do not."""
    cheap, dear = Bench(), Bench(replay=1.0)
    for bench in (cheap, dear):
        bench.gate.allowance.left = 30.0
        for i in range(400):
            bench.step(1 if i % 4 else 0, length=1)
    assert sum(map(bool, cheap.verified[-100:])) > 50
    assert sum(map(bool, dear.verified[-100:])) < 20


def test_a_costly_source_that_loses_is_asked_rarely() -> None:
    """A draft token at 0.2 plain decodes that is never right: at most 2% are lost in 300 steps."""
    bench = Bench(draft_s=0.2 * PLAIN_S)
    for _ in range(300):
        bench.step(0)
    assert 2 < sum(map(bool, bench.asked)) < 20
    assert bench.spent < 1.02 * bench.n_tokens


def test_a_costly_source_that_wins_is_asked_at_every_step() -> None:
    """At 0.05 plain decodes a token and always right it gains, asking included."""
    bench = Bench(draft_s=0.05 * PLAIN_S)
    for _ in range(100):
        bench.step(8)
    assert all(bench.asked[-50:])
    assert bench.n_tokens > 1.4 * bench.spent


def test_a_draft_is_not_verified_where_its_own_cost_has_used_the_allowance_up() -> None:
    """What the draft took is paid before the decode is.

    Of 0.68 plain decodes a draft token at 0.05 leaves 0.63, which covers the 0.6 that a wrong token
    costs; at twice that, which is what an outlier counts for, it leaves 0.58."""
    bench = Bench(draft_s=0.05 * PLAIN_S)
    for _ in range(40):
        bench.step(8)
    gate = bench.gate
    let_stake(gate, 0.68)
    assert gate.ask(8) == 1
    assert gate.choose(Draft([1], None), draft_s=0.05 * PLAIN_S) == 1
    assert gate.ask(8) == 1
    assert gate.choose(Draft([1], None), draft_s=PLAIN_S) == 0


def test_costs_learned_serve_the_next_generation() -> None:
    """No warm-up, and asked for eight at once: a draft is verified in the second step, and eight
    tokens in the fifth, which took eleven steps at first. Its record begins anew."""
    bench = Bench()
    first = [bench.step(8) for _ in range(40)]
    assert (first.index(1), first.index(8)) == (4, 10)
    bench.gate.begin()
    assert bench.gate.record.n_steps == 0
    bench.asked.clear()
    assert [n > 0 for n in [bench.step(8) for _ in range(5)]] == [False, True, True, True, True]
    assert bench.verified[-1] == 8
    assert bench.asked == [8] * 5


class TestRepeats:
    """Steps taken like the last ones, where the account is at ease."""

    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
        """The drafts that are weighed."""
        weighed: list[Draft] = []

        def weigh(draft: Draft, *rest: Any) -> Any:
            weighed.append(draft)
            return chances_by_rung(draft, *rest)

        monkeypatch.setattr(cost_gate, "chances_by_rung", weigh)
        return weighed

    @pytest.fixture
    def bench(self, looks: list[Draft]) -> Bench:
        """One that has just looked at a step twice, and has much in the account."""
        bench = seasoned()
        bench.gate.allowance.left = 30.0
        is_looked_at = [False, False]
        while is_looked_at[-2:] != [True, False]:
            n_before = len(looks)
            bench.step(8)
            is_looked_at.append(len(looks) > n_before)
        looks.clear()
        return bench

    def test_few_of_them_are_looked_at(self, bench: Bench, looks: list[Draft]) -> None:
        """Of 100 steps alike a third at most is; all of them are in the record."""
        record = bench.gate.record
        n_before, n_verified = record.n_steps, record.n_verified
        for _ in range(100):
            bench.step(8)
        assert 5 < len(looks) < 34
        assert record.n_steps - n_before == 100
        assert record.n_verified - n_verified == sum(bench.verified[-100:])

    def test_another_draft_is_looked_at(self, bench: Bench, looks: list[Draft]) -> None:
        """One that is shorter, or has other evidence."""
        bench.step(8, length=7)
        assert len(looks) == 1
        bench.step(8, evidence=5)
        assert len(looks) == 2

    def test_they_end_with_the_ease(self, bench: Bench, looks: list[Draft]) -> None:
        """With 11 plain decodes left each step is looked at."""
        bench.gate.allowance.left = 11.0
        bench.step(8)
        assert len(looks) >= 1

    def test_they_end_where_they_have_lost(self, bench: Bench, looks: list[Draft]) -> None:
        """The look and the step after it won 4.8 each; three steps lose 3.2 each, and one more."""
        n_lost = 0
        while not looks:
            bench.step(0)
            n_lost += 1
        assert n_lost == 4


def test_what_is_decided_in_repeats_is_compared_with_the_draft_that_is_followed() -> None:
    """Of drafts of 64 tokens the rest that is not verified is found right as often: 0.95 each.

    Of tokens 5 to 16 some 0.83 would be, if those decided meanwhile were left out."""
    found = []
    for seed in range(6):
        gate = CostGate()
        simulate(gate, constant(2000, seed, 0.95), Machine(curve=steep), 2000, seed=seed)
        found += gate.survival.average()[3:5]
    assert statistics.mean(found) == pytest.approx(0.95, abs=0.03)


def test_how_drafts_fared_is_no_verdict_on_the_next_generation() -> None:
    """After a text on which all of them were wrong, what a first draft is worth is open again."""
    bench = Bench()
    for _ in range(200):
        bench.step(0)
    assert bench.gate.survival.average()[0] < 0.1
    bench.gate.begin()
    assert bench.gate.survival.average() == CostGate().survival.average()


def test_drafts_longer_than_the_ladder_are_cut() -> None:
    """A source that returns more than 64 tokens has 64 looked at."""
    gate = CostGate()
    gate.begin()
    for _ in range(5):
        gate.ask(100)
        gate.choose(NO_DRAFT, 0.0)
        gate.learn(Outcome([1], PLAIN_S, 0.0))
    gate.allowance.left = 30.0
    assert gate.ask(100) <= 64
    assert gate.choose(Draft([1] * 100, (7,) * 100), 0.0) == 1


def test_the_end_of_the_first_prompt_tells_what_decodes_cost() -> None:
    """Wide ones first; two plain decodes more, and drafts are judged. It is not asked for again."""
    gate = CostGate()
    gate.begin()
    widths = gate.calibration(9)
    assert widths == (4, 4, 2, 2, 1, 1, 1, 1)
    gate.calibrate([Trial(n, COST[n] * PLAIN_S, 0.0) for n in widths])
    assert gate.costs.plain_s == pytest.approx(PLAIN_S)
    assert gate.costs.measured == pytest.approx({2: 1.6, 4: 2.4}, rel=0.15)
    for _ in range(2):
        assert not gate.costs.warm
        gate.costs.observe_plain(PLAIN_S, switched=False)
    assert gate.costs.warm
    assert gate.calibration(9) == ()


def test_the_first_decode_there_says_nothing() -> None:
    """Memory is touched in it that was never used: at whatever time, the costs are the same."""
    measured = []
    for first_s in (COST[4] * PLAIN_S, 5.0 * PLAIN_S):
        gate = CostGate()
        rest = [Trial(n, COST[n] * PLAIN_S, 0.0) for n in gate.calibration(9)[1:]]
        gate.calibrate([Trial(4, first_s, 0.0), *rest])
        measured.append((gate.costs.measured, gate.costs.switch))
    assert measured[0] == measured[1]


def test_drafts_at_the_end_of_the_prompt_tell_what_the_source_is_worth() -> None:
    """Compared with what the target would have said: three right, then one wrong."""
    gate, untaught = CostGate(), CostGate()
    right = [Trial(4, 0.024, 0.0, Draft([1, 1, 1, 9]), [1, 1, 1]), Trial(2, 0.016, 0.0)]
    wrong = Trial(1, PLAIN_S, 0.0, Draft([5]), [6])
    gate.calibrate([*right, Trial(1, PLAIN_S, 0.0)])
    assert gate.survival.average()[0] > untaught.survival.average()[0]
    gate.calibrate([*right, *[wrong] * 6])
    assert gate.survival.average()[0] < untaught.survival.average()[0]
    assert gate.record.n_declined == 0


def test_a_short_draft_has_nothing_calibrated() -> None:
    """A target that takes three positions cannot be timed at four."""
    assert CostGate().calibration(3) == ()


def test_tokens_that_wait_are_part_of_the_next_decode() -> None:
    """A rejected token leaves one waiting: the next plain decode is one of two positions.

    Its time is no news about plain decodes, and the step that left it has paid for it."""
    gate = CostGate()
    gate.begin()
    gate.calibrate([Trial(n, COST[n] * PLAIN_S, 0.0) for n in (4, 2, *[1] * 6)])
    gate.allowance.left = 20.0
    gate.ask(1)
    assert gate.choose(Draft([1], None), 0.0) == 1
    gate.learn(Outcome([0], COST[2] * PLAIN_S, 0.0, n_pending=1))
    after_rejection = gate.allowance.left
    plain_s = gate.costs.plain_s
    gate.ask(1)
    gate.choose(NO_DRAFT, 0.0)
    gate.learn(Outcome([0], COST[2] * PLAIN_S, 0.0))
    assert gate.costs.plain_s == plain_s
    assert 20.0 - after_rejection == pytest.approx(0.6 + 0.6, abs=0.3)
    assert gate.allowance.left == pytest.approx(after_rejection, abs=0.15)


def test_the_record_as_json() -> None:
    """What it did, and the costs that it learned by positions."""
    bench = Bench()
    for _ in range(6):
        bench.step(8)
    figures = bench.gate.to_dict()
    assert list(figures) == [
        "n_asked_steps",
        "n_declined",
        "n_declined_rightly",
        "mean_width",
        "estimated_gain",
        "plain_s",
        "cost_by_positions",
        "rollback_share",
    ]
    assert figures["plain_s"] == pytest.approx(PLAIN_S)
    assert list(figures["cost_by_positions"]) == ["2"]


def test_without_a_gate_every_draft_is_verified() -> None:
    """As wide as the source makes it."""
    policy = VerifyAll()
    policy.begin()
    assert policy.ask(3) == 3
    assert policy.choose(Draft([1, 2, 3]), 1.0) == 3
    policy.learn(Outcome([1], 1.0, 0.0))
    assert policy.choose(NO_DRAFT, 0.0) == 0
