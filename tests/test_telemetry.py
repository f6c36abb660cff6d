"""Tally, summary, report and record, recomputed by hand."""

from __future__ import annotations

import json

import pytest

from bmoe_core import Step, Summary, Tally, report_lines
from bmoe_core.footprint import Footprint, FootprintSampler
from bmoe_core.meter import Cost, Meter
from bmoe_core.telemetry import RunRecord


def step(n_tokens: int, n_drafted: int, n_accepted: int) -> Step:
    return Step(
        tokens=tuple(range(n_tokens)),
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        decode=Cost(wall_s=0.1, cpu_s=0.2, majflt=1),
        draft_s=0.025,
        loop_s=0.001,
    )


@pytest.fixture
def summary() -> Summary:
    """One plain step, one half-accepted draft, one accepted whole."""
    tally = Tally()
    for record in (step(1, 0, 0), step(2, 3, 1), step(4, 3, 3)):
        tally.add(record)
    return tally.summary


def test_counts_and_ratios(summary: Summary) -> None:
    """Seven tokens in three decodes, two of which verified three drafts each."""
    assert (summary.n_generated, summary.n_decodes, summary.n_drafted_steps) == (7, 3, 2)
    assert (summary.n_drafted, summary.n_accepted) == (6, 4)
    assert summary.acceptance == pytest.approx(4 / 6)
    assert summary.tokens_per_verify_decode == pytest.approx(7 / 3)
    assert summary.coverage == pytest.approx(2 / 3)
    assert summary.reported_tok_s == pytest.approx(7 / 0.3)
    assert summary.effective_tok_s == pytest.approx(7 / 0.375)


def test_a_ratio_without_a_denominator_is_none() -> None:
    """Not 0, which would be a claim."""
    empty = Summary()
    for figure in (
        empty.acceptance,
        empty.tokens_per_verify_decode,
        empty.coverage,
        empty.reported_tok_s,
        empty.effective_tok_s,
        empty.draft_s_per_token,
    ):
        assert figure is None


def test_the_report_is_bigmoeonedge_s() -> None:
    """Literally the lines of BigMoeOnEdge, for its own figures."""
    summary = Summary(
        n_generated=256,
        n_decodes=214,
        n_drafted_steps=32,
        n_drafted=95,
        n_accepted=42,
        decode=Cost(wall_s=256 / 5.24),
        draft_s=0.0,
    )
    assert report_lines("ngram", summary) == [
        "ngram: 42/95 drafts accepted (44.2%), 1.20 tokens per verify decode "
        "(214 decodes for 256 tokens)",
        "ngram: drafting costs 0.0000 s/token on top of decode → 5.24 tok/s effective "
        "(vs 5.24 reported)",
        "ngram: drafted on 32 of 214 steps (15.0%); the rest decoded plainly",
    ]


def test_the_report_of_a_run_that_never_drafted() -> None:
    """No percentage of nothing."""
    summary = Summary(n_generated=2, n_decodes=2, decode=Cost(wall_s=0.5))
    assert report_lines("ngram", summary)[0].startswith("ngram: 0/0 drafts accepted (none drafted)")


@pytest.mark.parametrize(
    ("decode_s", "draft_s", "line"),
    [
        (0.5, 0.6, ["ngram: slow: 300.0 ms a step in the source, and 250.0 ms in the model"]),
        (0.6, 0.5, []),
        (0.001, 0.0019, []),
    ],
    ids=["longer than the model", "shorter than the model", "too short to be felt"],
)
def test_a_slow_source_is_named(decode_s: float, draft_s: float, line: list[str]) -> None:
    """With its time a step, where it takes longer than the model, and a millisecond or more."""
    summary = Summary(n_generated=2, n_decodes=2, decode=Cost(wall_s=decode_s), draft_s=draft_s)
    assert report_lines("ngram", summary)[3:] == line


def test_the_report_of_plain_decoding_and_of_nothing() -> None:
    """One line each."""
    assert report_lines("none", Summary(n_generated=1, n_decodes=1, decode=Cost(wall_s=0.5))) == [
        "none: 1 token in 1 plain decode, 2.00 tok/s"
    ]
    assert report_lines("ngram", Summary()) == ["ngram: no tokens were generated"]


def test_the_record_has_the_documented_keys_in_order(summary: Summary) -> None:
    """And survives JSON."""
    record = RunRecord(
        source="ngram",
        model="m.gguf",
        n_prompt=3,
        summary=summary,
        wall_s=0.5,
        prefill_s=0.1,
        load_s=0.2,
        footprint=Footprint(10.0, 6.0, 4.0, None, 100.0),
        routing=None,
        gate={"plain_s": 0.25},
        sampling=None,
        finish_reason="length",
        warnings=["w"],
        tokens=[1, 2],
        text="ab",
    ).to_dict()
    assert list(record) == [
        "source",
        "model",
        "n_prompt",
        "n_generated",
        "n_decodes",
        "n_drafted_steps",
        "n_drafted",
        "n_accepted",
        "acceptance",
        "tokens_per_verify_decode",
        "coverage",
        "decode_s",
        "draft_s",
        "loop_s",
        "reported_tok_s",
        "effective_tok_s",
        "wall_tok_s",
        "prefill_s",
        "load_s",
        "majflt_per_token",
        "cpu_s_per_token",
        "rss_mib",
        "rss_anon_mib",
        "rss_file_mib",
        "swap_mib",
        "available_mib",
        "routing",
        "gate",
        "sampling",
        "finish_reason",
        "warnings",
        "tokens",
        "text",
    ]
    assert record["wall_tok_s"] == pytest.approx(14.0)
    assert record["cpu_s_per_token"] == pytest.approx(0.6 / 7)
    assert record["majflt_per_token"] == pytest.approx(3 / 7)
    assert record["loop_s"] == pytest.approx(0.003)
    assert record["swap_mib"] is None
    assert json.loads(json.dumps(record)) == record


def test_costs_add_up_and_what_is_not_reported_stays_unknown() -> None:
    """Unknown page faults are None, never 0."""
    total = Cost(1.0, 2.0, 3) + Cost(0.5, 0.25, 4)
    assert total == Cost(1.5, 2.25, 7)
    assert (Cost(1.0) + Cost(1.0)).majflt is None
    assert Summary(n_generated=2, decode=Cost(1.0)).majflt_per_token is None


def test_a_meter_counts_what_lies_between_start_and_stop() -> None:
    """Several stretches add up; taking them begins anew."""
    meter = Meter()
    for _ in range(2):
        meter.start()
        sum(range(200_000))
        meter.stop()
    spent = meter.take()
    assert 0 < spent.cpu_s <= 1.5 * spent.wall_s
    assert meter.take() == Cost()


def test_the_footprint_is_sampled_now_and_then() -> None:
    """A second sample is not taken at once."""
    sampler = FootprintSampler()
    footprint = sampler.sample()
    assert footprint is not None
    assert footprint.rss_mib > 1
    assert footprint.available_mib > 1
    assert sampler.sample() is None
