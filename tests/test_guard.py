"""A source that fails or breaks its contract never costs the user the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bmoe_core import Draft, SourceFailedError, generate, guard
from bmoe_core.guard import BrokenDraftError, check_draft
from bmoe_core.testing import FakeTarget, ScriptedSource

GOOD = [
    ("nothing", None, []),
    ("an empty list", [], []),
    ("an empty draft", Draft([]), []),
    ("an empty float array", np.array([]), []),
    ("a list", [1, 2], [1, 2]),
    ("a tuple", (3,), [3]),
    ("an int32 array", np.array([1, 2], np.int32), [1, 2]),
    ("a uint8 array", np.array([1, 2], np.uint8), [1, 2]),
    ("numpy integers", [np.int64(5)], [5]),
    ("a draft of an array", Draft(np.array([4, 5])), [4, 5]),  # type: ignore[arg-type]
]

BAD = [
    ("too long", [1, 2, 3, 4], "returned 4 tokens where 3 were asked for"),
    ("outside the vocabulary", [16], "returned token 16, which is outside the vocabulary of 16"),
    ("negative", [-1], "returned token -1, which is outside the vocabulary of 16"),
    ("a float", [1.0], "returned 1.0, which is not a token id"),
    ("a bool", [True], "returned True, which is not a token id"),
    ("text", "abc", "returned 'abc', not a sequence of token ids"),
    ("a number", 7, "returned 7, not a sequence of token ids"),
    ("a generator", iter([1]), "not a sequence of token ids"),
    ("a matrix", np.ones((1, 2), np.int32), r"array of shape \(1, 2\) and type int32"),
    ("a float array", np.ones(2), r"array of shape \(2,\) and type float64"),
    ("unhashable evidence", Draft([1], evidence=[2]), "evidence that is not hashable"),  # type: ignore[arg-type]
    ("too little evidence", Draft([1, 2], evidence=(1,)), "1 values of evidence for 2 tokens"),
    (
        "too sure",
        Draft([1], confidence=1.5),
        "confidence of 1.5, which is not a number from 0 to 1",
    ),
    ("not a number", Draft([1], confidence=float("nan")), "confidence of nan"),
    ("a list", Draft([1], confidence=[0.5]), r"confidence of \[0\.5\]"),  # type: ignore[arg-type]
    ("a yes", Draft([1], confidence=True), "confidence of True"),
    ("one of two", Draft([1, 2], confidence=(0.5, "high")), "confidence of 'high'"),  # type: ignore[arg-type]
    ("too few", Draft([1, 2], confidence=(0.5,)), "1 values of confidence for 2 tokens"),
]


@pytest.mark.parametrize(("answer", "tokens"), [row[1:] for row in GOOD], ids=[r[0] for r in GOOD])
def test_what_is_a_draft(answer: Any, tokens: list[int]) -> None:
    """Any sequence of token ids is a draft, and nothing is declining."""
    draft = check_draft(answer, n_max=3, n_vocab=16)
    assert list(draft.tokens) == tokens
    assert all(type(token) is int for token in draft.tokens)


@pytest.mark.parametrize(("answer", "reason"), [row[1:] for row in BAD], ids=[r[0] for r in BAD])
def test_what_is_none(answer: Any, reason: str) -> None:
    """The message names the rule and the value."""
    with pytest.raises(BrokenDraftError, match=reason):
        check_draft(answer, n_max=3, n_vocab=16)


def test_evidence_is_kept() -> None:
    """One value for the draft, or one a token."""
    assert check_draft(Draft([1], evidence="sure"), 3, 16).evidence == "sure"
    assert check_draft(Draft([1, 2], evidence=(1, 2)), 3, 16).evidence == (1, 2)


def test_confidence_is_kept() -> None:
    """As plain numbers, whatever the source counted with."""
    assert check_draft(Draft([1], confidence=1), 3, 16).confidence == 1.0
    draft = check_draft(Draft([1, 2], confidence=(np.float32(0.5), 0)), 3, 16)
    assert draft.confidence == (0.5, 0.0)
    assert isinstance(draft.confidence, tuple)
    assert all(type(value) is float for value in draft.confidence)


def failing(hook: str) -> ScriptedSource:
    """A source whose ``hook`` raises at its third call, and that is wrong before."""

    class Failing(ScriptedSource):
        def _count(self, name: str) -> None:
            self.asked.append((0, 0))
            if name == hook and len(self.asked) > 2 * (hook != "begin"):
                raise RuntimeError("a bug")

        def begin(self, prompt: Any, n_past: int) -> None:
            self._count("begin")

        def observe(self, tokens: Any, n_past: int) -> None:
            self._count("observe")

        def draft(self, tokens: Any, n_max: int) -> Any:
            self._count("draft")
            return [0] * n_max

    return Failing()


@pytest.mark.parametrize("hook", ["begin", "observe", "draft"])
class TestAFailingHook:
    def test_the_run_goes_on_plainly(self, hook: str) -> None:
        """The answer is that of a plain run, and the failure names source, hook and exception."""
        plain = generate(FakeTarget(), [1, 2], n_predict=30)
        list(plain)
        generation = generate(FakeTarget(), [1, 2], n_predict=30, source=failing(hook))
        steps = list(generation)
        assert generation.tokens == plain.tokens
        assert not steps[-1].drafted
        failure = generation.source_failure
        assert failure is not None
        assert (failure.source, failure.hook) == ("scripted", hook)
        assert f"{hook} raised RuntimeError: a bug; the source was switched off" in str(failure)

    def test_strict_raises(self, hook: str) -> None:
        """Under strict the run ends, with the memory in order."""
        target = FakeTarget()
        generation = generate(target, [1, 2], n_predict=30, source=failing(hook), strict=True)
        with pytest.raises(SourceFailedError, match=f"scripted: {hook} raised RuntimeError"):
            list(generation)
        assert target.held == generation.tokens[: generation.n_past]


@pytest.mark.parametrize("answer", [[1] * 9, [99], "abc", [1.5]])
def test_a_broken_draft_is_no_draft(answer: Any) -> None:
    """What breaks the contract is not verified at all."""
    target = FakeTarget()
    generation = generate(
        target, [1, 2], n_predict=5, source=ScriptedSource(lambda tokens, n_max: answer)
    )
    assert not any(step.drafted for step in generation)
    assert generation.source_failure is not None
    assert generation.source_failure.hook == "draft"


def test_a_source_that_exits_is_survived() -> None:
    """SystemExit from a plugin does not end the program."""

    def leave(tokens: Any, n_max: int) -> Any:
        raise SystemExit(3)

    generation = generate(FakeTarget(), [1], n_predict=5, source=ScriptedSource(leave))
    assert len(list(generation)) == 5
    assert generation.source_failure is not None


@pytest.mark.parametrize(
    ("seconds", "reported"),
    [
        (3.26, "scripted: draft had been running for 3.3 s when the run was interrupted"),
        (0.5, "None"),
    ],
)
def test_an_interrupt_of_a_hanging_source(
    seconds: float, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the run, and where the user waited for the source, that is said."""
    clock = 100.0

    def hang(tokens: Any, n_max: int) -> Any:
        nonlocal clock
        clock += seconds
        raise KeyboardInterrupt

    monkeypatch.setattr(guard.time, "perf_counter", lambda: clock)
    generation = generate(FakeTarget(), [1], n_predict=5, source=ScriptedSource(hang))
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert str(generation.source_failure) == reported


