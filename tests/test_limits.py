"""Long contexts and large vocabularies: the right answer, and memory that stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmoe_core import (
    FinishReason,
    LlamaModel,
    LlamaTarget,
    Sampler,
    Sampling,
    generate,
    open_source,
)
from bmoe_core.footprint import Footprint
from bmoe_core.testing.models import f32_cache, write_dense

Load = Callable[[str], LlamaModel]


def test_a_context_of_32k(load: Load) -> None:
    """A prompt of 16 batches, and drafts from all over it, as the plain answer is."""
    prompt = [i * 7 % 251 for i in range(8000)]
    with LlamaTarget(
        load("dense"), n_ctx=32_768, n_threads=1, max_draft=8, prepare=f32_cache
    ) as target:
        drafted = generate(
            target, prompt, source=open_source("ngram", {"min_match": 1}), width=8, n_predict=60
        )
        n_drafted = sum(step.n_drafted for step in drafted)
        plain = generate(target, prompt, n_predict=60, n_past=len(prompt))
        list(plain)
    assert n_drafted > 0
    assert drafted.tokens == plain.tokens


@pytest.mark.parametrize("kind", ["dense", "moe", "sliding-window", "hybrid-moe"])
@pytest.mark.parametrize("n_free", [1, 2, 3, 8, 9, 10])
def test_the_last_cells(load: Load, kind: str, n_free: int) -> None:
    """A draft of eight where one to ten cells are free: each is used, and none beyond."""
    prompt = list(b"one two three one two three one")
    with LlamaTarget(
        load(kind), n_ctx=len(prompt) + n_free, n_threads=1, max_draft=8, prepare=f32_cache
    ) as target:
        drafted = generate(
            target, prompt, source=open_source("ngram", {"min_match": 1}), width=8, n_predict=99
        )
        list(drafted)
        plain = generate(target, prompt, n_predict=99)
        list(plain)
    assert drafted.tokens == plain.tokens
    assert drafted.n_generated == n_free
    assert drafted.finish_reason is FinishReason.CONTEXT


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 200,000 tokens."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    write_dense(path, n_vocab=200_000)
    return path


def test_a_vocabulary_of_200k(wide: Path) -> None:
    """Memory holds rows for a draft, not for the context, which would be 24 GiB."""
    prompt = list(b"one two one two")
    before = Footprint.now().rss_mib
    answers = []
    with LlamaModel(wide) as model:
        for sampling in (Sampling(), Sampling(temp=1.0, seed=3, repeat_penalty=1.1)):
            for width in (0, 8):
                with LlamaTarget(
                    model, n_ctx=32_768, n_threads=1, max_draft=width, prepare=f32_cache
                ) as target:
                    generation = generate(
                        target,
                        prompt,
                        source=open_source("ngram", {"min_match": 1}) if width else None,
                        width=width,
                        n_predict=40,
                        pick=Sampler(model, sampling, prompt).pick,
                    )
                    list(generation)
                    answers.append(generation.tokens)
        assert max(answers[0]) > 257
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    # Embeddings and output of 24 MiB each, a cache of 16 MiB, and nine rows of 0.8 MiB.
    assert Footprint.now().rss_mib - before < 300
