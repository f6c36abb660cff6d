"""The bench's record: JSON, which a later bench can resume from, and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from bmoe_core.bench.plan import Cell, Plan
from bmoe_core.bench.report import Report
from bmoe_core.bench.runs import Run
from bmoe_core.bench.words import sentence
from bmoe_core.errors import UsageError

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).parent / "schema.json"
"""The JSON Schema of the record."""


def to_dict(report: Report) -> dict[str, Any]:
    """The complete record as JSON-ready values, see docs/reference/bench-record.md."""
    return {
        "schema": SCHEMA_VERSION,
        "started": report.started.isoformat(),
        "interrupted": report.interrupted,
        "versions": dict(report.versions),
        "machine": dict(report.machine),
        "model": dict(report.model),
        "settings": _settings(report.plan) | {"n_ctx": report.n_ctx, "n_threads": report.n_threads},
        "prompts": [
            {"name": prompt.name, "n_tokens": report.n_prompt[prompt.name]}
            | {"noise_band": (band := report.band(prompt.name)) and attrs.asdict(band)}
            for prompt in report.plan.prompts
        ],
        "cells": [
            _cell(report, cell, prompt.name)
            for prompt in report.plan.prompts
            for cell, _ in report.of_prompt(prompt.name)
        ],
        "left_out": dict(report.left_out),
        "step_costs": [
            attrs.asdict(cost) | {"needed_acceptance": cost.needed_acceptance}
            for cost in report.step_costs
        ],
        "runs": [run.to_dict() for run in report.runs],
    }


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "n_predict": plan.n_predict,
        "rounds": plan.rounds,
        "draft": plan.draft,
        "cool_c": plan.cool_c,
        "cool_s": plan.cool_s,
    }


def _cell(report: Report, cell: Cell, prompt: str) -> dict[str, Any]:
    figures = report.figures[prompt, cell.name]
    survey = report.survey(cell, prompt)
    agreement = report.agreements.get((prompt, cell.name))
    return {
        "prompt": prompt,
        "cell": cell.name,
        "source": cell.source,
        "draft": cell.draft,
        "options": dict(cell.options),
        "gated": cell.gated,
        "keeps_gate": cell.keeps_gate,
        "hindsight": cell.hindsight,
        **{
            key: value
            for key, value in attrs.asdict(figures).items()
            if key not in ("prompt", "cell", "verdict")
        },
        "verdict": figures.verdict.value if figures.verdict else None,
        "share_of_ceiling": report.share_of_ceiling(figures),
        "demanded_mib_per_token": survey.demanded_mib_per_token,
        "modelled_hit_rate": survey.modelled_hit_rate,
        "agreement": agreement and attrs.asdict(agreement),
        "words": None if cell.is_baseline else sentence(cell, figures),
        "tokens": list(survey.tokens),
    }


def to_json(report: Report) -> str:
    """The record as a JSON text."""
    return json.dumps(to_dict(report), ensure_ascii=False, indent=1) + "\n"


def to_csv(report: Report) -> str:
    """A row a run."""
    names = [a.name for a in attrs.fields(Run) if a.name != "conditions"]
    states = ["load_average", "available_mib", "cpu_mhz", "temperature_c", "waited_s"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "wall_ms", "wall_tok_s", "effective_tok_s", *states])
    for run in report.runs:
        values = [getattr(run, name) for name in names]
        rates = [run.wall_s * 1e3, run.wall_tok_s, run.effective_tok_s]
        writer.writerow([*values, *rates, *(getattr(run.conditions, name, "") for name in states)])
    return out.getvalue()


def load_runs(path: Path, plan: Plan) -> Sequence[Run]:
    """The runs of an earlier record, to be resumed.

    Raises:
        UsageError: it cannot be read, or was made with other settings or another model.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        runs = [Run.from_dict(run) for run in record["runs"]]
        settings = {key: record["settings"][key] for key in ("n_predict", "draft")}
        model = record["model"]["file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--resume: {path} is no record of a bench: {error}") from None
    asked = {key: _settings(plan)[key] for key in settings}
    if settings != asked:
        raise UsageError(f"--resume: {path} was made with {settings}, and this bench with {asked}")
    if plan.model is not None and plan.model.name != model:
        raise UsageError(f"--resume: {path} was made with the model {model}")
    return runs
