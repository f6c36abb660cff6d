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

import bmoe_core
from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.cli import main
from bmoe_core.models import demo_model
from bmoe_core.testing.models import f32_cache, write_f32_copy

GOLDEN_PROMPT = Path(bmoe_core.__file__).parent.parent / "docs" / "examples" / "demo-prompt.txt"
GOLDEN = [
    *(524, 547, 293, 1620, 83, 351, 260, 320, 84, 283, 306, 221, 16, 199, 260, 356),
    *(497, 298, 1031, 292, 277, 320, 84, 283, 1625, 497, 199, 260, 380, 320, 84, 283),
]
"""Greedy tokens after the prompt; the second choice is always 1.6 logits or more below."""

COPY_PROMPT = (
    "Repeat this code unchanged:\n```\ndef area(width, height):\n    return width * height\n\n\n"
    "def perimeter(width, height):\n    return 2 * (width + height)\n```\n\n```\n"
)


PROMPTS = [
    "def main():",
    COPY_PROMPT,
    "import os\nimport sys\n\n\nclass ",
    "A list of\n",
    "# A list\n- one\n- two\n- three\n- one\n- two\n-",
    "x = 1\ny = 2\nz = 3\nx = 1\ny =",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n",
    "The module defines the following functions:\n",
]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(demo_model()) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """The model with f32 weights and its head: on f16 a near tie may fall either way."""
    path = tmp_path_factory.mktemp("demo") / "demo-f32.gguf"
    write_f32_copy(demo_model(), path)
    with LlamaModel(path, prepare=open_source("mtp").prepare_model) as loaded:
        yield loaded


def exact_target(model: LlamaModel, max_draft: int = 0) -> LlamaTarget:
    """With an f32 cache too."""
    return LlamaTarget(model, n_ctx=512, n_threads=1, max_draft=max_draft, prepare=f32_cache)


@pytest.fixture(scope="module")
def plain_answers(exact_model: LlamaModel) -> dict[str, list[int]]:
    """96 greedy tokens after each prompt."""
    answers = {}
    with exact_target(exact_model) as target:
        for prompt in PROMPTS:
            target.clear()
            generation = generate(target, exact_model.tokenize(prompt), n_predict=96)
            list(generation)
            answers[prompt] = generation.tokens
    return answers


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
    with LlamaTarget(model, n_ctx=512, n_threads=1) as target:
        generation = generate(target, model.tokenize(GOLDEN_PROMPT.read_text()), n_predict=32)
        list(generation)
    assert generation.tokens[generation.n_prompt :] == GOLDEN


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
def test_speculated_answers_are_the_plain_ones(
    exact_model: LlamaModel, plain_answers: dict[str, list[int]], source: str, width: int
) -> None:
    """Eight prompts a width, 64 runs a source, token for token."""
    opened = open_source(source)
    tally = Tally()
    with exact_target(exact_model, max_draft=width) as target:
        opened.open(target)
        for prompt, expected in plain_answers.items():
            target.clear()
            tokens = exact_model.tokenize(prompt)
            generation = generate(
                target, tokens, source=opened, width=width, n_predict=96, strict=True
            )
            for step in generation:
                tally.add(step)
            assert generation.tokens == expected, prompt
        opened.close()
    assert tally.summary.n_accepted > 0


def test_it_is_what_runs_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """`bmoe -p TEXT` works the moment it is installed, and says what it runs."""
    assert main(["-p", "def main():", "--draft-source", "ngram", "-n", "32", "-t", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err.startswith("bmoe: no model was given (-m)")
