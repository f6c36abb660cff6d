"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bmoe_core.bench.figures import CellFigures, Verdict
from bmoe_core.bench.plan import LLAMA_CPP_PYTHON, Cell
from bmoe_core.bench.report import Agreement, Report
from bmoe_core.bench.words import band_words, break_even_lines, closing

STYLES = {
    Verdict.WINS: "bold green",
    Verdict.HOLDS: "",
    Verdict.LOSES: "bold red",
    Verdict.CONTAMINATED: "yellow",
}


def figure(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def print_report(report: Report, console: Console) -> None:
    """Every prompt's tables, the break-even, and a sentence for each prompt."""
    for prompt in report.plan.prompts:
        rows = report.of_prompt(prompt.name)
        if not rows:
            continue
        n = rows[0][1].n_generated or 0
        console.print()
        console.print(
            f"[bold]{prompt.name}[/]: {report.n_prompt[prompt.name]} tokens of prompt, "
            f"{n:.0f} generated, {rows[0][1].n_rounds} clean rounds of {report.plan.rounds}"
        )
        console.print(rates_table(rows, console.width))
        console.print()
        console.print(costs_table(report, rows, console.width))
        if any(cell.swept for cell, _ in rows):
            console.print()
            console.print(sweep_table(report, rows, console.width))
        console.print(band_words(report.band(prompt.name)), style="dim", highlight=False)
        if report.is_short(prompt.name):
            console.print("the answer is short: a few tokens are little to argue from", style="dim")
    console.print()
    for line in break_even_lines(report):
        console.print(line, highlight=False)
    for source, reason in report.left_out.items():
        console.print(f"{source} was left out: {reason}", highlight=False)
    console.print()
    for prompt in report.plan.prompts:
        words = closing(report, prompt.name)
        if words:
            console.print(words, style="bold", highlight=False)
    console.print()
    console.print(legend(report), style="dim", highlight=False)
    if report.interrupted:
        console.print("Interrupted: the figures are of what was finished.", style="yellow")


def legend(report: Report) -> str:
    """What the short column names stand for."""
    parts = [
        "eff.: tokens / (decoding + drafting). ×none: everything included, against plain decoding "
        "of the same round. acc.: accepted / drafted. tok/dec: tokens / decodes. cover: steps that "
        "drafted. cost, tok/step: of a drafted step, against a plain one. majflt: faults a token."
    ]
    if report.has_experts:
        parts.append("MiB/tok: experts demanded; hit: of a modelled cache of half of them.")
    if any(cell.is_peer for cell in report.cells):
        parts.append("py: llama-cpp-python; server: llama-server.")
    return " ".join(parts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int) -> Table:
    """A table whose first column gives way where the terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    others = [max(len(row[i]) for row in [columns, *rows]) for i in range(1, len(columns))]
    room = width - sum(others) - len(others)
    table.add_column(columns[0], no_wrap=True, overflow="ellipsis", max_width=max(room, 8))
    for column, least in zip(columns[1:], others, strict=True):
        table.add_column(column, justify="right", no_wrap=True, min_width=least)
    for row in rows:
        table.add_row(*row)
    return table


def _short(cell: Cell) -> str:
    """A peer's cell in fewer letters; the legend says what they stand for."""
    if not cell.is_peer:
        return cell.name
    peer = "py" if cell.source == LLAMA_CPP_PYTHON else "server"
    return cell.name.replace(cell.source, peer) if cell.options else f"{peer} plain"


def rate(tok_s: float | None) -> str:
    """A rate with three or four digits: a measurement is worth no more."""
    digits = 2 if (tok_s or 0) < 10 else 1 if (tok_s or 0) < 100 else 0
    return figure(tok_s, f".{digits}f")


def rates_table(rows: Sequence[tuple[Cell, CellFigures]], width: int) -> Table:
    """What each cell came to, in time."""
    columns = ["cell", "tok/s", "eff.", "×none", "range", "acc.", "tok/dec", "cover", ""]
    lines: list[list[str | Text]] = []
    for cell, figures in rows:
        low, high = figures.ratio_min, figures.ratio_max
        verdict = figures.verdict
        lines.append(
            [
                _short(cell),
                rate(figures.reported_tok_s or figures.wall_tok_s),
                rate(figures.effective_tok_s),
                figure(figures.ratio_median, ".2f"),
                "–" if low is None or high is None else f"{low:.2f}–{high:.2f}",
                figure(figures.acceptance, ".0%"),
                figure(figures.tokens_per_verify_decode, ".2f"),
                figure(None if cell.is_baseline else figures.coverage, ".0%"),
                Text(verdict.value if verdict else "", style=STYLES[verdict] if verdict else ""),
            ]
        )
    return _table(columns, lines, width)


def costs_table(report: Report, rows: Sequence[tuple[Cell, CellFigures]], width: int) -> Table:
    """What each cell cost, and whether it said the same."""
    has_ceiling = any(report.share_of_ceiling(figures) is not None for _, figures in rows)
    columns = ["cell"]
    columns += ["MiB/tok", "hit"] if report.has_experts else []
    columns += ["majflt", "cost", "tok/step"]
    columns += ["ceiling"] if has_ceiling else []
    columns += ["same answer"]
    lines: list[list[str | Text]] = []
    for cell, figures in rows:
        survey = report.survey(cell, figures.prompt)
        values: list[str | Text] = [_short(cell)]
        if report.has_experts:
            values.append(figure(survey.demanded_mib_per_token, ".2f"))
            values.append(figure(survey.modelled_hit_rate, ".0%"))
        values.append(figure(figures.majflt_per_token, ".1f"))
        values.append("–" if figures.step_cost is None else f"×{figures.step_cost:.2f}")
        values.append(figure(figures.tokens_per_drafted_step, ".2f"))
        if has_ceiling:
            values.append(figure(report.share_of_ceiling(figures), ".0%"))
        values.append(agreement_words(report.agreements.get((figures.prompt, cell.name))))
        lines.append(values)
    return _table(columns, lines, width)


def agreement_words(agreement: Agreement | None) -> str:
    """Whether the answer was the same, or up to which token and how near the tie was there."""
    if agreement is None:
        return "–"
    if agreement.equal:
        return "yes"
    return f"to {agreement.position} ({figure(agreement.top_two_gap, '.3f')})"


def sweep_table(report: Report, rows: Sequence[tuple[Cell, CellFigures]], width: int) -> Table:
    """The swept cells and the baseline, as BigMoeOnEdge tabulates its gate."""
    columns = ["sweep", "eff.", "×none"]
    columns += ["MiB/tok"] if report.has_experts else []
    columns += ["acceptance", "drafted steps", "tok/dec"]
    lines: list[list[str | Text]] = []
    for cell, figures in rows:
        if not cell.swept and not cell.is_baseline:
            continue
        survey = report.survey(cell, figures.prompt)
        values: list[str | Text] = [cell.name, rate(figures.effective_tok_s)]
        values.append(figure(figures.ratio_median, ".2f"))
        if report.has_experts:
            values.append(figure(survey.demanded_mib_per_token, ".2f"))
        values.append(figure(figures.acceptance, ".1%"))
        values.append(figure(None if cell.is_baseline else figures.coverage, ".1%"))
        values.append(figure(figures.tokens_per_verify_decode, ".2f"))
        lines.append(values)
    return _table(columns, lines, width)
