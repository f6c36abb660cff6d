"""The embedded demo model: that it is there, is what it is said to be, and answers as it did."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pluggy
import pytest
from llama_cpp import llama_cpp

from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.cli import main
from bmoe_core.models import demo_model

PROMPT = "def main():"
GOLDEN = [
    *(372, 221, 18, 14, 18, 199, 311, 372, 221, 18, 16, 16, 16, 26, 221, 17),
    *(16, 16, 271, 277, 372, 446, 76, 592, 26, 516, 483, 199, 277, 347, 411, 221),
]
"""Greedy tokens after the prompt."""

COPY_PROMPT = (
    "Repeat this code unchanged:\n```\ndef area(width, height):\n    return width * height\n\n\n"
    "def perimeter(width, height):\n    return 2 * (width + height)\n```\n\n```\n"
)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(demo_model(), prepare=open_source("mtp").prepare_model) as loaded:
        yield loaded


def plain(model: LlamaModel, prompt: str, n_predict: int) -> list[int]:
    with LlamaTarget(model, n_ctx=512, n_threads=1) as target:
        generation = generate(target, model.tokenize(prompt), n_predict=n_predict)
        list(generation)
        return generation.tokens[generation.n_prompt :]


def test_it_is_small() -> None:
    """16 MB at most."""
    assert demo_model().stat().st_size <= 16 * 10**6


def test_it_is_hybrid_with_one_head(model: LlamaModel) -> None:
    """The kind of model that bmoe is about."""
    assert llama_cpp.llama_model_is_hybrid(model.handle)
    assert llama_cpp.llama_model_n_layer_nextn(model.handle) == 1
    assert model.is_recurrent


def test_the_golden_answer(model: LlamaModel) -> None:
    """The same 32 tokens as when it was made."""
    assert plain(model, PROMPT, 32) == GOLDEN


@pytest.mark.parametrize("package", [attrs, pluggy], ids=lambda package: package.__name__)
def test_the_tokenizer_round_trips_unseen_code(model: LlamaModel, package: object) -> None:
    """Every file of two packages that it was not trained on, byte for byte."""
    folder = Path(sysconfig.get_path("purelib")) / package.__name__  # type: ignore[attr-defined]
    files = sorted(folder.rglob("*.py"))
    assert files
    for path in files:
        data = path.read_bytes()
        tokens = model.tokenize(data.decode(), special=False)
        assert model.detokenize(tokens) == data


@pytest.mark.parametrize("depth", range(9))
@pytest.mark.parametrize("rollback", ["snapshots", "checkpoint"])
def test_rollback_at_every_depth(model: LlamaModel, depth: int, rollback: str) -> None:
    """The next logits are those of a context that never saw the rejected tokens."""
    tokens = model.tokenize(COPY_PROMPT * 2)
    with LlamaTarget(
        model,
        n_ctx=256,
        n_threads=1,
        max_draft=8,
        rollback=rollback,  # type: ignore[arg-type]
    ) as target:
        target.decode(tokens[:40], 1)
        target.decode(tokens[40:49], 9)
        target.roll_back(49 - depth)
        row = target.decode([7], 1)[0].copy()
    with LlamaTarget(model, n_ctx=256, n_threads=1) as target:
        expected = target.decode([*tokens[: 49 - depth], 7], 1)[0]
        np.testing.assert_allclose(row, expected, atol=0.05)


@pytest.mark.parametrize("source", ["ngram", "mtp"])
@pytest.mark.parametrize("width", range(1, 9))
def test_speculated_answers_are_the_plain_ones(model: LlamaModel, source: str, width: int) -> None:
    """Four prompts a width and source, token for token."""
    for prompt in (PROMPT, COPY_PROMPT, "import os\nimport sys\n\n\nclass ", "A list of\n"):
        opened = open_source(source)
        with LlamaTarget(model, n_ctx=512, n_threads=1, max_draft=width) as target:
            opened.open(target)
            tally = Tally()
            generation = generate(
                target,
                model.tokenize(prompt),
                source=opened,
                width=width,
                n_predict=96,
                strict=True,
            )
            for step in generation:
                tally.add(step)
            opened.close()
        assert generation.tokens[generation.n_prompt :] == plain(model, prompt, 96)


def test_it_is_what_runs_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """`bmoe -p TEXT` works the moment it is installed, and says what it runs."""
    assert main(["-p", PROMPT, "--draft-source", "ngram", "-n", "32", "-t", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err.startswith("bmoe: no model was given (-m)")