def test_the_history_is_read_only_and_lent() -> None:
    """Writing to the history raises; forcing it spoils later drafts at most, never the answer."""
    plain = generate(FakeTarget(), [1, 2], n_predict=20)
    list(plain)

    def write(tokens: Any, n_max: int) -> Any:
        assert tokens.dtype == np.int32
        with pytest.raises(ValueError, match="read-only"):
            tokens[0] = 9
        tokens.base[:] = 9
        return None

    generation = generate(FakeTarget(), [1, 2], n_predict=20, source=ScriptedSource(write))
    list(generation)
    assert generation.source_failure is None
    assert generation.tokens == plain.tokens


def test_the_time_in_the_source_is_counted_as_drafting() -> None:
    """draft_s holds draft and observe, decode_s neither."""
    import time

    class Slow(ScriptedSource):
        def observe(self, tokens: Any, n_past: int) -> None:
            time.sleep(0.002)

        def draft(self, tokens: Any, n_max: int) -> Any:
            time.sleep(0.002)

    steps = list(generate(FakeTarget(), [1, 2], n_predict=3, source=Slow()))
    # The last token leaves no room, so the source is not asked there.
    assert all(step.draft_s >= 0.004 for step in steps[:-1])
    assert steps[-1].draft_s >= 0.002
