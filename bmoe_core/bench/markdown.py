"""The report in Markdown, to be pasted into an issue."""

from __future__ import annotations

from bmoe_core.bench.plan import Cell
from bmoe_core.bench.report import Report
from bmoe_core.bench.table import agreement_words, figure, rate
from bmoe_core.bench.words import band_words, break_even_lines, sentence


def markdown(report: Report) -> str:
    """What ran, a table for each prompt, the break-even, and a sentence for each cell."""
    parts = ["# bmoe bench", _facts(report)]
    for prompt in report.plan.prompts:
        rows = report.of_prompt(prompt.name)
        if not rows:
            continue
        n = rows[0][1].n_generated or 0
        parts.append(
            f"## {prompt.name}\n\n{report.n_prompt[prompt.name]} tokens of prompt, {n:.0f} "
            f"generated, {rows[0][1].n_rounds} clean rounds of {report.plan.rounds}; "
            f"{band_words(report.band(prompt.name))}."
        )
        if report.is_short(prompt.name):
            parts.append("The answer is short: a few tokens are little to argue from.")
        parts.append(_cells(report, prompt.name))
        words = [f"- {sentence(*row)}" for row in rows if not row[0].is_baseline]
        parts.append("\n".join(words))
    lines = [f"- {line}" for line in break_even_lines(report)]
    if lines:
        parts += ["## Break-even", "\n".join(lines)]
    if report.left_out:
        parts.append(
            "\n".join(f"{name} was left out: {why}" for name, why in report.left_out.items())
        )
    if report.interrupted:
        parts.append("Interrupted: the figures are of what was finished.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(report: Report) -> str:
    model, machine = report.model, report.machine
    experts = f", {model['n_expert']} experts, {model['n_expert_used']} used"
    busy = [run.others_cpu for run in report.runs if run.others_cpu is not None]
    disturbed = sum(run.contaminated for run in report.runs)
    facts = [
        f"{report.started:%d %B %Y}",
        f"{model['file']} ({model['architecture']}, {model['n_layer']} layers"
        f"{experts if report.has_experts else ''}, {model['size_mib']} MiB)",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_mib']} MiB, "
        f"{machine['system']}",
        f"bmoe-core {report.versions['bmoe-core']}, llama-cpp-python "
        f"{report.versions['llama-cpp-python']}, {report.n_threads} threads, "
        f"context {report.n_ctx}",
        f"{report.plan.n_predict} tokens at most, greedy, draft {report.plan.draft}, "
        f"{report.plan.rounds} rounds",
    ]
    if busy:
        facts.append(
            f"other programs used {max(busy):.2f} cores at most during a run; "
            f"{disturbed} of {len(report.runs)} runs contaminated"
        )
    return "\n".join(f"- {fact}" for fact in facts)


def _cells(report: Report, prompt: str) -> str:
    rows = report.of_prompt(prompt)
    has_ceiling = any(report.share_of_ceiling(figures) is not None for _, figures in rows)
    header = ["cell", "tok/s", "effective", "×none", "range"]
    header += ["MiB/token", "hit (modelled)"] if report.has_experts else []
    header += ["acceptance", "tok/verify", "drafted steps", "step cost", "majflt/token"]
    header += ["of ceiling"] if has_ceiling else []
    header += ["same answer", "verdict"]
    lines = [header, ["---"] * len(header)]
    lines += [_row(report, cell, prompt, has_ceiling) for cell, _ in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(report: Report, cell: Cell, prompt: str, has_ceiling: bool) -> list[str]:
    figures = report.figures[prompt, cell.name]
    survey = report.survey(cell, prompt)
    low, high = figures.ratio_min, figures.ratio_max
    row = [
        cell.name,
        rate(figures.reported_tok_s or figures.wall_tok_s),
        rate(figures.effective_tok_s),
        figure(figures.ratio_median, ".3f"),
        "–" if low is None or high is None else f"{low:.2f} to {high:.2f}",
    ]
    if report.has_experts:
        row.append(figure(survey.demanded_mib_per_token, ".2f"))
        row.append(figure(survey.modelled_hit_rate, ".1%"))
    row += [
        figure(figures.acceptance, ".1%"),
        figure(figures.tokens_per_verify_decode, ".2f"),
        figure(None if cell.is_baseline else figures.coverage, ".1%"),
        "–" if figures.step_cost is None else f"×{figures.step_cost:.2f}",
        figure(figures.majflt_per_token, ".1f"),
    ]
    if has_ceiling:
        row.append(figure(report.share_of_ceiling(figures), ".0%"))
    row.append(agreement_words(report.agreements.get((prompt, cell.name))))
    row.append(figures.verdict.value if figures.verdict else "")
    return row
