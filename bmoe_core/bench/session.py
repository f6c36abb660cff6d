"""Runs the cells in turned order, round by round, and keeps what is finished."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from attrs import define, evolve, field

from bmoe_core.bench.conditions import (
    OTHERS_LIMIT,
    Conditions,
    OthersWatch,
    conditions_now,
    cool_down,
)
from bmoe_core.bench.plan import BASELINE, Cell, Plan
from bmoe_core.bench.prompts import Prompt
from bmoe_core.bench.rig import Survey
from bmoe_core.bench.runs import Run
from bmoe_core.errors import PeerError

LEAST_OTHERS_S = 0.05
"""Processor seconds of others that are not told from noise: the system counts in steps of 0.01."""


class Runner(Protocol):
    """Runs cells: bmoe's own, or a peer's."""

    def can_run(self, cell: Cell) -> bool:
        """Whether it can run this one here."""

    def run(self, cell: Cell, prompt: Prompt) -> Run:
        """One timed run."""


class SurveyingRunner(Runner, Protocol):
    """Bmoe's own."""

    def survey(self, cell: Cell, prompt: Prompt) -> Survey:
        """One run for its counts."""

    def teach(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Tell the sources that know the answer what plain decoding says."""


@define(eq=False, kw_only=True)
class Session:
    """A bench that is being run.

    Attributes:
        plan: what was asked for.
        rig: runs bmoe's own cells.
        peers: runs the others; None: there are none.
        watch: counts what other programs use.
        on_progress: called with what is done, what is to be done, and what is run now.
        cells: the cells that can be run here, in order; empty until all have started.
        runs: the finished runs.
        surveys: what was counted, by cell and prompt.
    """

    plan: Plan
    rig: SurveyingRunner
    peers: Runner | None = None
    watch: OthersWatch = field(factory=OthersWatch)
    on_progress: Callable[[int, int, str], Any] = lambda done, total, what: None
    cells: list[Cell] = field(factory=list, init=False)
    runs: list[Run] = field(factory=list, init=False)
    surveys: dict[tuple[Cell, str], Survey] = field(factory=dict, init=False)

    def _runner(self, cell: Cell) -> Runner:
        if not cell.is_peer:
            return self.rig
        assert self.peers is not None
        return self.peers

    def execute(self, finished: Sequence[Run] = ()) -> None:
        """Survey every cell, then run the rounds; an interrupt leaves what is finished.

        Args:
            finished: runs of an earlier session, whose whole rounds are kept. A round that is not
                whole is run anew: only runs of one round are compared with each other.
        """
        # An interrupt while the contexts and peers start must not lose what was finished before.
        self.runs = list(finished)
        cells = [cell for cell in self.plan.cells if self._runner(cell).can_run(cell)]
        self.cells = cells
        wanted = {(prompt.name, cell.name) for prompt in self.plan.prompts for cell in cells}
        by_round: dict[int, list[Run]] = {}
        for run in finished:
            by_round.setdefault(run.round, []).append(run)
        kept = [
            number
            for number, runs in by_round.items()
            if wanted <= {(run.prompt, run.cell) for run in runs}
        ]
        self.runs = [run for number in sorted(kept) for run in by_round[number]]
        todo = [number for number in range(self.plan.rounds) if number not in kept]
        own = [cell for cell in cells if not cell.is_peer]
        total = len(self.plan.prompts) * (len(own) + len(todo) * len(cells))
        done = 0
        for prompt in self.plan.prompts:
            for cell in own:
                self.on_progress(done, total, f"counting: {cell.name} on {prompt.name}")
                self._survey(cell, prompt)
                done += 1
        for number in todo:
            for prompt, cell in self._round(number, cells):
                what = f"round {number + 1} of {self.plan.rounds}: {cell.name} on {prompt.name}"
                self.on_progress(done, total, what)
                # A peer that fails is left out from then on; its runner says so.
                with contextlib.suppress(PeerError):
                    if self._runner(cell).can_run(cell):
                        self.runs.append(self._timed(cell, prompt, number))
                done += 1
        self.on_progress(total, total, "done")

    def _survey(self, cell: Cell, prompt: Prompt) -> None:
        survey = self.rig.survey(cell, prompt)
        self.surveys[cell, prompt.name] = survey
        if cell == BASELINE:
            self.rig.teach(prompt, survey.tokens)

    def _round(self, number: int, cells: Sequence[Cell]) -> Iterator[tuple[Prompt, Cell]]:
        """Every cell on every prompt; in odd rounds backwards, so that a drift favours nobody."""
        for prompt in self.plan.prompts:
            for cell in cells[:: -1 if number % 2 else 1]:
                yield prompt, cell

    def _timed(self, cell: Cell, prompt: Prompt, number: int) -> Run:
        """A run, and one more where other programs disturbed the first."""
        for _ in range(2):
            conditions = self._conditions()
            self.watch.start()
            run = self._runner(cell).run(cell, prompt)
            others, others_s = self.watch.used()
            disturbed = others > OTHERS_LIMIT and others_s > LEAST_OTHERS_S
            run = evolve(
                run,
                round=number,
                conditions=conditions,
                others_cpu=round(others, 3),
                contaminated=disturbed,
            )
            if not disturbed:
                break
        return run

    def _conditions(self) -> Conditions:
        if self.plan.cool_c is None:
            return conditions_now()
        return cool_down(self.plan.cool_c, self.plan.cool_s)
