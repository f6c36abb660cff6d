"""The findings in plain words."""

from __future__ import annotations

import math

from bmoe_core.bench.figures import Band, CellFigures, Verdict
from bmoe_core.bench.plan import Cell
from bmoe_core.bench.report import Report


def sentence(cell: Cell, figures: CellFigures) -> str:
    """What a cell gained or lost on a prompt, and what made it so."""
    return f"{cell.name} {_outcome(figures)}{_reason(figures)}."


def _outcome(figures: CellFigures) -> str:
    ratio = figures.ratio_median
    if figures.verdict is Verdict.CONTAMINATED:
        return f"on {figures.prompt} says nothing: other programs disturbed it"
    if ratio is None:
        return f"on {figures.prompt} was not measured"
    if figures.verdict is Verdict.HOLDS:
        return f"holds on {figures.prompt} (×{ratio:.2f}, within the noise)"
    gain = f"gains {ratio - 1:.0%}" if ratio > 1 else f"loses {1 - ratio:.0%}"
    return f"{gain} on {figures.prompt}"


def _reason(figures: CellFigures) -> str:
    if figures.coverage is None or figures.verdict is Verdict.CONTAMINATED:
        return ""
    if figures.coverage == 0:
        return ": it never drafted"
    if figures.tokens_per_drafted_step is None or figures.step_cost is None:
        return f": it drafted on {figures.coverage:.0%} of its steps"
    return (
        f": it drafted on {figures.coverage:.0%} of its steps, and a drafted step brought "
        f"{figures.tokens_per_drafted_step:.2f} tokens at {figures.step_cost:.1f} times the cost "
        "of a plain one"
    )


def closing(report: Report, prompt: str) -> str:
    """The sentence on the cell that is furthest from plain decoding on a prompt."""
    told = [(cell, figures) for cell, figures in report.of_prompt(prompt) if cell.is_plugin]
    if not told:
        return ""

    def distance(item: tuple[Cell, CellFigures]) -> float:
        return abs(math.log(item[1].ratio_median or 1.0))

    return sentence(*max(told, key=distance))


def band_words(band: Band | None) -> str:
    """The noise band as a line."""
    if band is None:
        return "no noise band: the repeated baseline is not complete"
    return f"noise band ×{band.low:.2f} to ×{band.high:.2f}, from plain decoding run twice a round"


def break_even_lines(report: Report) -> list[str]:
    """A line for each width that some cell drafted at: what it needs, and what was measured."""
    lines = []
    for cost in report.step_costs:
        needed = cost.needed_acceptance
        if needed is None:
            need = "cannot pay: it costs more than all its tokens"
        else:
            need = f"pays above {needed:.0%} acceptance"
        measured = [
            f"{cell.name} on {figures.prompt} {figures.acceptance:.0%}"
            for prompt in report.plan.prompts
            for cell, figures in report.of_prompt(prompt.name)
            if cell.draft == cost.draft and cell.is_plugin and figures.acceptance is not None
        ]
        had = f"; measured: {', '.join(measured)}" if measured else ""
        lines.append(f"draft {cost.draft}: ×{cost.ratio:.2f} a plain decode, {need}{had}")
    return lines
