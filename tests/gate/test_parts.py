"""The gate's parts, each by itself: the allowance, asking, costs, survival and shadows."""

from __future__ import annotations

import math

import pytest

from bmoe_core import Draft
from bmoe_core.gate.allowance import Allowance
from bmoe_core.gate.asking import Asking, DraftCosts
from bmoe_core.gate.costs import DecodeCosts
from bmoe_core.gate.ladder import LAST_DEPTHS, RUNG_OF, RUNGS, STRETCH_OF_RUNG, growth
from bmoe_core.gate.record import GateRecord
from bmoe_core.gate.shadows import Shadows
from bmoe_core.gate.stakes import account_grows
from bmoe_core.gate.survival import Survival
from bmoe_core.steps import NO_DRAFT


def warm_costs(plain_s: float = 0.01) -> DecodeCosts:
    costs = DecodeCosts()
    for _ in range(3):
        costs.observe_plain(plain_s, switched=False)
    return costs


class TestLadder:
    @pytest.mark.parametrize(
        ("n_tokens", "n_verified"), [(0, 0), (1, 1), (8, 8), (11, 8), (12, 12), (63, 48), (64, 64)]
    )
    def test_a_draft_is_cut_to_a_rung(self, n_tokens: int, n_verified: int) -> None:
        """The highest rung that it fills."""
        assert RUNGS[RUNG_OF[n_tokens]] == n_verified

    def test_growth_doubles_the_positions_at_most(self) -> None:
        """From the plain decode to 64 draft tokens in seven steps."""
        rung, widths = 0, []
        while RUNGS[rung] < 64:
            rung = growth(rung)
            widths.append(RUNGS[rung])
        assert widths == [1, 3, 6, 12, 24, 48, 64]

    def test_a_rung_lies_in_one_stretch(self) -> None:
        """The tokens that it adds are all of one stretch, so one chance stands for them."""
        for rung in range(1, len(RUNGS)):
            stretch = STRETCH_OF_RUNG[rung]
            before = LAST_DEPTHS[stretch - 1] if stretch else 0
            assert before <= RUNGS[rung - 1] < RUNGS[rung] <= LAST_DEPTHS[stretch]


class TestAllowance:
    def test_every_token_pays_in_a_little(self) -> None:
        """Half a plain decode lost with one token leaves 3.0 + 0.002 - 0.5."""
        allowance = Allowance()
        allowance.settle(1, -0.5)
        assert allowance.left == pytest.approx(2.502)

    @pytest.mark.parametrize(("n_tokens", "granted"), [(200, 3.4), (400, 4.0), (1000, 10.0)])
    def test_a_long_text_may_lose_one_percent(self, n_tokens: int, granted: float) -> None:
        """From 375 tokens on that is more than 3.0 and 0.002 a token."""
        allowance = Allowance()
        for _ in range(n_tokens):
            allowance.settle(1, 0.0)
        assert allowance.left == pytest.approx(granted, abs=0.01)

    def test_gains_are_kept_up_to_a_bound(self) -> None:
        """However much was won, 32 plain decodes are all that may be lost again."""
        allowance = Allowance()
        allowance.settle(10, 100.0)
        assert allowance.left == 32.0

    @pytest.mark.parametrize(
        ("gain", "granted"), [(-4.0, -0.99), (-1.0, 2.01), (0.5, 3.0), (17.0, 4.002), (99.0, 6.4)]
    )
    def test_a_new_generation_draws_on_what_all_have_left(
        self, gain: float, granted: float
    ) -> None:
        """What is owed is carried over, and a fifth of what was won, if that is more than 3."""
        allowance = Allowance()
        allowance.settle(1, gain)
        allowance.begin()
        assert allowance.left == pytest.approx(granted)

    def test_generations_that_lose_grant_the_next_one_percent_of_their_tokens(self) -> None:
        """Each of 100 tokens has lost all that it may, and the next one has 1.0 plain decodes."""
        allowance = Allowance()
        for granted in (3.0, 1.0, 1.0):
            allowance.begin()
            assert allowance.left == pytest.approx(granted)
            allowance.settle(100, -granted)


