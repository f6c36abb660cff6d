"""Tally, summary, report and record, recomputed by hand."""

from __future__ import annotations

import json

import pytest

from bmoe_core import Step, Summary, Tally, report_lines
from bmoe_core.telemetry import RunRecord
from bmoe_core.usage import Usage


def step(n_tokens: int, n_drafted: int, n_accepted: int) -> Step:
    return Step(
        tokens=tuple(range(n_tokens)),
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        decode_s=0.1,
        draft_s=0.025,
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
        decode_s=256 / 5.24,
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
    summary = Summary(n_generated=2, n_decodes=2, decode_s=0.5)
    assert report_lines("ngram", summary)[0].startswith("ngram: 0/0 drafts accepted (none drafted)")


def test_the_report_of_plain_decoding_and_of_nothing() -> None:
    """One line each."""
    assert report_lines("none", Summary(n_generated=1, n_decodes=1, decode_s=0.5)) == [
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
        usage=Usage(cpu_s=1.4, majflt=None, rss_mib=10.0),
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
        "reported_tok_s",
        "effective_tok_s",
        "wall_tok_s",
        "prefill_s",
        "load_s",
        "majflt_per_token",
        "cpu_s_per_token",
        "rss_mib",
        "finish_reason",
        "warnings",
        "tokens",
        "text",
    ]
    assert record["wall_tok_s"] == pytest.approx(14.0)
    assert record["cpu_s_per_token"] == pytest.approx(0.2)
    assert record["majflt_per_token"] is None
    assert json.loads(json.dumps(record)) == record


def test_usage_is_a_difference_of_totals() -> None:
    """Memory is that of the later moment."""
    before = Usage(cpu_s=1.0, majflt=5, rss_mib=10.0)
    assert Usage(cpu_s=3.0, majflt=7, rss_mib=20.0).since(before) == Usage(2.0, 2, 20.0)
    assert Usage.now().rss_mib > 1
