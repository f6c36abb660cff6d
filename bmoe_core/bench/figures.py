"""Statistics of the runs: ratios to plain decoding, the noise band, and the verdicts.

The ratio of a run is its wall rate over the mean of the two plain runs of its round, on the same
prompt. The noise band is how far those two are from their own mean, over all rounds. Only a cell
whose median ratio lies outside the band wins or loses.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Sequence

from attrs import frozen

from bmoe_core.bench.plan import BASELINE, BASELINE_AGAIN
from bmoe_core.bench.runs import Run, median
from bmoe_core.telemetry import ratio

PLAIN = (BASELINE.name, BASELINE_AGAIN.name)
"""The cells that decode plainly, which the others are measured by."""


class Verdict(str, enum.Enum):
    """What a cell's median ratio says."""

    WINS = "wins"
    """Above the noise band."""
    HOLDS = "holds"
    """Within it."""
    LOSES = "loses"
    """Below it."""
    CONTAMINATED = "contaminated"
    """Other programs disturbed more than half of its rounds, or all baselines: it says nothing."""


@frozen
class Band:
    """How far two runs of the same thing were apart.

    Attributes:
        low: the lowest ratio of a plain run to its round's mean.
        high: the highest.
    """

    low: float
    high: float


@frozen(kw_only=True)
class CellFigures:
    """A cell on one prompt, over its clean rounds; a ratio without a denominator is None.

    Attributes:
        prompt: the prompt's name.
        cell: the cell's name.
        n_rounds: rounds that count.
        n_contaminated: rounds that do not, since other programs disturbed them.
        n_generated: tokens of a run, the median.
        reported_tok_s: median tokens a second of decoding.
        effective_tok_s: median tokens a second of decoding and drafting.
        wall_tok_s: median tokens a second, everything included.
        ratio_median: median ratio of the wall rate to plain decoding's in the same round.
        ratio_min: the lowest.
        ratio_max: the highest.
        acceptance: accepted / drafted tokens.
        tokens_per_verify_decode: tokens / target decodes.
        coverage: steps that drafted / all steps.
        step_cost: seconds of a drafted step / those of a plain one.
        tokens_per_drafted_step: tokens of a drafted step.
        majflt_per_token: page faults that read from a disk, a token.
        verdict: None for the baseline itself.
    """

    prompt: str
    cell: str
    n_rounds: int
    n_contaminated: int
    n_generated: float | None
    reported_tok_s: float | None
    effective_tok_s: float | None
    wall_tok_s: float | None
    ratio_median: float | None
    ratio_min: float | None
    ratio_max: float | None
    acceptance: float | None
    tokens_per_verify_decode: float | None
    coverage: float | None
    step_cost: float | None
    tokens_per_drafted_step: float | None
    majflt_per_token: float | None
    verdict: Verdict | None


Key = tuple[str, str]


def cell_figures(runs: Sequence[Run]) -> dict[Key, CellFigures]:
    """The figures of every cell on every prompt, by (prompt, cell), in the order of the runs."""
    keys = list(dict.fromkeys((run.prompt, run.cell) for run in runs))
    baselines = {prompt: _baseline(runs, prompt) for prompt, _ in keys}
    bands = {prompt: noise_band(runs, prompt) for prompt, _ in keys}
    plain = {prompt: _plain_step_s(runs, prompt) for prompt, _ in keys}
    return {
        (prompt, cell): _figures(
            [run for run in runs if (run.prompt, run.cell) == (prompt, cell)],
            baselines[prompt],
            bands[prompt],
            plain[prompt],
        )
        for prompt, cell in keys
    }


def noise_band(runs: Sequence[Run], prompt: str) -> Band | None:
    """The band of the plain runs on a prompt; None until both of a round are there."""
    baseline, _ = _baseline(runs, prompt)
    ratios = [
        rate / baseline[run.round]
        for run in _plain_runs(runs, prompt)
        if run.round in baseline and (rate := run.wall_tok_s)
    ]
    return Band(min(ratios), max(ratios)) if ratios else None


