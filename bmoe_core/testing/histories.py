"""Token histories that a draft source has to cope with."""

from __future__ import annotations

import random

LONG = 200
_PHRASES = (0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3, 4, 4, 4, 4, 2, 3, 4, 0, 1, 2, 3)
N_PHRASE_TOKENS = 6
"""Distinct tokens in :func:`phrases`."""


def histories(n_vocab: int) -> dict[str, list[int]]:
    """Histories by what is particular about them: 2 to 200 ids below ``n_vocab``."""
    drawn = random.Random(0)
    table = {
        "two tokens": [1, 0],
        "one token over and over": [3] * 12,
        "a cycle": [1, 2, 3, 4] * 5,
        "a phrase begun again": [5, 6, 7, 8, 9, 1, 5, 6, 7],
        "a phrase that went on in two ways": [*phrases()],
        "nothing twice": list(range(min(n_vocab, 16))),
        "the ends of the vocabulary": [0, n_vocab - 1] * 4,
        "at random": [drawn.randrange(n_vocab) for _ in range(60)],
        "a long one": [(7 * i) % 11 for i in range(LONG)],
    }
    return {name: [token % n_vocab for token in tokens] for name, tokens in table.items()}


def phrases(first: int = 0, *, swapped: bool = False) -> list[int]:
    """Repetitions that go on now in one way, now in another.

    Args:
        first: added to every id, for phrases that share no token with others.
        swapped: with the two ways exchanged.
    """
    other = {4: 5, 5: 4} if swapped else {}
    return [first + other.get(token, token) for token in _PHRASES]
