"""The numbers of draft tokens that the gate chooses between."""

from __future__ import annotations

import itertools

RUNGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Draft tokens of each rung. Rung 0 is the plain decode.

Fewer widths than there are token counts, so that each is measured often enough to be known. Between
8 and 64 a draft is cut by a third at most, and what is cut can be drafted again a step later.
"""

MAX_WIDTH = RUNGS[-1]

N_MORE = (0, *(after - before for before, after in itertools.pairwise(RUNGS)))
"""Draft tokens that each rung has beyond the one below."""

RUNG_OF = tuple(max(i for i, n in enumerate(RUNGS) if n <= tokens) for tokens in range(65))
"""The highest rung that a draft of so many tokens reaches, for 0 to 64 tokens."""


def growth(rung: int) -> int:
    """The highest rung whose decode is at most twice as wide as that of ``rung``, in positions."""
    return RUNG_OF[min(2 * (1 + RUNGS[rung]) - 1, MAX_WIDTH)]


LAST_DEPTHS = (1, 2, 4, 8, 16, MAX_WIDTH)
"""The last token, counted from 1, of each stretch of a draft whose tokens fare alike."""

STRETCH_OF_RUNG = (0, *(next(i for i, n in enumerate(LAST_DEPTHS) if m <= n) for m in RUNGS[1:]))
"""The stretch of the tokens that each rung has beyond the one below: a rung lies in one stretch."""
