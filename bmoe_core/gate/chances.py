"""The chances of a draft's tokens, rung by rung."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from bmoe_core.gate.ladder import MAX_WIDTH, N_MORE, RUNG_OF, RUNGS, STRETCH_OF_RUNG
from bmoe_core.gate.survival import STRETCH_OF, Survival
from bmoe_core.steps import Draft

by_rung: Callable[[Sequence[float]], Sequence[float]] = itemgetter(*STRETCH_OF_RUNG)
"""The chance of each rung's stretch, of those of all stretches."""


def chances_by_rung(draft: Draft, survival: Survival, n_wrong: float = 0.0) -> Sequence[float]:
    """For each rung, the chance of a token that it has beyond the rung below.

    That is the chance that it is accepted if the tokens before it are; where a rung has several
    more and each has its own evidence or confidence, the mean over those.

    Args:
        draft: of MAX_WIDTH tokens at most.
        survival: what is known of the source's drafts.
        n_wrong: wrong tokens that are imagined beside those seen.

    Returns:
        1.0, and the chances of the rungs from 1 on: of all, or of those that the draft reaches.
    """
    evidence, confidence, n = draft.evidence, draft.confidence, len(draft.tokens)
    if not isinstance(evidence, tuple) and not isinstance(confidence, tuple):
        return by_rung(survival.given(evidence, n_wrong, confidence))
    if confidence is None:
        values = _one_a_token(evidence, n)
        given = {value: survival.given(value, n_wrong) for value in set(values)}
        of_tokens = [given[value][STRETCH_OF[i]] for i, value in enumerate(values)]
    else:
        pairs = zip(_one_a_token(evidence, n), _one_a_token(confidence, n), strict=True)
        of_tokens = [
            survival.of_token(value, STRETCH_OF[i], each, n_wrong)
            for i, (value, each) in enumerate(pairs)
        ]
    means = (
        sum(of_tokens[RUNGS[rung - 1] : RUNGS[rung]]) / N_MORE[rung]
        for rung in range(1, RUNG_OF[n] + 1)
    )
    return [1.0, *means]


def is_alike(draft: Draft, other: Draft) -> bool:
    """Whether two drafts are as long and as sure."""
    return (
        len(draft.tokens) == len(other.tokens)
        and draft.evidence == other.evidence
        and draft.confidence == other.confidence
    )


def cut(draft: Draft) -> Draft:
    """The first MAX_WIDTH tokens."""
    evidence, confidence = draft.evidence, draft.confidence
    if isinstance(evidence, tuple):
        evidence = evidence[:MAX_WIDTH]
    if isinstance(confidence, tuple):
        confidence = confidence[:MAX_WIDTH]
    return Draft(draft.tokens[:MAX_WIDTH], evidence, confidence)


def _one_a_token(value: Any, n: int) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,) * n