class TestDraftCosts:
    def test_the_first_known_rung_stands_for_all(self) -> None:
        """Four tokens at 2 ms: eight may cost no more, and it has to be tried to know."""
        costs = DraftCosts()
        costs.observe(RUNG_OF[4], 0.002, in_step=True)
        assert costs.seconds(RUNG_OF[8]) == costs.seconds(RUNG_OF[1]) == 0.002

    @pytest.mark.parametrize(("n_tokens", "seconds"), [(1, 0.0015), (3, 0.0025), (8, 0.005)])
    def test_rungs_never_asked_for_lie_on_a_line(self, n_tokens: int, seconds: float) -> None:
        """Two tokens at 2 ms and four at 3 ms: each token is 0.5 ms."""
        costs = DraftCosts()
        costs.observe(RUNG_OF[4], 0.003, in_step=True)
        costs.observe(RUNG_OF[2], 0.002, in_step=True)
        assert costs.seconds(RUNG_OF[n_tokens]) == pytest.approx(seconds)

    def test_a_rung_between_two_lies_between(self) -> None:
        """1, 2 and 8 tokens at 1, 2 and 5 ms: four cost 3 ms."""
        costs = DraftCosts()
        for n_tokens, seconds in ((1, 0.001), (2, 0.002), (8, 0.005)):
            costs.observe(RUNG_OF[n_tokens], seconds, in_step=True)
        assert costs.seconds(RUNG_OF[4]) == pytest.approx(0.003)

    def test_an_accident_at_the_first_asking_of_a_rung_counts_for_little(self) -> None:
        """Two tokens at 1 ms: four are taken for twice 2 ms at most, whatever they took."""
        costs = DraftCosts()
        costs.observe(RUNG_OF[2], 0.001, in_step=True)
        costs.observe(RUNG_OF[4], 1.0, in_step=True)
        assert costs.seconds(RUNG_OF[4]) == pytest.approx(0.004)

    def test_catching_up_is_not_the_cost_of_drafting(self) -> None:
        """What the first asking took stands only until one in step is known."""
        costs = DraftCosts()
        costs.observe(1, 0.03, in_step=False)
        assert costs.seconds(1) == 0.03
        costs.observe(1, 0.002, in_step=True)
        costs.observe(1, 0.05, in_step=False)
        assert costs.seconds(1) == 0.002

    def test_an_outlier_counts_as_double(self) -> None:
        """The second observation weighs a half: 2 ms, then 100 ms taken for 4 ms, make 3 ms."""
        costs = DraftCosts()
        costs.observe(1, 0.002, in_step=True)
        costs.observe(1, 0.1, in_step=True)
        assert costs.seconds(1) == pytest.approx(0.003)

    def test_twice_the_widest_may_be_asked_for(self) -> None:
        """1, then 2, 4, 8, 16, 32 and 64."""
        costs, asked = DraftCosts(), []
        for _ in range(7):
            asked.append(RUNGS[costs.highest])
            costs.observe(costs.highest, 0.001, in_step=True)
        assert asked == [1, 2, 4, 8, 16, 32, 64]


def ask_times(asking: Asking, n_steps: int, cost: float, gain: float) -> list[int]:
    """The steps, from 0 on, in which the source is asked."""
    asked = []
    for step in range(n_steps):
        if asking.is_due(cost):
            asked.append(step)
            asking.learn(cost, gain)
        else:
            asking.skip()
    return asked


