"""The order of runs, oracle and synthetic sources, contamination and resuming, on fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import define, evolve, field

from bmoe_core.bench import conditions
from bmoe_core.bench.conditions import OthersWatch
from bmoe_core.bench.plan import BASELINE, BASELINE_AGAIN, ORACLE, SYNTHETIC, Cell, Plan
from bmoe_core.bench.prompts import Prompt
from bmoe_core.bench.reference import HindsightSource, OracleSource, SyntheticSource
from bmoe_core.bench.rig import Survey
from bmoe_core.bench.runs import Run
from bmoe_core.bench.session import Session
from bmoe_core.bench.step_costs import WidthCost, measure_widths
from bmoe_core.errors import PeerError
from bmoe_core.loop import generate
from bmoe_core.sources import open_source
from bmoe_core.telemetry import Tally
from bmoe_core.testing import FakeTarget, ScriptedSource, hashed

NGRAM = Cell("ngram", 3)
PEER = Cell("llama-server")


@define
class FakeRig:
    """Notes what it is asked to run; ``on_run`` may fail."""

    asked: list[tuple[str, str]] = field(factory=list)
    taught: list[str] = field(factory=list)
    on_run: Callable[[Cell], None] = lambda cell: None

    def can_run(self, cell: Cell) -> bool:
        return cell.source != "mtp"

    def survey(self, cell: Cell, prompt: Prompt) -> Survey:
        return Survey((1, 2, 3))

    def teach(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        self.taught.append(prompt.name)

    def run(self, cell: Cell, prompt: Prompt) -> Run:
        self.on_run(cell)
        self.asked.append((prompt.name, cell.name))
        return Run(prompt=prompt.name, cell=cell.name, round=0, n_generated=3, wall_s=1.0)


class Watch(OthersWatch):
    """Says what it was told that others used, one run after the other."""

    def __init__(self, *cores: float) -> None:
        super().__init__()
        self.told = list(cores)

    def start(self) -> None: ...

    def used(self) -> tuple[float, float]:
        cores = self.told.pop(0) if self.told else 0.0
        return cores, cores * 10


def plan(*cells: Cell, rounds: int = 2, prompts: str = "ab") -> Plan:
    return Plan(
        model=None,
        prompts=tuple(Prompt(name, name) for name in prompts),
        cells=(BASELINE, *cells, BASELINE_AGAIN),
        n_predict=8,
        rounds=rounds,
        draft=3,
    )


class TestOrder:
    def test_rounds_are_interleaved_and_turned(self) -> None:
        """Every cell once a round on each prompt; the second round backwards."""
        rig = FakeRig()
        session = Session(plan=plan(NGRAM), rig=rig, watch=Watch())
        session.execute()
        forth = ["none", "ngram", "none again"]
        assert rig.asked == [
            *(("a", cell) for cell in forth),
            *(("b", cell) for cell in forth),
            *(("a", cell) for cell in reversed(forth)),
            *(("b", cell) for cell in reversed(forth)),
        ]
        assert [run.round for run in session.runs] == [0] * 6 + [1] * 6

    def test_a_source_that_refuses_the_model_is_left_out(self) -> None:
        """The others run."""
        session = Session(plan=plan(Cell("mtp", 3), NGRAM), rig=FakeRig(), watch=Watch())
        session.execute()
        assert {run.cell for run in session.runs} == {"none", "ngram", "none again"}

    def test_a_peer_that_fails_is_left_out_from_then_on(self) -> None:
        """What the others did stays."""
        broken: list[Cell] = []

        def fail(cell: Cell) -> None:
            broken.append(cell)
            raise PeerError("gone")

        class Peers(FakeRig):
            def can_run(self, cell: Cell) -> bool:
                return not broken

        peers = Peers(on_run=fail)
        session = Session(plan=plan(PEER), rig=FakeRig(), peers=peers, watch=Watch())
        session.execute()
        assert len(broken) == 1
        assert len(session.runs) == 8

    def test_progress_reaches_its_total(self) -> None:
        """From 0, in steps of one."""
        seen: list[tuple[int, int]] = []
        Session(
            plan=plan(NGRAM),
            rig=FakeRig(),
            watch=Watch(),
            on_progress=lambda done, total, what: seen.append((done, total)),
        ).execute()
        assert [done for done, _ in seen] == list(range(19))
        assert {total for _, total in seen} == {18}


class TestContamination:
    def test_a_disturbed_run_is_run_again(self) -> None:
        """Once; a clean second one counts."""
        rig = FakeRig()
        session = Session(plan=plan(rounds=1, prompts="a"), rig=rig, watch=Watch(0.5, 0.0, 0.0))
        session.execute()
        assert rig.asked == [("a", "none"), ("a", "none"), ("a", "none again")]
        assert [run.contaminated for run in session.runs] == [False, False]

    def test_a_run_disturbed_twice_is_marked(self) -> None:
        """It is kept, with what disturbed it."""
        session = Session(plan=plan(rounds=1, prompts="a"), rig=FakeRig(), watch=Watch(0.5, 0.4))
        session.execute()
        assert [run.contaminated for run in session.runs] == [True, False]
        assert session.runs[0].others_cpu == 0.4
        assert session.runs[0].conditions is not None

    def test_our_own_load_is_nobody_else_s(self) -> None:
        """A busy loop of this process is subtracted."""
        watch = OthersWatch()
        watch.start()
        total = sum(i * i for i in range(2_000_000))
        _, seconds = watch.used()
        assert total > 0
        assert seconds >= 0


class TestResuming:
    def test_an_interrupt_keeps_what_is_finished(self) -> None:
        """And a new session goes on with the round that was not whole."""
        calls = 0

        def interrupt(cell: Cell) -> None:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt

        first = Session(
            plan=plan(NGRAM, prompts="a", rounds=3), rig=FakeRig(on_run=interrupt), watch=Watch()
        )
        with pytest.raises(KeyboardInterrupt):
            first.execute()
        assert [(run.round, run.cell) for run in first.runs] == [
            (0, "none"),
            (0, "ngram"),
            (0, "none again"),
            (1, "none again"),
        ]
        marked = [evolve(run, n_generated=7) for run in first.runs]
        rig = FakeRig()
        second = Session(plan=plan(NGRAM, prompts="a", rounds=3), rig=rig, watch=Watch())
        second.execute(marked)
        # The whole round is kept, the begun one is run anew from its beginning.
        assert [run.n_generated for run in second.runs] == [7] * 3 + [3] * 6
        assert [run.round for run in second.runs] == [0] * 3 + [1] * 3 + [2] * 3
        assert len(rig.asked) == 6

    def test_a_record_of_other_cells_is_no_whole_round(self) -> None:
        """A round without one of the cells is run anew."""
        earlier = Session(plan=plan(prompts="a"), rig=FakeRig(), watch=Watch())
        earlier.execute()
        rig = FakeRig()
        later = Session(plan=plan(NGRAM, prompts="a"), rig=rig, watch=Watch())
        later.execute(earlier.runs)
        assert len(rig.asked) == 6


def run_with(source: Any, n_predict: int = 40, width: int = 3) -> Tally:
    rule = hashed(order=3, n_vocab=16, seed=5)
    plain = generate(FakeTarget(rule), [1, 2, 3], n_predict=n_predict)
    list(plain)
    source.reference = plain.tokens
    tally = Tally()
    opened = open_source(source)
    for step in generate(
        FakeTarget(rule), [1, 2, 3], source=opened, n_predict=n_predict, width=width
    ):
        tally.add(step)
    return tally


class TestKnowingSources:
    def test_the_oracle_is_accepted_whole(self) -> None:
        """Every step is a draft, every draft right: the ceiling at its width."""
        summary = run_with(OracleSource()).summary
        assert summary.acceptance == 1.0
        assert summary.coverage == 1.0
        assert summary.n_decodes == 10
        assert summary.tokens_per_verify_decode == 4.0

    def test_an_oracle_that_knows_nothing_declines(self) -> None:
        """Rather than guess."""
        source = open_source(OracleSource())
        generation = generate(FakeTarget(), [1, 2], source=source, n_predict=10)
        assert all(not step.drafted for step in generation)

    @pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
    def test_a_synthetic_source_is_right_as_often_as_told(self, p: float) -> None:
        """At width 1 acceptance is the probability itself."""
        summary = run_with(SyntheticSource(p, n_vocab=16), n_predict=110, width=1).summary
        assert summary.acceptance == pytest.approx(p, abs=0.15)

    def test_hindsight_verifies_what_will_be_accepted_alone(self) -> None:
        """It drafts as the source does, up to the first wrong token, or not at all."""

        def script(tokens: Any, n_max: int) -> list[int]:
            return [rule(tokens.tolist()), 0, 0][:n_max]

        rule = hashed(order=3, n_vocab=16, seed=5)
        inner = ScriptedSource(script)
        summary = run_with(HindsightSource(open_source(inner), n_vocab=16)).summary
        assert summary.acceptance == 1.0
        assert inner.observed
        # Where the target does say 0 next, hindsight keeps it.
        assert 1 <= summary.n_drafted / summary.n_drafted_steps < 1.5

    def test_asked_twice_it_drafts_the_same(self) -> None:
        """What is right depends on the position alone."""
        import numpy as np

        source = SyntheticSource(0.5, n_vocab=16)
        source.reference = list(range(16))
        history = np.arange(4, dtype=np.int32)
        assert source.draft(history, 8) == source.draft(history, 8)
        assert source.draft(history, 8) != source.reference[4:12]


class TestStepCosts:
    def test_widths_are_measured_against_a_plain_decode(self) -> None:
        """A clock that charges 1 s a decode and half a second a position more."""
        now = 0.0

        class Charging(FakeTarget):
            def decode(self, tokens: Sequence[int], n_rows: int) -> Any:
                nonlocal now
                now += 0.5 + 0.5 * len(tokens)
                return super().decode(tokens, n_rows)

        target = Charging(n_ctx=64, recurrent=True)
        costs = measure_widths(
            target, [1, 2, 3], list(range(16)), most=3, rounds=2, clock=lambda: now
        )
        assert [cost.draft for cost in costs] == [1, 2, 3]
        assert [cost.ratio for cost in costs] == [1.5, 2.0, 2.5]
        assert [cost.seconds for cost in costs] == [1.5, 2.0, 2.5]

    @pytest.mark.parametrize(
        ("ratio", "draft", "acceptance", "chance"),
        [
            # One more token for one more plain decode's time, of one: always right.
            (2.0, 1, 1.0, 1.0),
            # 1 of 2 tokens on the average: p + p² = 1 at the golden ratio's inverse.
            (2.0, 2, 0.5, 0.618),
            # Free: any draft pays.
            (1.0, 3, 0.0, 0.0),
            # Four decodes' time for at most three more tokens cannot pay.
            (4.5, 3, None, None),
        ],
    )
    def test_break_even(
        self, ratio: float, draft: int, acceptance: float | None, chance: float | None
    ) -> None:
        """1 + draft × acceptance tokens for the time of ``ratio`` plain ones."""
        cost = WidthCost(draft=draft, seconds=1.0, ratio=ratio, low=ratio, high=ratio)
        assert cost.needed_acceptance == acceptance
        if chance is None:
            assert cost.needed_chance is None
        else:
            assert cost.needed_chance == pytest.approx(chance, abs=1e-3)


def test_cells_are_named_by_what_is_special_about_them() -> None:
    """The default width is not mentioned."""
    assert Cell("ngram", 3).name == "ngram"
    assert Cell("ngram", 1, (("min_match", 5),)).name == "ngram min_match=5 draft=1"
    assert Cell(SYNTHETIC, 3, (("p", 0.5),)).name == "synthetic 0.5"
    assert Cell("ngram", 64, gated=True).name == "ngram gate"
    assert Cell("ngram", 64, gated=True, keeps_gate=True).name == "ngram gate kept"
    assert Cell("ngram", 64, hindsight=True).name == "ngram hindsight"
    assert Cell(ORACLE, 8).name == "oracle draft=8"
    assert Cell("llama-server", 3, (("spec", "ngram-simple"),)).name == "llama-server ngram-simple"
    assert (BASELINE.name, BASELINE_AGAIN.name) == ("none", "none again")


class TestCooling:
    def test_it_waits_until_the_sensor_is_below(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And records how long that took."""
        readings = [50.0, 45.0, 39.0, 39.0]
        monkeypatch.setattr(conditions, "temperature", lambda: readings.pop(0))
        monkeypatch.setattr(conditions, "COOL_POLL_S", 0.01)
        state = conditions.cool_down(40.0, 60.0)
        assert state.temperature_c == 39.0
        assert not state.gave_up_cooling

    def test_it_gives_up_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine that stays warm must not wait for ever."""
        monkeypatch.setattr(conditions, "temperature", lambda: 90.0)
        monkeypatch.setattr(conditions, "COOL_POLL_S", 0.01)
        state = conditions.cool_down(40.0, 0.05)
        assert state.gave_up_cooling
        assert state.waited_s > 0
