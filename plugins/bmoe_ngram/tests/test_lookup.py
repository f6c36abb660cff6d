"""The selection rules of prompt lookup, on literal tokens, and against a plain reference."""

from __future__ import annotations

import numpy as np
import pytest
from bmoe_ngram import NgramSource
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bmoe_core import Draft

# history, options, n_max, what is drafted (None: declined), matched length
RULES = [
    ("what followed the match is drafted", [1, 2, 3, 4, 5, 9, 1, 2, 3], {}, 3, [4, 5, 9], 3),
    ("at most n_max tokens", [1, 2, 3, 4, 5, 9, 1, 2, 3], {}, 2, [4, 5], 3),
    ("clipped at the end of the history", [1, 2, 3, 4, 1, 2, 3], {}, 8, [4, 1, 2, 3], 3),
    (
        "the longest match wins over a more recent one",
        [7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3],
        {},
        1,
        [4],
        4,
    ),
    (
        "among equal lengths the most recent wins",
        [8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 7, 1, 2, 3],
        {},
        1,
        [5],
        3,
    ),
    (
        "beyond max_match lengths are equal, so the most recent wins",
        [7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3],
        {"max_match": 3},
        1,
        [5],
        3,
    ),
    ("a match may overlap the pattern", [1, 2, 1, 2, 1], {}, 8, [2, 1], 3),
    ("one repeated token predicts itself", [5, 5, 5, 5], {}, 8, [5], 3),
    ("the pattern is not matched against itself", [1, 2, 3], {"min_match": 1}, 8, None, 0),
    ("a match may reach position 0", [1, 2, 3, 9, 1, 2, 3], {}, 1, [9], 3),
    ("shorter than min_match declines", [9, 2, 3, 4, 1, 2, 3], {}, 3, None, 2),
    ("exactly min_match drafts", [9, 2, 3, 4, 1, 2, 3], {"min_match": 2}, 3, [4, 1, 2], 2),
    ("min_match 1 needs one token", [3, 4, 1, 3], {"min_match": 1}, 1, [4], 1),
    ("no match declines", [1, 2, 3, 4, 5, 6], {"min_match": 1}, 3, None, 0),
    ("an empty history declines", [], {"min_match": 1}, 3, None, 0),
    ("a single token declines", [1], {"min_match": 1}, 3, None, 0),
    ("a history shorter than the match declines", [5, 5], {}, 3, None, 0),
    ("a history as long as the match declines", [5, 5, 5], {}, 3, None, 0),
    ("no room declines", [5, 5, 5, 5, 5], {}, 0, None, 0),
    ("the length is capped at max_match", [4] * 40, {}, 1, [4], 12),
    ("the length is capped at max_match 64", [4] * 200, {"max_match": 64}, 1, [4], 64),
    ("min_match may equal max_match", [1, 2, 3, 1, 2], {"min_match": 2, "max_match": 2}, 1, [3], 2),
]


def history(tokens: list[int]) -> np.ndarray:
    array = np.array(tokens, np.int32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("tokens", "options", "n_max", "drafted", "length"),
    [row[1:] for row in RULES],
    ids=[row[0] for row in RULES],
)
def test_rules(
    tokens: list[int],
    options: dict[str, int],
    n_max: int,
    drafted: list[int] | None,
    length: int,
) -> None:
    """Each row is one rule, boundary or degenerate input."""
    draft = NgramSource(**options).draft(history(tokens), n_max)
    expected = Draft(drafted or [], length, (length + 1) / (length + 3))
    assert draft == (None if drafted is None else expected)


def reference(
    tokens: list[int], n_max: int, min_match: int, max_match: int
) -> tuple[list[int], int] | None:
    """The rules word for word: every end before the history's end, the longest, the latest."""
    best_length, best_end = 0, 0
    for end in range(1, len(tokens)):
        length = 0
        while length < min(end, max_match) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length and length >= best_length:
            best_length, best_end = length, end
    if best_length < min_match or n_max < 1:
        return None
    return tokens[best_end : best_end + n_max], best_length


@settings(max_examples=1500, deadline=None)
@given(
    tokens=st.integers(1, 4).flatmap(
        lambda n_vocab: st.lists(st.integers(0, n_vocab - 1), max_size=80)
    ),
    n_max=st.integers(0, 9),
    bounds=st.tuples(st.integers(1, 64), st.integers(1, 64)).map(sorted),
)
@example(tokens=[0] * 80, n_max=8, bounds=[1, 64])
@example(tokens=[0, 1] * 40, n_max=8, bounds=[3, 12])
def test_equals_the_reference(tokens: list[int], n_max: int, bounds: list[int]) -> None:
    """On small vocabularies, where matches are many and long, the vectorised search agrees."""
    min_match, max_match = bounds
    draft = NgramSource(min_match=min_match, max_match=max_match).draft(history(tokens), n_max)
    actual = None if draft is None else (list(draft.tokens), draft.evidence)
    assert actual == reference(tokens, n_max, min_match, max_match)


@pytest.mark.parametrize(
    ("min_match", "max_match"), [(0, 12), (-1, 3), (4, 3), (13, 12), (3, 65), (65, 65)]
)
def test_bounds_are_refused_by_name_and_value(min_match: int, max_match: int) -> None:
    """1 <= min_match <= max_match <= 64, and the message names both values."""
    with pytest.raises(ValueError, match=rf"\({min_match}\).*\({max_match}\)"):
        NgramSource(min_match=min_match, max_match=max_match)


@pytest.mark.parametrize("value", [3.0, "3", None])
def test_bounds_are_whole_numbers(value: object) -> None:
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="min_match"):
        NgramSource(min_match=value)  # type: ignore[arg-type]