class TestAsking:
    def test_probes_of_a_source_that_never_pays_come_in_pairs_ever_more_rarely(self) -> None:
        """Waits double until two drafts of 0.02 are 0.5% of the time: 8 steps, and one in all."""
        asked = ask_times(Asking(), 50, cost=0.02, gain=0.0)
        assert asked == [0, 1, 3, 4, 8, 9, 17, 18, 27, 28, 37, 38, 47, 48]

    @pytest.mark.parametrize("cost", [0.01, 0.1, 0.5, 2.0])
    def test_the_regret_of_asking_in_vain_is_bounded(self, cost: float) -> None:
        """Two drafts for each doubling of the wait up to 1 + 2 cost / 0.005, and 0.5% of the time.

        One pair more may have begun."""
        n_steps = 20_000
        spent = cost * len(ask_times(Asking(), n_steps, cost, gain=0.0))
        doublings = math.ceil(math.log2(1 + 2 * cost / 0.005))
        assert spent <= 2 * cost * (doublings + 2) + 0.005 * n_steps

    def test_a_source_that_pays_is_asked_at_every_step(self) -> None:
        """From the first asking on."""
        assert ask_times(Asking(), 20, cost=0.05, gain=1.0) == list(range(20))

    def test_a_source_that_begins_to_pay_is_found_out(self) -> None:
        """The probes go on for ever, so 200 steps later it is asked at every step."""
        asking = Asking()
        ask_times(asking, 1000, cost=0.05, gain=0.0)
        asked = ask_times(asking, 200, cost=0.05, gain=1.0)
        assert asked[-100:] == list(range(100, 200))


