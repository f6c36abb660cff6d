"""The fake targets behave as what they stand for."""

from __future__ import annotations

import pytest

from bmoe_core import RollbackError, generate, open_source
from bmoe_core.testing import (
    FakeTarget,
    NearTieTarget,
    RefusingTarget,
    ScriptedSource,
    cyclic,
    plain_gaps,
)


def test_a_cycle() -> None:
    """After every token the next, and the first after the last."""
    generation = generate(FakeTarget(rule=cyclic(3)), [1], n_predict=5)
    list(generation)
    assert generation.tokens == [1, 2, 0, 1, 2, 0]


def test_near_ties_part_a_drafted_answer_from_the_plain_one() -> None:
    """By the second choice, which lies the tie below the first, and by no other."""
    plain = generate(NearTieTarget(rule=cyclic()), [1, 2], n_predict=20)
    list(plain)
    assert plain.tokens == [(1 + i) % 5 for i in range(22)]
    source = ScriptedSource(lambda tokens, n_max: [(int(tokens[-1]) + 1) % 5])
    drafted = generate(NearTieTarget(rule=cyclic()), [1, 2], n_predict=20, source=source)
    list(drafted)
    assert drafted.tokens != plain.tokens
    gaps = plain_gaps(NearTieTarget(rule=cyclic()), drafted.tokens, 2)
    assert gaps.max() == pytest.approx(0.01, rel=1e-3)
    assert {round(float(gap), 3) for gap in gaps} == {0.0, 0.01}


def test_a_refused_rollback_ends_the_run() -> None:
    """Accepted drafts need none; the first rejected one does."""
    right = ScriptedSource(lambda tokens, n_max: [(int(tokens[-1]) + 1) % 5])
    generation = generate(RefusingTarget(rule=cyclic()), [1], n_predict=9, source=right)
    list(generation)
    assert generation.n_generated == 9
    wrong = ScriptedSource(lambda tokens, n_max: [9])
    with pytest.raises(RollbackError, match="no way back from position 3 to 2"):
        list(generate(RefusingTarget(rule=cyclic()), [1], n_predict=9, source=wrong))


def test_a_source_of_the_user_s_own_can_be_opened_by_its_instance() -> None:
    """As the fakes' tests of third parties do."""
    assert open_source(ScriptedSource(), name="mine").name == "mine"
