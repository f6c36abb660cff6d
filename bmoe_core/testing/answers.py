"""Whether a source changes the answer, on targets of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bmoe_core.errors import RollbackError, summarize
from bmoe_core.loop import Generation, generate
from bmoe_core.sources import OpenSource, open_source
from bmoe_core.target.protocol import Target
from bmoe_core.testing.consistency import plain_gaps
from bmoe_core.testing.fakes import FakeTarget, NearTieTarget, RefusingTarget, cyclic, hashed
from bmoe_core.testing.trial import show

N_PREDICT = 60
PROMPT = (1, 2, 3, 4, 1, 2, 3)


def fake_targets() -> dict[str, tuple[Callable[[], FakeTarget], float]]:
    """Targets without weights, by their kind: how to make one, and the gap allowed on it."""
    near_tie = NearTieTarget()
    return {
        "a target that goes round in a cycle": (lambda: FakeTarget(rule=cyclic()), 0.0),
        "a target that looks random": (lambda: FakeTarget(rule=hashed(order=1)), 0.0),
        "a target with recurrent memory": (lambda: FakeTarget(recurrent=True), 0.0),
        "a target with near ties": (NearTieTarget, near_tie.tie * 1.01),
        "a target that refuses to roll back": (RefusingTarget, 0.0),
        "a target whose context runs out": (lambda: FakeTarget(n_ctx=24), 0.0),
        "a target that ends its answer": (
            lambda: FakeTarget(rule=hashed(order=3), eog=frozenset({11})),
            0.0,
        ),
    }


def answer_differs(
    plugin: Any, make_target: Callable[[], Target], width: int, max_gap: float
) -> str:
    """How the answers of two generations with drafts differ from plain ones; empty: they do not.

    The second goes on from what the target holds after the first.

    Args:
        plugin: the source.
        make_target: makes a target of the kind to try.
        width: most tokens a draft.
        max_gap: how far a token may lie below the plain choice, in logits.

    Raises:
        SourceUnavailable: the source refuses the target.
    """
    source, target = open_source(plugin), make_target()
    source.open(target)
    try:
        prompt, n_past = list(PROMPT), 0
        for _ in range(2):
            difference, generation = _one_answer(
                source, target, make_target, prompt, n_past, width, max_gap
            )
            if difference or len(generation.tokens) + len(PROMPT) >= target.n_ctx:
                return difference
            prompt, n_past = [*generation.tokens, *PROMPT], generation.n_past
        return ""
    finally:
        source.close()


def _one_answer(
    source: OpenSource,
    target: Target,
    make_target: Callable[[], Target],
    prompt: Sequence[int],
    n_past: int,
    width: int,
    max_gap: float,
) -> tuple[str, Generation]:
    plain_target = make_target()
    plain = generate(plain_target, prompt, n_predict=N_PREDICT)
    list(plain)
    drafted = generate(
        target,
        prompt,
        source=source,
        n_predict=N_PREDICT,
        width=width,
        n_past=n_past,
        strict=True,
    )
    expected = plain.tokens
    try:
        list(drafted)
    except RollbackError:
        # The target's own refusal ends the answer early; what there is of it has to be right.
        expected = expected[: len(drafted.tokens)]
    except Exception as error:
        return f"after {show(drafted.tokens)}: {summarize(error)}", drafted
    if drafted.tokens == expected:
        return "", drafted
    n_prompt = len(prompt)
    gaps = plain_gaps(plain_target, drafted.tokens, n_prompt)
    for i, gap in enumerate(gaps):
        if gap > max_gap:
            at = n_prompt + i
            return (
                f"the answer after {show(drafted.tokens[:at])} goes on with {drafted.tokens[at]}, "
                f"which lies {gap:.3g} below the plain choice"
            ), drafted
    if max_gap == 0.0:
        return (
            f"the answer has {len(drafted.tokens) - n_prompt} tokens, and the plain one "
            f"{len(expected) - n_prompt}: {show(drafted.tokens)}"
        ), drafted
    return "", drafted
