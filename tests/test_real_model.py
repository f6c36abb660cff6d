"""A real language model, SmolLM2 135M at Q4_1, which `make models` fetches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bmoe_core
from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.testing.consistency import plain_gaps

ROOT = Path(bmoe_core.__file__).parent.parent
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
EXAMPLES = ROOT / "docs" / "examples"

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    assert MODEL.exists(), "run `make models` first"
    with LlamaModel(MODEL) as loaded:
        yield loaded


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("prompt", ["prose", "copy"])
def test_speculated_tokens_are_greedy_consistent(
    model: LlamaModel, prompt: str, width: int
) -> None:
    """Every token's plain logit lies within 0.5 of the highest; an off-by-one misses by more."""
    tokens = model.tokenize((EXAMPLES / f"{prompt}-prompt.txt").read_text())
    tally = Tally()
    with LlamaTarget(model, n_ctx=1024, max_draft=width) as target:
        generation = generate(
            target, tokens, source=open_source("ngram"), width=width, n_predict=256, strict=True
        )
        for step in generation:
            tally.add(step)
    with LlamaTarget(model, n_ctx=1024) as target:
        gaps = plain_gaps(target, generation.tokens, generation.n_prompt)
    assert gaps.max() < 0.5
    assert tally.summary.n_accepted > 0


def test_the_main_job_as_a_user_runs_it() -> None:
    """The copy prompt through the command: copied text, three report lines, coverage above 0."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bmoe_core", "-m", str(MODEL)),
            *("--draft-source", "ngram", "-f", str(EXAMPLES / "copy-prompt.txt"), "-n", "96"),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert 'raise ValueError("the amount must be positive")' in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    drafted = int(lines[2].split("drafted on ")[1].split(" of ")[0])
    assert drafted > 0