class TestDecodeCosts:
    def test_the_first_level_is_the_median(self) -> None:
        """One slow decode among the first three does not count."""
        costs = DecodeCosts()
        for seconds in (0.05, 0.010, 0.0104):
            assert not costs.warm
            costs.observe_plain(seconds, switched=False)
        assert costs.plain_s == 0.0104

    def test_noisy_times_take_a_longer_warm_up(self) -> None:
        """Of equal times five will do, with an accident among them ten; 32 have to do anyway."""

        def n_taken(*times: float) -> int:
            costs, n = DecodeCosts(), 0
            while not costs.warm:
                costs.observe_plain(times[n % len(times)], switched=False)
                n += 1
            return n

        assert n_taken(0.010) == 5
        assert n_taken(0.010, 0.050, *[0.010] * 8) == 10
        assert n_taken(0.010, 0.020, 0.005) == 32

    def test_what_is_known_roughly_asks_for_a_wide_edge(self) -> None:
        """Ten times the doubt from three equal times on, where that is 4.1%; the doubt itself from
        five on, where it is below 3%; nothing is judged before, nor where times differ much."""
        costs, edges = DecodeCosts(), []
        for _ in range(5):
            edges.append(costs.edge)
            costs.observe_plain(0.010, switched=False)
        assert edges[:3] == [None, None, None]
        assert edges[3] == pytest.approx(10 * (0.02 / 4 / 3) ** 0.5)
        assert costs.edge == costs.doubt < 0.03
        noisy = DecodeCosts()
        for seconds in (0.010, 0.014, 0.010, 0.014):
            noisy.observe_plain(seconds, switched=False)
        assert noisy.edge is None

    def test_a_switch_of_widths_has_a_cost_of_its_own(self) -> None:
        """Where the first decode of each width takes 0.3 plain decodes more, four still take 2.4.

        The level does not move by it, and a machine without such a cost is not given one."""
        costs = warm_costs()
        for _ in range(60):
            costs.observe_plain(0.013, switched=True)
            costs.observe_verify(3, 0.027, switched=True)
        assert costs.switch == pytest.approx(0.3, rel=0.1)
        assert costs.ratio[3] == pytest.approx(2.4, rel=0.05)
        assert costs.plain_s == pytest.approx(0.010, rel=0.05)
        for _ in range(60):
            costs.observe_plain(0.0095, switched=True)
        assert costs.switch == 0.0

    def test_widths_between_and_beyond_follow_from_measured_ones(self) -> None:
        """On the line between two, and on the line from the plain decode; never below a plain one.

        Two positions at 1.6 and four at 2.4 make three 2.0, and nine 1 + 8 (2.4 - 1) / 3."""
        costs = warm_costs()
        for _ in range(300):
            costs.observe_verify(1, 0.016, switched=False)
            costs.observe_verify(3, 0.024, switched=False)
        assert costs.ratio[1:4] == pytest.approx([1.6, 2.0, 2.4], rel=0.03)
        assert costs.ratio[RUNG_OF[8]] == pytest.approx(1 + 8 * 1.4 / 3, rel=0.03)
        assert min(costs.low) >= 1.0

    def test_a_wider_decode_is_bounded_by_two_of_the_widest(self) -> None:
        """Before any width was tried one draft token costs two plain decodes at most."""
        costs = warm_costs()
        assert costs.bound[1] == 2.0
        costs.observe_verify(1, 0.014, switched=False)
        assert costs.bound[3] == pytest.approx(2 * costs.ratio[1])

    def test_the_first_decode_of_a_width_counts_less_after_another(self) -> None:
        """It may build and allocate; one that follows its like has nothing of that in it."""
        at_once, settled = warm_costs(), warm_costs()
        at_once.observe_verify(3, 0.03, switched=True)
        settled.observe_verify(3, 0.03, switched=False)
        assert 2.2 < at_once.ratio[3] < settled.ratio[3] - 0.1 < 3.0

    def test_an_outlier_moves_a_ratio_by_two_at_most(self) -> None:
        """A decode twenty times too slow is taken for one that is twice too slow."""
        costs = warm_costs()
        for _ in range(20):
            costs.observe_verify(1, 0.016, switched=False)
        before = costs.ratio[1]
        costs.observe_verify(1, 0.32, switched=False)
        assert before < costs.ratio[1] < 1.25 * before

    def test_everything_drifts_with_the_level(self) -> None:
        """When plain decodes get slower by half, a width that was not tried since follows."""
        costs = warm_costs()
        for _ in range(20):
            costs.observe_verify(3, 0.024, switched=False)
        for _ in range(200):
            costs.observe_plain(0.015, switched=False)
        assert costs.plain_s == pytest.approx(0.015, rel=0.02)
        assert costs.ratio[3] == pytest.approx(2.4, rel=0.02)

    def test_the_level_drifts_while_nothing_is_plain(self) -> None:
        """Where every decode verifies, their slowing down is laid to the level too."""
        costs = warm_costs()
        for _ in range(50):
            costs.observe_verify(3, 0.024, switched=False)
        for _ in range(100):
            costs.observe_verify(3, 0.030, switched=False)
        assert costs.plain_s is not None
        assert costs.plain_s > 0.0103

    def test_doubt_grows_while_nothing_is_plain(self) -> None:
        """The level is what gains are counted in, and has to be measured again at times."""
        costs = warm_costs()
        before = costs.doubt
        for _ in range(100):
            costs.observe_verify(3, 0.024, switched=False)
        assert costs.doubt > 1.5 * before
        for _ in range(50):
            costs.observe_plain(0.01, switched=False)
        assert costs.doubt < before

    def test_a_width_that_was_unlucky_looks_better_after_a_while(self) -> None:
        """Nothing is locked in: its possible cost falls with the time since it was measured."""
        costs = warm_costs()
        for _ in range(10):
            costs.observe_verify(1, 0.03, switched=False)
        just_then = costs.low[1]
        for _ in range(300):
            costs.observe_plain(0.01, switched=False)
        assert costs.low[1] < 0.85 * just_then

    def test_a_ratio_below_one_is_the_level_s_fault(self) -> None:
        """No decode is cheaper than a narrower one."""
        costs = warm_costs(0.02)
        for _ in range(5):
            costs.observe_verify(1, 0.012, switched=False)
        assert costs.ratio[1] >= 1.0
        assert costs.plain_s is not None
        assert costs.plain_s < 0.0135

    def test_a_replay_is_learned_as_a_share(self) -> None:
        """Rollbacks that take as long as decoding the kept position make the share 1."""
        costs = warm_costs()
        costs.observe_verify(1, 0.016, switched=False)
        costs.observe_rollback(1, 0.01)
        assert costs.replay == pytest.approx(1.0)
        assert costs.charge(1, 0, 1, 1.0) == pytest.approx(1.3 * (costs.ratio[1] + 1.0))

    def test_a_target_that_replays_along_with_the_next_decode(self) -> None:
        """One token that waits costs what a second position does, two what a third does more.

        A rejection of the first draft token leaves one waiting, the settled one."""
        costs = warm_costs()
        costs.merges = True
        for _ in range(100):
            costs.observe_verify(1, 0.016, switched=False)
            costs.observe_verify(3, 0.024, switched=False)
        assert costs.waiting(0) == 0.0
        assert costs.waiting(1) == pytest.approx(0.6, rel=0.05)
        assert costs.waiting(2) == pytest.approx(1.0, rel=0.05)
        assert costs.after_rejection(1) == costs.waiting(1)

    def test_tokens_that_wait_between_two_rungs(self) -> None:
        """Ten lie half-way between 8 and 12."""
        costs = warm_costs()
        eight, twelve = costs.waiting(8), costs.waiting(12)
        assert costs.waiting(10) == pytest.approx((eight + twelve) / 2)


