"""Ratios, the noise band and the verdicts, on made-up samples worked out by hand."""

from __future__ import annotations

import pytest

from bmoe_core.bench.figures import Verdict, cell_figures, noise_band
from bmoe_core.bench.runs import Run


def run(cell: str, number: int, rate: float, *, contaminated: bool = False, **counts: int) -> Run:
    """A run of 100 tokens at ``rate`` tokens a second."""
    return Run(
        prompt="p",
        cell=cell,
        round=number,
        n_generated=100,
        wall_s=100 / rate,
        contaminated=contaminated,
        **counts,
    )


def rounds(cell_rates: list[float], plain: tuple[tuple[float, float], ...]) -> list[Run]:
    """Rounds of none, a cell, and none again."""
    runs = []
    for i, ((first, again), rate) in enumerate(zip(plain, cell_rates, strict=True)):
        runs += [run("none", i, first), run("ngram", i, rate), run("none again", i, again)]
    return runs


PLAIN = ((10.0, 10.0), (9.5, 10.5), (20.0, 20.0))
"""Means of 10, 10 and 20; the band is 0.95 to 1.05."""


@pytest.mark.parametrize(
    ("rates", "median", "verdict"),
    [
        ([11.0, 11.0, 22.0], 1.1, Verdict.WINS),
        ([10.4, 10.4, 20.8], 1.04, Verdict.HOLDS),
        ([9.6, 9.6, 19.2], 0.96, Verdict.HOLDS),
        ([9.0, 9.0, 18.0], 0.9, Verdict.LOSES),
        # One outlier does not make a verdict.
        ([10.0, 30.0, 20.0], 1.0, Verdict.HOLDS),
    ],
)
def test_a_cell_wins_or_loses_outside_the_band_only(
    rates: list[float], median: float, verdict: Verdict
) -> None:
    """Each round against its own plain runs, whatever the machine does between rounds."""
    figures = cell_figures(rounds(rates, PLAIN))["p", "ngram"]
    assert figures.ratio_median == pytest.approx(median)
    assert figures.verdict is verdict


def test_the_band_is_what_two_plain_runs_differ_by() -> None:
    """9.5 and 10.5 about their mean."""
    band = noise_band(rounds([1.0, 1.0, 1.0], PLAIN), "p")
    assert band is not None
    assert (band.low, band.high) == (pytest.approx(0.95), pytest.approx(1.05))


def test_a_contaminated_run_is_not_averaged() -> None:
    """Its round is left out, and counted as left out."""
    runs = rounds([11.0, 11.0, 22.0], PLAIN)
    runs[1] = run("ngram", 0, 3.0, contaminated=True)
    figures = cell_figures(runs)["p", "ngram"]
    assert (figures.n_rounds, figures.n_contaminated) == (2, 1)
    assert figures.ratio_min == pytest.approx(1.1)
    assert figures.verdict is Verdict.WINS


def test_a_cell_that_was_mostly_disturbed_says_nothing() -> None:
    """Two of three rounds."""
    runs = rounds([11.0, 11.0, 22.0], PLAIN)
    runs[1] = run("ngram", 0, 3.0, contaminated=True)
    runs[4] = run("ngram", 1, 3.0, contaminated=True)
    assert cell_figures(runs)["p", "ngram"].verdict is Verdict.CONTAMINATED


def test_a_baseline_that_was_never_clean_gives_no_verdict() -> None:
    """The disturbed figures are shown, and called so."""
    runs = rounds([11.0, 11.0, 22.0], PLAIN)
    for i in (0, 3, 6):
        runs[i] = run("none", i // 3, PLAIN[i // 3][0], contaminated=True)
    figures = cell_figures(runs)["p", "ngram"]
    assert figures.verdict is Verdict.CONTAMINATED
    assert figures.ratio_median == pytest.approx(1.1)


def test_a_round_whose_baseline_was_disturbed_does_not_count() -> None:
    """There is nothing to compare with."""
    runs = rounds([11.0, 33.0, 22.0], PLAIN)
    runs[3] = run("none", 1, 9.5, contaminated=True)
    figures = cell_figures(runs)["p", "ngram"]
    assert figures.ratio_max == pytest.approx(1.1)


def test_without_a_whole_round_there_is_no_ratio() -> None:
    """An interrupted first round gives rates and no verdict."""
    figures = cell_figures([run("none", 0, 10.0), run("ngram", 0, 11.0)])["p", "ngram"]
    assert figures.wall_tok_s == pytest.approx(11.0)
    assert figures.ratio_median is None
    assert figures.verdict is None
    assert noise_band([run("none", 0, 10.0)], "p") is None


def test_the_baseline_has_no_verdict() -> None:
    """It is what the others are measured by."""
    figures = cell_figures(rounds([1.0, 1.0, 1.0], PLAIN))
    assert figures["p", "none"].verdict is figures["p", "none again"].verdict is None


def test_counts_are_pooled_over_the_rounds() -> None:
    """Acceptance, tokens a decode and coverage of all runs together."""
    counts = {"n_decodes": 60, "n_drafted_steps": 20, "n_drafted": 60, "n_accepted": 40}
    runs = [run("ngram", i, 10.0, **counts) for i in range(2)]
    figures = cell_figures(runs)["p", "ngram"]
    assert figures.acceptance == pytest.approx(2 / 3)
    assert figures.tokens_per_verify_decode == pytest.approx(200 / 120)
    assert figures.coverage == pytest.approx(1 / 3)
    assert figures.tokens_per_drafted_step == pytest.approx(3.0)
