"""A report on made-up runs: the figures of BigMoeOnEdge's copying prompt, and a few more cells."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from bmoe_core.bench.conditions import Conditions
from bmoe_core.bench.plan import BASELINE, BASELINE_AGAIN, ORACLE, Cell, Plan
from bmoe_core.bench.prompts import Prompt
from bmoe_core.bench.report import Agreement, Report
from bmoe_core.bench.rig import Survey
from bmoe_core.bench.runs import Run
from bmoe_core.bench.step_costs import WidthCost

NGRAM = Cell("ngram", 3)
SWEPT = Cell("ngram", 1, (("min_match", 5),), swept=True)
CEILING = Cell(ORACLE, 3)
SERVER = Cell("llama-server", 3, (("spec", "ngram-simple"),))
CELLS = (BASELINE, NGRAM, SWEPT, CEILING, SERVER, BASELINE_AGAIN)
RATES = {
    BASELINE: (5.45, 5.50),
    NGRAM: (5.24, 5.20),
    SWEPT: (5.56, 5.50),
    CEILING: (8.325, 8.325),
    SERVER: (5.0, 5.1),
    BASELINE_AGAIN: (5.65, 5.60),
}
COUNTS = {
    NGRAM: (214, 32, 95, 42),
    SWEPT: (237, 23, 23, 19),
    CEILING: (64, 64, 192, 192),
}


def made_up_run(cell: Cell, number: int) -> Run:
    rate = RATES[cell][number]
    counts: dict[str, float | int | None] = {}
    if not cell.is_peer:
        decodes, drafted_steps, drafted, accepted = COUNTS.get(cell, (256, 0, 0, 0))
        counts = {
            "n_decodes": decodes,
            "n_drafted_steps": drafted_steps,
            "n_drafted": drafted,
            "n_accepted": accepted,
            "decode_s": 256 / rate,
            "draft_s": 0.0,
            "majflt": 512,
            "plain_step_s": 0.2,
            "drafted_step_s": 0.6 if drafted else None,
        }
    return Run(
        prompt="copy",
        cell=cell.name,
        round=number,
        n_generated=256,
        wall_s=256 / rate,
        conditions=Conditions(0.5, 9000.0, 2100.0, None),
        others_cpu=0.02,
        **counts,  # type: ignore[arg-type]
    )


@pytest.fixture
def made_up() -> Report:
    """Two rounds on a model with experts."""
    return Report(
        plan=Plan(
            model=Path("moe.gguf"),
            prompts=(Prompt("copy", ""),),
            cells=CELLS,
            n_predict=256,
            rounds=2,
            draft=3,
        ),
        model={
            "file": "moe.gguf",
            "description": "moe",
            "architecture": "qwen35moe",
            "n_layer": 40,
            "n_expert": 256,
            "n_expert_used": 8,
            "size_mib": 21197.0,
        },
        n_prompt={"copy": 224},
        n_ctx=4096,
        n_threads=8,
        cells=CELLS,
        left_out={"mtp": "this model has no multi-token-prediction head"},
        runs=[made_up_run(cell, number) for number in range(2) for cell in CELLS],
        surveys={
            (BASELINE, "copy"): Survey((1, 2), 58.1, 0.811),
            (NGRAM, "copy"): Survey((1, 2), 67.2, 0.805),
            (SWEPT, "copy"): Survey((1, 2), 59.7, 0.82),
            (CEILING, "copy"): Survey((1, 2), 40.0, 0.7),
        },
        agreements={
            ("copy", "ngram"): Agreement(equal=True),
            ("copy", "oracle"): Agreement(False, 134, 0.117),
        },
        step_costs=[
            WidthCost(draft=1, seconds=0.3, ratio=1.5, low=1.4, high=1.6),
            WidthCost(draft=3, seconds=0.4, ratio=2.0, low=1.9, high=2.2),
            WidthCost(draft=4, seconds=1.1, ratio=5.5, low=5.0, high=6.0),
        ],
        interrupted=False,
        started=datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.timezone.utc),
        machine={
            "system": "Linux 6",
            "processor": "a processor",
            "cores": 8,
            "threads": 16,
            "memory_mib": 14800,
            "python": "3.11.2",
        },
        versions={"bmoe-core": "0.1.0", "llama-cpp-python": "0.3.36"},
    )
