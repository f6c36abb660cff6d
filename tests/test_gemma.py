"""A second real language model, Gemma 3 270M at Q4_K_M: a sliding window and 262,144 tokens.

It is a base model, and its file brings no chat template.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import bmoe_core
from bmoe_core import (
    CostGate,
    Generator,
    LlamaModel,
    LlamaTarget,
    ModelError,
    Sampling,
    Tally,
    generate,
    open_source,
)
from bmoe_core.bench.prompts import find_prompt
from bmoe_core.chat import ChatTemplate, Conversation
from bmoe_core.target.sampler import Sampler
from bmoe_core.testing.consistency import plain_gaps

MODEL = Path(bmoe_core.__file__).parent.parent / "models" / "gemma-3-270m-q4_k_m.gguf"
WINDOW = 512
N_CTX = 1024
N_PREDICT = 28

Rows = npt.NDArray[np.float32]

pytestmark = pytest.mark.real_model


class WithTemplate(LlamaModel):
    """The model with the turns that Gemma's instruction-tuned sisters were trained on."""

    chat_template = (
        "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}"
        "\n{{ m.content }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    )


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    assert MODEL.exists(), "run `make models` first"
    with WithTemplate(MODEL) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def prompt(model: LlamaModel) -> list[int]:
    """Longer than the window, and with something to look up at its end."""
    texts = [find_prompt(name).text for name in ("numbers", "json", "code-edit")]
    tokens = model.tokenize("".join(texts))
    assert len(tokens) > WINDOW
    return tokens


@pytest.fixture(scope="module")
def target(model: LlamaModel, prompt: list[int]) -> Iterator[LlamaTarget]:
    """A context that holds the prompt, so that each test decodes no more than its last token."""
    with LlamaTarget(model, n_ctx=N_CTX, n_threads=1, max_draft=64) as made:
        for start in range(0, len(prompt), made.n_batch):
            made.decode(prompt[start : start + made.n_batch], n_rows=0)
        yield made


def plain_rows(target: LlamaTarget, prompt: list[int], tokens: list[int]) -> Rows:
    """The logits of shape (len(tokens), n_vocab) that plain decoding has for each of ``tokens``."""
    rows: list[Rows] = []

    def follow(row: Rows) -> int:
        rows.append(row.copy())
        return [*tokens, 0][len(rows) - 1]

    list(generate(target, prompt, n_predict=len(tokens), n_past=len(prompt), pick=follow))
    # A generation picks one token more than it gives: the one that it would go on with.
    return np.stack(rows[: len(tokens)])


@pytest.mark.parametrize(("draft", "gate"), [(3, None), (8, None), (64, CostGate())])
def test_beyond_the_window_tokens_are_greedy_consistent(
    target: LlamaTarget, prompt: list[int], draft: int, gate: CostGate | None
) -> None:
    """Accepted or not, every token's plain logit lies within 0.5 of the highest."""
    tally = Tally()
    generation = generate(
        target,
        prompt,
        source=open_source("ngram"),
        width=draft,
        gate=gate,
        n_predict=N_PREDICT,
        n_past=len(prompt),
        strict=True,
    )
    for step in generation:
        tally.add(step)
    tokens = generation.tokens[len(prompt) :]
    if gate is None:
        # By the clock the gate may find that drafting does not pay here.
        assert tally.summary.n_accepted > 0
    rows = plain_rows(target, prompt, tokens)
    assert (rows.max(1) - rows[np.arange(len(tokens)), tokens]).max() < 0.5


def test_drafts_leave_the_random_numbers_in_step(
    model: LlamaModel, target: LlamaTarget, prompt: list[int]
) -> None:
    """Each token is the one that the seed draws plainly there, or its neighbour by rounding.

    Tokens lie side by side on a line of length 1, each as long as its probability. A wider batch
    moves them by a few hundredths at this quantisation, and the seed points to the same place.
    """
    sampling = Sampling(temp=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    tally = Tally()
    generation = generate(
        target,
        prompt,
        source=open_source("ngram", {"min_match": 1}),
        width=8,
        n_predict=N_PREDICT,
        n_past=len(prompt),
        pick=Sampler(model, sampling).pick,
        strict=True,
    )
    for step in generation:
        tally.add(step)
    tokens = generation.tokens[len(prompt) :]
    assert 0 < tally.summary.n_accepted < tally.summary.n_drafted
    sampler = Sampler(model, sampling)
    for row, token in zip(plain_rows(target, prompt, tokens), tokens, strict=True):
        weights = np.exp(row.astype(np.float64) - row.max())
        ends = np.cumsum(weights) / weights.sum()
        low, high = sorted((sampler.pick(row), token))
        assert low == high or ends[high - 1] - ends[low] < 0.1


def test_a_chat_goes_on_from_what_is_held(model: LlamaModel) -> None:
    """The turns' marks are single tokens, the beginning stands once, and drafts change nothing."""
    with Generator(
        model,
        draft_source="ngram",
        source_options={"min_match": 1},
        n_ctx=N_CTX,
        n_threads=1,
        strict=True,
    ) as made:
        conversation = Conversation(made)
        for text in ("Say one two three one two three", "Again"):
            answer = conversation.ask(text, n_predict=12)
            list(answer)
            conversation.keep(answer)
    for mark, n in (("<bos>", 1), ("<start_of_turn>", 4), ("<end_of_turn>", 3)):
        (token,) = model.tokenize(mark, begins=False)
        assert answer.prompt.count(token) == n
    assert answer.n_reused > 20
    assert answer.summary.n_accepted > 0
    with LlamaTarget(model, n_ctx=N_CTX, n_threads=1) as plain:
        gaps = plain_gaps(plain, answer.prompt + answer.tokens, answer.n_prompt)
    assert gaps.max() < 0.5


def test_without_a_template_a_chat_is_refused() -> None:
    """As its file is: with the remedy."""
    with LlamaModel(MODEL) as model, pytest.raises(ModelError, match="has no chat template"):
        ChatTemplate(model)
