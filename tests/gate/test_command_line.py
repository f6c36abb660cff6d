"""--gate and --draft auto as their user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmoe_core import arguments
from bmoe_core.arguments import parse
from bmoe_core.cli import main

PROMPT = "one two three one two three one two"


@pytest.fixture
def run(
    model_paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str, dict[str, Any]]]:
    """Runs bmoe on a tiny model; its answer, its report and its record."""

    def run_(*given: str, model: str = "dense") -> tuple[str, str, dict[str, Any]]:
        path = tmp_path / "run.json"
        common = ["-m", str(model_paths[model]), "-t", "1", "-p", PROMPT, "--json", str(path)]
        assert main([*given, *common]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err, json.loads(path.read_text())

    return run_


@pytest.mark.parametrize("model", ["dense", "moe", "hybrid-moe", "recurrent"])
def test_the_gate_changes_no_token(run: Callable[..., Any], model: str) -> None:
    """Whether and how wide is drafted is a matter of time; f32 weights compare exactly."""
    plain, _, _ = run("-n", "60", model=model)
    gated, report, record = run(
        "-n", "60", "--ngram", "--ngram-min-match", "1", "--gate", "cost", model=model
    )
    assert gated == plain
    assert record["gate"]["n_asked_steps"] > 0
    assert "gate: " in report


def test_its_line_follows_the_source_s(run: Callable[..., Any]) -> None:
    """Three lines of the source, then the gate's, whose figures are the record's."""
    _, report, record = run("-n", "60", "--ngram", "--ngram-min-match", "1", "--gate", "cost")
    lines = report.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ngram", "ngram", "ngram", "gate"]
    n_drafted, n_steps = record["n_drafted_steps"], record["n_decodes"]
    assert lines[-1].startswith(f"gate: {n_drafted} of {n_steps} steps drafted")
    assert f"declined {record['gate']['n_declined']} draft" in lines[-1]


def test_without_it_the_record_has_none(run: Callable[..., Any]) -> None:
    """Off, or nothing to decide about."""
    _, report, record = run("-n", "5", "--ngram", "--gate", "off")
    assert record["gate"] is None
    assert "gate" not in report
    _, report, record = run("-n", "5", "--gate", "cost")
    assert record["gate"] is None
    assert "gate" not in report


def test_auto_reaches_64_and_a_number_bounds_it() -> None:
    """The width that the target is made for."""
    assert parse(["--gate", "cost", "--draft", "auto"]).options.draft == 64
    assert parse(["--gate", "cost", "--draft", "5"]).options.draft == 5


@pytest.mark.parametrize(
    ("default", "given", "gate", "width", "is_auto"),
    [
        ("off", [], "off", 3, False),
        ("off", ["--gate", "cost"], "cost", 64, True),
        ("cost", [], "cost", 64, True),
        ("cost", ["--draft", "3"], "cost", 3, False),
        ("cost", ["--gate", "off"], "off", 3, False),
    ],
)
def test_the_width_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
    default: str,
    given: list[str],
    gate: str,
    width: int,
    is_auto: bool,
) -> None:
    """3 without the gate, auto with it, whichever of them is the default."""
    monkeypatch.setattr(arguments, "DEFAULT_GATE", default)
    parsed = parse(given)
    assert (parsed.options.gate, parsed.options.draft) == (gate, width)
    assert parsed.width_is_auto is is_auto


def test_a_width_that_was_not_asked_for_is_cut_without_a_warning(run: Callable[..., Any]) -> None:
    """A context of 40 positions cannot hold 64 draft tokens, and nobody asked for them."""
    _, report, record = run("-n", "4", "-c", "40", "--ngram", "--gate", "cost")
    assert "warning" not in report
    assert record["warnings"] == []