def _baseline(runs: Sequence[Run], prompt: str) -> tuple[dict[int, float], bool]:
    """The mean wall rate of the two plain runs of each round in which both are clean.

    Where there is no such round: of each round, and False.
    """
    plain = [run for run in _plain_runs(runs, prompt) if run.wall_tok_s]
    clean = _pair_means([run for run in plain if not run.contaminated])
    return (clean, True) if clean else (_pair_means(plain), False)


def _plain_runs(runs: Sequence[Run], prompt: str) -> list[Run]:
    return [run for run in runs if run.prompt == prompt and run.cell in PLAIN]


def _pair_means(plain: Sequence[Run]) -> dict[int, float]:
    rates: dict[int, list[float]] = {}
    for run in plain:
        rates.setdefault(run.round, []).append(run.wall_tok_s or 0.0)
    return {number: statistics.mean(pair) for number, pair in rates.items() if len(pair) == 2}


def _plain_step_s(runs: Sequence[Run], prompt: str) -> float | None:
    return median(
        [
            run.plain_step_s
            for run in runs
            if run.prompt == prompt and run.cell == BASELINE.name and run.plain_step_s
        ]
    )


def _figures(
    runs: Sequence[Run],
    baseline: tuple[dict[int, float], bool],
    band: Band | None,
    plain_step_s: float | None,
) -> CellFigures:
    clean = [run for run in runs if not run.contaminated]
    n_contaminated = len(runs) - len(clean)
    # Where nothing is clean the disturbed figures are shown, under a verdict that says so.
    clean = clean or list(runs)
    means, is_clean = baseline
    ratios = [
        run.wall_tok_s / means[run.round] for run in clean if run.wall_tok_s and run.round in means
    ]
    is_clean = is_clean and 2 * n_contaminated <= len(runs)
    n_drafted, n_accepted = _total(runs, "n_drafted"), _total(runs, "n_accepted")
    n_drafted_steps, n_decodes = _total(runs, "n_drafted_steps"), _total(runs, "n_decodes")
    n_generated = sum(run.n_generated for run in runs)
    drafted_step_s = median([run.drafted_step_s for run in clean if run.drafted_step_s])
    majflt = [run.majflt for run in clean if run.majflt is not None]
    return CellFigures(
        prompt=runs[0].prompt,
        cell=runs[0].cell,
        n_rounds=len(runs) - n_contaminated,
        n_contaminated=n_contaminated,
        n_generated=median([run.n_generated for run in runs]),
        reported_tok_s=_median_of(clean, lambda run: run.reported_tok_s),
        effective_tok_s=_median_of(clean, lambda run: run.effective_tok_s),
        wall_tok_s=_median_of(clean, lambda run: run.wall_tok_s),
        ratio_median=median(ratios),
        ratio_min=min(ratios, default=None),
        ratio_max=max(ratios, default=None),
        acceptance=ratio(n_accepted, n_drafted),
        tokens_per_verify_decode=ratio(n_generated, n_decodes),
        coverage=ratio(n_drafted_steps, n_decodes),
        step_cost=drafted_step_s and plain_step_s and drafted_step_s / plain_step_s,
        tokens_per_drafted_step=ratio(n_drafted_steps + n_accepted, n_drafted_steps),
        majflt_per_token=ratio(sum(majflt), sum(r.n_generated for r in clean)) if majflt else None,
        verdict=_verdict(runs[0].cell, median(ratios), band, is_clean),
    )


def _total(runs: Sequence[Run], name: str) -> int:
    return sum(getattr(run, name) or 0 for run in runs)


def _median_of(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    return median([value for run in runs if (value := figure(run)) is not None])


def _verdict(
    cell: str, ratio_median: float | None, band: Band | None, is_clean: bool
) -> Verdict | None:
    if cell in PLAIN or ratio_median is None or band is None:
        return None
    if not is_clean:
        return Verdict.CONTAMINATED
    if ratio_median > band.high:
        return Verdict.WINS
    return Verdict.LOSES if ratio_median < band.low else Verdict.HOLDS
