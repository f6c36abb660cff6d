"""Everything that a bench found, put together."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Protocol

from attrs import field, frozen

from bmoe_core.bench.conditions import machine_facts
from bmoe_core.bench.figures import Band, CellFigures, Key, cell_figures, noise_band
from bmoe_core.bench.plan import BASELINE, ORACLE, Cell, Plan
from bmoe_core.bench.prompts import Prompt
from bmoe_core.bench.rig import NO_SURVEY, Survey
from bmoe_core.bench.runs import Run
from bmoe_core.bench.step_costs import WidthCost
from bmoe_core.steps import common_prefix

SHORT_ANSWER = 48
"""Fewer generated tokens than this are too few to argue from."""


@frozen
class Agreement:
    """Whether a cell said what plain decoding said.

    Attributes:
        equal: token for token.
        position: the first generated token that differs, from 0; None where all are equal.
        top_two_gap: how far apart plain decoding's two highest logits were there; a small gap is a
            near tie that a wider batch rounds to the other side. None: not measured.
    """

    equal: bool
    position: int | None = None
    top_two_gap: float | None = None


class GapMeasure(Protocol):
    """Measures near ties; a rig."""

    def top_two_gap(self, prompt: Prompt, tokens: Sequence[int]) -> float:
        """The gap of plain decoding's two highest logits after a prompt and tokens."""


def agreement(
    prompt: Prompt, told: Sequence[int], plain: Sequence[int], measure: GapMeasure | None
) -> Agreement:
    """Compare a cell's tokens with those of plain decoding; None measures no near tie."""
    differs = common_prefix(told, plain)
    if differs == len(told) == len(plain):
        return Agreement(equal=True)
    if measure is None:
        return Agreement(False, differs)
    return Agreement(False, differs, round(measure.top_two_gap(prompt, plain[:differs]), 4))


@frozen(kw_only=True)
class Report:
    """A bench's findings.

    Attributes:
        plan: what was asked for.
        model: the model's file name, architecture, layers, experts and size.
        n_prompt: tokens of each prompt, by its name.
        n_ctx: positions of the contexts.
        n_threads: threads of the decodes.
        cells: the cells that were run.
        left_out: why others were not, by their source.
        runs: the finished runs.
        surveys: the counts, by cell and prompt.
        agreements: by prompt and cell.
        step_costs: decodes of several positions, by draft width.
        interrupted: whether it was ended early.
        started: when it began.
        machine: what it ran on.
        versions: of bmoe-core and of llama-cpp-python.
    """

    plan: Plan
    model: Mapping[str, Any]
    n_prompt: Mapping[str, int]
    n_ctx: int
    n_threads: int
    cells: Sequence[Cell]
    left_out: Mapping[str, str]
    runs: Sequence[Run]
    surveys: Mapping[tuple[Cell, str], Survey]
    agreements: Mapping[Key, Agreement]
    step_costs: Sequence[WidthCost]
    interrupted: bool
    started: datetime.datetime
    machine: Mapping[str, Any] = field(factory=machine_facts)
    versions: Mapping[str, str] = field(
        factory=lambda: {name: version(name) for name in ("bmoe-core", "llama-cpp-python")}
    )
    figures: Mapping[Key, CellFigures] = field(init=False)

    @figures.default
    def _make_figures(self) -> dict[Key, CellFigures]:
        return cell_figures(self.runs)

    def band(self, prompt: str) -> Band | None:
        """The noise band on a prompt."""
        return noise_band(self.runs, prompt)

    def of_prompt(self, prompt: str) -> list[tuple[Cell, CellFigures]]:
        """The cells with finished runs on a prompt, in the plan's order."""
        return [
            (cell, self.figures[prompt, cell.name])
            for cell in self.cells
            if (prompt, cell.name) in self.figures
        ]

    def survey(self, cell: Cell, prompt: str) -> Survey:
        """A cell's counts, empty for a peer; the repeated baseline has those of the first."""
        return self.surveys.get((BASELINE if cell.is_baseline else cell, prompt), NO_SURVEY)

    def share_of_ceiling(self, figures: CellFigures) -> float | None:
        """A cell's ratio as a share of the oracle's on the same prompt, or None without one.

        The oracle of the cell's width, or the best of all where there is none of that width.
        """
        drafts = {cell.name: cell.draft for cell in self.cells}
        oracles = {
            cell.draft: other.ratio_median
            for cell, other in self.of_prompt(figures.prompt)
            if cell.source == ORACLE and other.ratio_median
        }
        if not oracles or figures.ratio_median is None:
            return None
        return figures.ratio_median / oracles.get(drafts[figures.cell], max(oracles.values()))

    def is_short(self, prompt: str) -> bool:
        """Whether plain decoding's answer to a prompt is too short to argue from."""
        baseline = self.figures.get((prompt, BASELINE.name))
        return baseline is not None and (baseline.n_generated or 0) < SHORT_ANSWER

    @property
    def has_experts(self) -> bool:
        """Whether the model has routed experts."""
        return bool(self.model.get("n_expert"))