class TestStakes:
    """A draft of one token at 1.6 plain decodes wins 0.4, or loses 0.6."""

    def grows(self, left: float, chance: float) -> bool:
        costs = warm_costs()
        for _ in range(100):
            costs.observe_verify(1, 0.016, switched=False)
        return account_grows(left, [1.0, chance], 1, 0.0, costs)

    def test_what_gains_on_average_may_still_be_too_high_a_stake(self) -> None:
        """At 0.65 the mean gain is +0.05, and of 1 plain decode it is refused.

        0.65 log 1.4 + 0.35 log 0.4 is -0.10; of 10 it is 0.65 log 1.04 + 0.35 log 0.94, +0.004."""
        assert not self.grows(1.0, 0.65)
        assert self.grows(10.0, 0.65)

    def test_a_sure_draft_may_stake_nearly_everything(self) -> None:
        """0.99 log 1.57 + 0.01 log 0.14 is +0.43, with 0.7 in the account."""
        assert self.grows(0.7, 0.99)

    def test_nothing_is_staked_that_is_not_there(self) -> None:
        """Of 0.5 plain decodes 0.6 cannot be lost."""
        assert not self.grows(0.5, 1.0)


class TestSurvival:
    def test_before_anything_was_seen_it_is_the_prior(self) -> None:
        """0.7 at every stretch."""
        assert Survival().overall() == pytest.approx([0.7] * 6)

    def test_the_estimate_is_shrunk_to_the_prior(self) -> None:
        """One accepted token: (1 + 3 x 0.7) / (1 + 3); the deeper stretches inherit it."""
        survival = Survival()
        survival.record(5, 0, 1, then_wrong=False)
        assert survival.overall() == pytest.approx([0.775] * 6)
        assert survival.given(5)[0] == pytest.approx((1 + 3 * 0.775) / 4)

    def test_evidence_is_told_apart(self) -> None:
        """What is right with one evidence and wrong with another comes out so."""
        survival = Survival()
        for _ in range(50):
            survival.record(12, 0, 1, then_wrong=False)
            survival.record(3, 0, 0, then_wrong=True)
        assert survival.given(12)[0] > 0.9
        assert survival.given(3)[0] < 0.1
        assert survival.given("never seen") == survival.overall()

    def test_an_evidence_never_seen_is_what_the_kinds_are_on_average(self) -> None:
        """A thousand right tokens of one kind and three wrong ones of another: each kind has a say
        of three tokens, so (3 + 3 x 0.7) / (3 + 3 + 3)."""
        survival = Survival()
        for _ in range(1000):
            survival.record(12, 0, 1, then_wrong=False)
        for _ in range(3):
            survival.record(3, 0, 0, then_wrong=True)
        assert survival.overall()[0] == pytest.approx(5.1 / 9, abs=0.02)
        assert survival.average()[0] == pytest.approx((20 * 0.95**3 + 2.1) / 23)

    def test_imagined_wrong_tokens_make_it_cautious(self) -> None:
        """After one right token (1 + 3 x 0.7) / (1 + 3 + 2)."""
        survival = Survival()
        survival.record(5, 0, 1, then_wrong=False)
        assert survival.overall(n_wrong=2.0)[0] == pytest.approx(3.1 / 6)

    def test_a_run_counts_as_its_tokens_one_by_one(self) -> None:
        """Ten accepted tokens and a wrong one, at once and singly, leave the same estimates."""
        at_once, singly = Survival(), Survival()
        at_once.record(1, 0, 10, then_wrong=True)
        for index in range(10):
            singly.record(1, index, 1, then_wrong=False)
        singly.record(1, 10, 0, then_wrong=True)
        assert at_once.overall() == pytest.approx(singly.overall())
        assert at_once.given(1) == pytest.approx(singly.given(1))

    def test_the_past_is_forgotten(self) -> None:
        """After 60 wrong tokens a thousand right ones count for little."""
        survival = Survival()
        for _ in range(1000):
            survival.record(1, 0, 1, then_wrong=False)
        for _ in range(60):
            survival.record(1, 0, 0, then_wrong=True)
        assert survival.given(1)[0] < 0.1

    def test_a_source_s_confidence_is_where_its_estimate_begins(self) -> None:
        """It stands in for the prior of every stretch, and what was seen counts as ever."""
        survival = Survival()
        assert survival.given(5, confidence=0.9) == pytest.approx([0.9] * 6)
        survival.record(5, 0, 1, then_wrong=True)
        assert survival.given(5, confidence=0.9)[0] == pytest.approx((1.0 + 2.7) / 4)
        assert survival.of_token(5, 1, 0.9) == pytest.approx((0.0 + 2.7) / 4)

    def test_no_source_is_believed_to_be_certain(self) -> None:
        """It may be wrong one time in fifty."""
        assert Survival().corrected(1.0) == pytest.approx(0.98)

    def test_a_source_that_knows_itself_badly_is_corrected(self) -> None:
        """Ten tokens at 0.9, of which one is expected to be wrong, and five are: six wrong for two,
        the presumed one among them, so its doubt is taken three times. Then the other way round."""
        survival = Survival()
        for _ in range(5):
            survival.judge(0.2, 1, then_wrong=True)
        assert survival.corrected(0.9) == pytest.approx(1 - 0.1 * 6 / 2, abs=0.06)
        timid = Survival()
        timid.judge(5.0, 10, then_wrong=False)
        assert timid.corrected(0.5) == pytest.approx(1 - 0.5 * 1 / 6)

    def test_imagined_wrong_tokens_weigh_against_its_confidence(self) -> None:
        """Two of them beside the presumed one: three times the doubt."""
        assert Survival().corrected(0.9, n_wrong=2.0) == pytest.approx(0.7)
        assert Survival().corrected(0.5, n_wrong=2.0) == 0.0

    def test_at_most_64_kinds_of_evidence_are_kept(self) -> None:
        """A source that breaks its promise does not fill the memory; the rest is pooled."""
        survival = Survival()
        for evidence in range(100):
            survival.record(evidence, 0, 1, then_wrong=False)
        assert survival.given(63) != survival.overall()
        assert survival.given(64) == survival.overall()


