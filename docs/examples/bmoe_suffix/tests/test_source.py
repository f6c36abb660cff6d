"""What the source drafts, on literal tokens."""

from __future__ import annotations

import numpy as np
import pytest
from bmoe_suffix import SuffixSource

from bmoe_core import Draft, generate, open_source
from bmoe_core.testing import FakeTarget, cyclic


def drafted(
    source: SuffixSource, history: list[int], n_max: int, earlier: list[list[int]] | None = None
) -> list[int] | None:
    """What it drafts after a history, having read earlier texts; None: it declines."""
    for text in [*(earlier or []), history[:-1]]:
        source.begin(np.array(text, np.int32), 0)
        source.observe(np.array(text, np.int32), 0)
    draft = source.draft(np.array(history, np.int32), n_max)
    return None if draft is None else list(draft.tokens)


# history, earlier texts, options, n_max, what is drafted (None: declined)
RULES = [
    ("what followed the match", [1, 2, 3, 4, 5, 9, 1, 2, 3], [], {}, 3, [4, 5, 9]),
    ("as many tokens as match", [7, 1, 2, 3, 4, 5, 6, 8, 9, 1, 2, 3], [], {}, 8, [4, 5, 6]),
    (
        "twice as many",
        [7, 1, 2, 3, 4, 5, 6, 8, 9, 1, 2, 3],
        [],
        {"factor": 2.0},
        8,
        [4, 5, 6, 8, 9, 1],
    ),
    (
        "without bounds, to the end of what was read",
        [7, 1, 2, 3, 4, 5, 9, 1, 2, 3],
        [],
        {"factor": float("inf")},
        8,
        [4, 5, 9, 1, 2],
    ),
    ("half as many, rounded up", [1, 2, 3, 4, 5, 9, 1, 2, 3], [], {"factor": 0.5}, 8, [4, 5]),
    ("no more than there is room for", [1, 2, 3, 4, 5, 9, 1, 2, 3], [], {}, 1, [4]),
    ("a match that is too short", [1, 2, 3, 9, 2, 3], [], {}, 3, None),
    ("nothing that matches", [1, 2, 3, 4], [], {"min_match": 1}, 3, None),
    (
        "the most frequent continuation, not the latest",
        [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3],
        [],
        {},
        1,
        [4],
    ),
    (
        "of equally frequent ones the latest",
        [8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 7, 1, 2, 3],
        [],
        {"min_share": 0.5},
        1,
        [5],
    ),
    (
        "where no continuation is frequent enough",
        [8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 7, 1, 2, 3],
        [],
        {"min_share": 0.6},
        1,
        None,
    ),
    (
        "as far as most occurrences agree",
        [0, 1, 2, 3, 4, 8, 0, 1, 2, 3, 4, 9, 0, 1, 2, 3],
        [],
        {"min_share": 0.6},
        4,
        [4],
    ),
    ("round a cycle for as long as it goes", [1, 2, 3, 1, 2, 3, 1], [], {}, 4, [2, 3, 1, 2]),
    ("one token over and over", [5, 5, 5, 5, 5], [], {}, 4, [5, 5, 5, 5]),
    ("what an earlier text had", [9, 1, 2, 3], [[1, 2, 3, 4, 5, 6]], {}, 3, [4, 5, 6]),
    ("earlier texts count as this one does", [1, 2, 3, 5, 1, 2, 3], [[1, 2, 3, 4]] * 2, {}, 1, [4]),
    ("no run over the border of two texts", [1, 2, 3], [[1, 2], [3, 4]], {"min_match": 3}, 1, None),
]


@pytest.mark.parametrize(
    ("history", "earlier", "options", "n_max", "expected"),
    [row[1:] for row in RULES],
    ids=[row[0] for row in RULES],
)
def test_rules(
    history: list[int],
    earlier: list[list[int]],
    options: dict[str, float],
    n_max: int,
    expected: list[int] | None,
) -> None:
    """Each row is one rule."""
    assert drafted(SuffixSource(**options), history, n_max, earlier) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "evidence"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], 2 * 8 + 7),
        ([*range(8), 9, 9, *range(7)], 3 * 8 + 7),
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 1, 2, 3], 2 * 8 + 4),
        ([*range(500), *range(400)], 7 * 8 + 7),
    ],
)
def test_the_evidence_is_the_match_and_the_share(history: list[int], evidence: int) -> None:
    """Eight times the bits of the matched length, and the eighth that the share lies in."""
    source = SuffixSource()
    source.observe(np.array(history[:-1], np.int32), 0)
    draft = source.draft(np.array(history, np.int32), 1)
    assert isinstance(draft, Draft)
    assert draft.evidence == evidence


def test_a_second_generation_drafts_what_the_first_has_taught() -> None:
    """The same answer again takes a fraction of the decodes, and is the same."""
    order = [3, 14, 8, 1, 12, 6, 15, 9, 2, 11, 5, 13, 7, 4, 10, 0]

    def once_round(tokens: list[int]) -> int:
        return order[order.index(tokens[-1]) + 1]

    source = open_source(SuffixSource(), name="suffix")
    n_decodes, answers = [], []
    for _ in range(2):
        target = FakeTarget(rule=once_round, eog=frozenset({0}))  # type: ignore[arg-type]
        generation = generate(target, [3, 14, 8], source=source, width=8, strict=True)
        n_decodes.append(len(list(generation)))
        answers.append(generation.tokens)
    assert answers[0] == answers[1] == order[:-1]
    assert n_decodes[0] == 12
    # Three tokens match at first, then all that has been drafted: 1 + 4 and 1 + 7 tokens.
    assert n_decodes[1] == 2


def test_a_kept_prompt_is_gone_on_from() -> None:
    """What the target keeps is read again, up to the last 64 tokens, to have a context."""
    source = SuffixSource()
    text = np.array([1, 2, 3, 4, 5, 6], np.int32)
    source.begin(text, 0)
    source.observe(text, 0)
    source.begin(text[:4], 3)
    source.observe(text[3:4], 3)
    draft = source.draft(np.array([1, 2, 3, 4, 5], np.int32), 4)
    assert draft is not None
    assert list(draft.tokens) == [6]


def test_out_of_step_it_declines() -> None:
    """A history that it has not read is none it can draft for."""
    source = SuffixSource()
    source.observe(np.array([5, 5, 5, 5], np.int32), 0)
    assert source.draft(np.array([5, 5, 5], np.int32), 4) is None
    source.observe(np.array([6], np.int32), 9)
    assert source.draft(np.array([5] * 5, np.int32), 4) is None


def test_the_report_says_what_is_remembered() -> None:
    """And closing forgets it."""
    source = open_source(SuffixSource(), name="suffix")
    list(generate(FakeTarget(rule=cyclic()), [1], source=source, n_predict=9))
    assert source.report() == ["suffix: 10 tokens remembered in 11 states"]
    source.close()
    assert source.report() == ["suffix: 0 tokens remembered in 1 states"]


@pytest.mark.parametrize(
    "options",
    [{"min_match": 0}, {"factor": 0.0}, {"min_share": 1.1}, {"min_share": -0.1}, {"remember": 1}],
)
def test_options_out_of_bounds_are_refused(options: dict[str, float]) -> None:
    """By name."""
    with pytest.raises(ValueError, match=next(iter(options))):
        SuffixSource(**options)  # type: ignore[arg-type]
