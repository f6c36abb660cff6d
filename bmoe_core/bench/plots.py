"""The report as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bmoe_core.bench.figures import CellFigures, Verdict
from bmoe_core.bench.plan import ORACLE, Cell
from bmoe_core.bench.report import Report
from bmoe_core.errors import OutputFileError

WIDTH_IN, DPI = 8.0, 100
COLORS: dict[Verdict | None, str] = {
    None: "#7f8c8d",
    Verdict.WINS: "#2e8b57",
    Verdict.HOLDS: "#5b7fa6",
    Verdict.LOSES: "#c0392b",
    Verdict.CONTAMINATED: "#d4ac0d",
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Write ``rates.png``, and where decodes were measured ``break-even.png`` and ``decodes.png``.

    Raises:
        OutputFileError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [_save(_rates(report), folder / "rates.png")]
        if report.step_costs:
            paths.append(_save(_break_even(report), folder / "break-even.png"))
            paths.append(_save(_decodes(report), folder / "decodes.png"))
    except OSError as error:
        raise OutputFileError(f"plots cannot be written to {folder}: {error.strerror}") from None
    return paths


def _save(figure: Figure, path: Path) -> Path:
    with mpl.rc_context({"font.size": 10}):
        figure.savefig(path, dpi=DPI)
    return path


def _axes(height_in: float, rows: int = 1) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _rates(report: Report) -> Figure:
    """Bars of every cell's ratio by prompt, over the noise band, with the ceiling."""
    prompts = [prompt.name for prompt in report.plan.prompts if report.of_prompt(prompt.name)]
    n_bars = sum(len(report.of_prompt(name)) for name in prompts)
    figure, axes = _axes(1.0 + 0.34 * n_bars + 0.7 * len(prompts), max(1, len(prompts)))
    for axis, prompt in zip(axes, prompts, strict=False):
        _prompt_rates(axis, report, prompt)
    axes[-1].set_xlabel("tokens a second, everything included, as a ratio to plain decoding")
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside upper right", fontsize=8, frameon=False, ncols=2
    )
    return figure


def _prompt_rates(axis: Any, report: Report, prompt: str) -> None:
    rows = report.of_prompt(prompt)[::-1]
    band = report.band(prompt)
    if band is not None:
        axis.axvspan(band.low, band.high, color="#dddddd", zorder=0, label="noise band")
    axis.axvline(1.0, color="#555555", linewidth=1, zorder=1)
    for i, (cell, figures) in enumerate(rows):
        _bar(axis, i, cell, figures)
    ceilings = [f.ratio_median for c, f in rows if c.source == ORACLE and f.ratio_median]
    if ceilings:
        axis.axvline(max(ceilings), color="#8e44ad", linestyle="--", linewidth=1, label="ceiling")
    axis.set_yticks(range(len(rows)), [cell.name for cell, _ in rows])
    axis.set_xlim(left=0)
    axis.margins(x=0.2)
    axis.set_title(prompt, loc="left", fontsize=11, fontweight="bold")


def _bar(axis: Any, y: int, cell: Cell, figures: CellFigures) -> None:
    ratio = figures.ratio_median
    if ratio is None:
        return
    low, high = figures.ratio_min or ratio, figures.ratio_max or ratio
    axis.barh(
        y,
        ratio,
        height=0.62,
        color=COLORS[figures.verdict],
        xerr=[[ratio - low], [high - ratio]],
        error_kw={"linewidth": 1, "ecolor": "#333333", "capsize": 2},
        zorder=2,
    )
    rate = figures.effective_tok_s or figures.wall_tok_s or 0.0
    axis.annotate(
        f"×{ratio:.2f}  {rate:.0f} tok/s",
        (high, y),
        textcoords="offset points",
        xytext=(5, 0),
        va="center",
        fontsize=8,
    )


def _break_even(report: Report) -> Figure:
    """The acceptance that each width needs, and what the cells had."""
    figure, (axis,) = _axes(4.2)
    costs = report.step_costs
    widths = [cost.draft for cost in costs]
    needed = [min(1.0, (cost.ratio - 1) / cost.draft) for cost in costs]
    axis.plot(widths, needed, marker="o", color="#c0392b", label="needed to break even")
    axis.fill_between(widths, needed, 1.0, color="#2e8b57", alpha=0.08)
    points: dict[str, list[tuple[int, float]]] = {}
    for prompt in report.plan.prompts:
        for cell, figures in report.of_prompt(prompt.name):
            if cell.is_plugin and figures.acceptance is not None:
                name = f"{cell.source} on {prompt.name}"
                points.setdefault(name, []).append((cell.draft, figures.acceptance))
    for name, pairs in points.items():
        axis.scatter(*zip(*pairs, strict=True), s=45, label=name, zorder=3)
    axis.set_xlabel("draft tokens a verify decode")
    axis.set_ylabel("acceptance (accepted / drafted)")
    axis.set_ylim(0, 1.02)
    axis.set_xticks(widths)
    axis.set_title("Above the line a drafted step pays", loc="left", fontweight="bold")
    axis.legend(fontsize=8, frameon=False, ncols=2, loc="lower right")
    return figure


def _decodes(report: Report) -> Figure:
    """What a decode of several positions costs."""
    figure, (axis,) = _axes(4.2)
    costs = report.step_costs
    positions = [1, *(1 + cost.draft for cost in costs)]
    ratios = [1.0, *(cost.ratio for cost in costs)]
    lows = [0.0, *(cost.ratio - cost.low for cost in costs)]
    highs = [0.0, *(cost.high - cost.ratio for cost in costs)]
    axis.errorbar(positions, ratios, [lows, highs], marker="o", color="#34495e", capsize=3)
    axis.plot(positions, positions, color="#aaaaaa", linestyle=":", label="as many plain decodes")
    axis.axhline(1.0, color="#aaaaaa", linewidth=1, label="one plain decode")
    axis.set_xlabel("positions decoded at once")
    axis.set_ylabel("time, in plain decodes")
    axis.set_xticks(positions)
    axis.set_ylim(bottom=0)
    axis.set_title("What a verify decode costs", loc="left", fontweight="bold")
    axis.legend(fontsize=8, frameon=False)
    return figure