class TestShadows:
    def make(self) -> tuple[Shadows, Survival]:
        survival = Survival()
        costs = warm_costs()
        for _ in range(40):
            costs.observe_verify(1, 0.015, switched=False)
        return Shadows(survival, costs), survival

    def test_a_wrong_first_token_was_declined_rightly(self) -> None:
        """It would have cost a wider decode and brought nothing."""
        shadows, _ = self.make()
        assert shadows.compare(Draft([4, 5], 1), [7], declined=True) == 1

    def test_a_draft_that_would_have_paid_was_not(self) -> None:
        """One right token for 1.5 plain decodes is worth 2."""
        shadows, _ = self.make()
        assert shadows.compare(Draft([4, 5], 1), [4], declined=True) == 0
        assert shadows.compare(NO_DRAFT, [9], declined=True) == 0

    def test_a_draft_is_followed_over_several_steps(self) -> None:
        """Each token is compared with the one decided on at its place."""
        shadows, survival = self.make()
        shadows.compare(Draft([4, 5, 6, 7], 1), [4], declined=True)
        for token in (5, 6, 9):
            shadows.compare(NO_DRAFT, [token], declined=True)
        expected = Survival()
        expected.record(1, 0, 3, then_wrong=True)
        assert survival.overall() == pytest.approx(expected.overall())

    def test_the_unverified_rest_of_a_draft_counts(self) -> None:
        """Two tokens verified and accepted, and the third and fourth compared a step later."""
        shadows, survival = self.make()
        shadows.compare(Draft([4, 5, 6, 7], ("a", "a", "b", "b")), [4, 5, 6], declined=False)
        assert shadows.compare(NO_DRAFT, [8], declined=True) == 0
        expected = Survival()
        expected.record("a", 0, 2, then_wrong=False)
        expected.record("b", 2, 1, then_wrong=True)
        assert survival.overall() == pytest.approx(expected.overall())

    def test_of_a_draft_made_meanwhile_its_own_step_counts(self) -> None:
        """The older one is followed on; the newer one's second token is not compared."""
        shadows, survival = self.make()
        shadows.compare(Draft([4, 5, 6, 7], "old"), [4], declined=True)
        shadows.compare(Draft([5, 6], "new"), [5], declined=True)
        shadows.compare(NO_DRAFT, [6], declined=True)
        expected = Survival()
        expected.record("old", 0, 3, then_wrong=False)
        expected.record("new", 0, 1, then_wrong=False)
        assert survival.given("old") == pytest.approx(expected.given("old"), rel=0.01)
        assert survival.given("new") == pytest.approx(expected.given("new"), rel=0.01)

    def test_a_source_s_confidence_is_judged_token_by_token(self) -> None:
        """Of the tokens compared: two right ones and a wrong one, in two steps."""
        shadows, survival = self.make()
        shadows.compare(Draft([4, 5, 6, 7], 1, (0.9, 0.8, 0.5, 0.1)), [4, 5], declined=True)
        shadows.compare(NO_DRAFT, [9], declined=True)
        expected = Survival()
        expected.judge(0.3, 2, then_wrong=False)
        expected.judge(0.5, 0, then_wrong=True)
        assert survival.corrected(0.5) == pytest.approx(expected.corrected(0.5))

    def test_one_confidence_is_that_of_every_token(self) -> None:
        """Two tokens at 0.8."""
        shadows, survival = self.make()
        shadows.compare(Draft([4, 5], 1, 0.8), [4, 9], declined=True)
        expected = Survival()
        expected.judge(0.4, 1, then_wrong=True)
        assert survival.corrected(0.5) == pytest.approx(expected.corrected(0.5))

    def test_a_new_generation_forgets_them(self) -> None:
        """Drafts for the old text say nothing about the new one."""
        shadows, survival = self.make()
        shadows.compare(Draft([4, 5], 1), [4], declined=True)
        before = survival.overall()
        shadows.forget()
        assert shadows.compare(NO_DRAFT, [9], declined=True) == 0
        assert survival.overall() == before


class TestRecord:
    def test_the_line_of_the_report(self) -> None:
        """31 of 214 steps, 130 tokens, 1.18 times, 96 declined and 71 of them rightly."""
        record = GateRecord(
            n_steps=214,
            n_asked_steps=214,
            n_drafted_steps=31,
            n_verified=130,
            n_declined=96,
            n_declined_rightly=71,
            spent_s=10.0,
            saved_s=1.8,
        )
        assert record.line() == (
            "gate: 31 of 214 steps drafted, mean width 4.2, est. gain ×1.18; "
            "declined 96 drafts, 71 of them rightly"
        )

    def test_lines_without_a_draft(self) -> None:
        """A ratio without a denominator is left out."""
        assert GateRecord().line() == "gate: no steps"
        record = GateRecord(n_steps=5, spent_s=1.0)
        assert record.line() == "gate: 0 of 5 steps drafted, est. gain ×1.00; declined 0 drafts"
        assert record.to_dict()["mean_width"] is None
