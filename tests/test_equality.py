"""On llama.cpp with f32 weights, any source leaves the plain answer as it is, token for token."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.testing import ScriptedSource
from bmoe_core.testing.models import END_OF_TEXT, N_VOCAB, f32_cache

Load = Callable[[str], LlamaModel]

N_PREDICT = 40
PROMPTS = [b"The bridge", b"x = 1\nx = 1\nx =", b"\x00\xff", b"aaaaaaaaaaaaaaaa"]


def plain_tokens(model: LlamaModel, prompt: bytes, n_predict: int = N_PREDICT) -> list[int]:
    with LlamaTarget(model, n_ctx=128, n_threads=1, prepare=f32_cache) as target:
        generation = generate(target, list(prompt), n_predict=n_predict)
        list(generation)
        return generation.tokens


def adversary(plain: list[int], seed: int, end: int = END_OF_TEXT) -> ScriptedSource:
    """Drafts right, in part right, random, repeated and end-of-text tokens, or nothing."""
    random_ = random.Random(seed)

    def script(tokens: np.ndarray, n_max: int) -> list[int]:
        coming = plain[len(tokens) :][:n_max]
        noise = [random_.randrange(N_VOCAB) for _ in range(n_max)]
        n_right = random_.randint(0, len(coming))
        return random_.choice(
            [
                [],
                noise,
                coming,
                coming[:n_right],
                (coming[:n_right] + noise)[:n_max],
                [int(tokens[-1])] * n_max,
                (coming[:n_right] + [end] * n_max)[:n_max],
            ]
        )

    return ScriptedSource(script)


class Ending(LlamaTarget):
    """A target that takes one more token for an end of generation."""

    eog: int | None = None

    def is_eog(self, token: int) -> bool:
        return token == self.eog or super().is_eog(token)


CASES = [
    ("dense", "snapshots"),
    ("moe", "snapshots"),
    ("sliding-window", "snapshots"),
    ("hybrid-moe", "snapshots"),
    ("hybrid-moe", "checkpoint"),
    ("recurrent", "checkpoint"),
]


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize(("kind", "rollback"), CASES)
def test_an_adversary_changes_nothing(load: Load, kind: str, rollback: str, width: int) -> None:
    """Eight runs a kind of memory and width, 384 in all; every other one ends in mid-answer."""
    model = load(kind)
    n_accepted = n_rejected = 0
    with Ending(
        model,
        n_ctx=128,
        n_threads=1,
        prepare=f32_cache,
        max_draft=width,
        rollback=rollback,  # type: ignore[arg-type]
    ) as target:
        for i in range(8):
            prompt = PROMPTS[i % 4] + bytes([65 + width, 97 + i])
            expected = plain_tokens(model, prompt)
            target.eog = None
            if i % 2:
                target.eog = expected[len(prompt) + (len(expected) - len(prompt)) // 2]
                expected = expected[: expected.index(target.eog, len(prompt))]
            tally = Tally()
            generation = generate(
                target,
                list(prompt),
                source=adversary(expected, width * 10 + i, target.eog or END_OF_TEXT),
                width=width,
                n_predict=N_PREDICT,
                strict=True,
            )
            for step in generation:
                tally.add(step)
            assert generation.tokens == expected, (kind, width, prompt)
            assert target.n_past == len(generation.tokens)
            summary = tally.summary
            # An end of generation that was accepted is counted, and not emitted.
            assert summary.n_decodes + summary.n_accepted - summary.n_generated in (0, 1)
            n_accepted += summary.n_accepted
            n_rejected += summary.n_drafted - summary.n_accepted
    assert n_accepted > 0
    assert n_rejected > 0


@pytest.mark.parametrize("kind", ["dense", "moe", "sliding-window", "hybrid-moe"])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_prompt_lookup_changes_nothing(load: Load, kind: str, width: int) -> None:
    """The shipped source, to the last cell of the context."""
    model = load(kind)
    prompt = b"one two three one two three one two"
    expected = plain_tokens(model, prompt, n_predict=1000)
    with LlamaTarget(model, n_ctx=128, n_threads=1, prepare=f32_cache, max_draft=width) as target:
        source = open_source("ngram", {"min_match": 1})
        generation = generate(
            target, list(prompt), source=source, width=width, n_predict=1000, strict=True
        )
        list(generation)
        assert generation.tokens == expected


@pytest.mark.parametrize("kind", ["dense", "sliding-window", "hybrid-moe"])
def test_a_second_turn_goes_on_from_the_kept_state(load: Load, kind: str) -> None:
    """Two speculated runs, the second on the memory of the first, equal one plain run."""
    model = load(kind)
    plain = plain_tokens(model, PROMPTS[0], n_predict=60)
    with LlamaTarget(model, n_ctx=128, n_threads=1, prepare=f32_cache, max_draft=4) as target:
        first = generate(
            target, list(PROMPTS[0]), source=adversary(plain, 1), width=4, n_predict=25
        )
        list(first)
        second = generate(
            target,
            first.tokens,
            n_past=len(first.tokens),
            source=adversary(plain, 2),
            width=4,
            n_predict=60 - first.n_generated,
        )
        list(second)
        assert second.tokens == plain


def test_a_prompt_of_several_batches(load: Load) -> None:
    """Longer than n_batch, on the model whose memory is hardest to keep."""
    model = load("hybrid-moe")
    prompt = [token % 256 for token in range(0, 7 * 700, 7)]
    answers = []
    for source in (None, open_source("ngram")):
        with LlamaTarget(model, n_ctx=1000, n_threads=1, prepare=f32_cache, max_draft=3) as target:
            assert len(prompt) > target.n_batch
            generation = generate(target, prompt, source=source, n_predict=20)
            list(generation)
            answers.append(generation.tokens)
    assert answers[0] == answers[1]
