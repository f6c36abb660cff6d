"""The kit catches each kind of broken source, and says which rule was broken on which tokens."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from bmoe_core import Draft, SourceUnavailable, hookimpl
from bmoe_core.testing import DraftSourceContract, FakeTarget
from bmoe_core.testing.class_rules import HOOKS

CONTRACT_TESTS = [name for name in dir(DraftSourceContract) if name.startswith("test_")]


@attrs.define(eq=False)
class Good:
    """Drafts the last token again, and keeps what it was shown as it should."""

    times: int = attrs.field(default=2, metadata={"help": "how often"})
    _seen: list[int] = attrs.field(factory=list, init=False)

    @hookimpl
    def begin(self, prompt: Any, n_past: int) -> None:
        self._seen = prompt[:n_past].tolist()

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        self._seen = [*self._seen[:n_past], *tokens.tolist()]

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [int(tokens[-1])] * min(self.times, n_max)

    @hookimpl
    def close(self) -> None:
        self.times = 0


class Unmarked(Good):
    def observe(self, tokens: Any, n_past: int) -> None:
        self._seen = []


class Misspelt(Good):
    @hookimpl
    def obsrve(self, tokens: Any, n_past: int) -> None: ...


class StrangeArgument(Good):
    @hookimpl
    def observe(self, tokens: Any, position: int) -> None: ...


class Defaulted(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int = 3) -> Any:
        return [1]


class TooLong(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [1, 2, 3, 4]


class OutsideTheVocabulary(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [int(max(tokens)) + 1]


class Raising(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [int(tokens[-5])]


class Talkative(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return Draft([1], evidence=len(tokens))


class Writing(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        tokens.base[0] = 9


class Keeping(Good):
    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        self._seen = tokens[1:]


class Sharing(Good):
    last: list[int] = [0]  # noqa: RUF012 - shared on purpose

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        self.last[0] = int(tokens[-1])

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [self.last[0]]


class Remembering(Good):
    @hookimpl
    def begin(self, prompt: Any, n_past: int) -> None: ...

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        self._seen += tokens.tolist()

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [self._seen[0]]


class LosingKept(Good):
    @hookimpl
    def begin(self, prompt: Any, n_past: int) -> None:
        self._seen = []

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        self._seen += tokens.tolist()

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return [self._seen[0]]


class Counting(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        self._seen.append(1)
        return [len(self._seen) % 16]


class CountingUnlessAskedTwice(Good):
    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        if len(tokens) not in self._seen:
            self._seen.append(len(tokens))
        return [len(self._seen) % 16]

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None: ...


class NeverClosing(Good):
    @hookimpl
    def close(self) -> None: ...


class Meddling(Good):
    _target: Any = None

    @hookimpl
    def open(self, target: Any) -> None:
        self._target = target

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        self._target.rule = lambda tokens: 7


class FailingLate(Good):
    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        if n_past > 30:
            raise IndexError("past the end")


class RefusingAll(Good):
    @hookimpl
    def open(self, target: Any) -> None:
        raise SourceUnavailable("no head here")


@attrs.define(eq=False)
class Helpless(Good):
    """A field without a help text."""

    size: int = 3


@attrs.define(eq=False)
class Doubling(Good):
    """A value that changes each time it is given."""

    size: int = attrs.field(default=3, converter=lambda n: 2 * n, metadata={"help": "size"})


@attrs.define(eq=False)
class NoOption(Good):
    """A field that no command line can give."""

    table: dict[str, int] = attrs.field(factory=dict, metadata={"help": "a table"})


@attrs.define(eq=False)
class Mumbling(Good):
    """A refusal that does not say what is refused."""

    size: int = attrs.field(default=3, metadata={"help": "size"})

    def __attrs_post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("bad value")


@attrs.define(eq=False)
class Crashing(Good):
    """A value that ends in an exception of some kind."""

    size: int = attrs.field(default=3, metadata={"help": "size"})

    def __attrs_post_init__(self) -> None:
        self._seen = [0] * (10 // self.size)


# the contract's test, the source that breaks its rule, what the message says
BROKEN: list[tuple[str, type, str]] = [
    ("test_its_hooks_are_known", Unmarked, r"observe is not marked with bmoe_core.hookimpl"),
    ("test_its_hooks_are_known", Misspelt, r"hook obsrve, which is none of a draft source's"),
    ("test_its_hooks_are_known", StrangeArgument, r"position"),
    (
        "test_no_argument_has_a_default",
        Defaulted,
        r"draft has n_max=3: write n_max, or leave it out",
    ),
    (
        "test_drafts_fit",
        TooLong,
        r"draft\(\[1, 0\], 1\) returned 4 tokens where 1 were asked for",
    ),
    (
        "test_drafts_fit",
        OutsideTheVocabulary,
        r"draft\(\[0, 31, .*\], 1\) returned token 32, which is outside the vocabulary of 32",
    ),
    ("test_drafts_fit", Raising, r"draft\(\[1, 0\], 1\) raised IndexError: index -5"),
    (
        "test_evidence_has_few_values",
        Talkative,
        r"at most 64 distinct values.\nafter \[\.\.\., .* \(66 tokens\) it has used 65",
    ),
    (
        "test_lent_tokens_are_neither_written_nor_kept",
        Writing,
        r"lent to a hook are read only.\ndraft\(\[1, 0\], 8\) left them as \[9, 0\]",
    ),
    (
        "test_lent_tokens_are_neither_written_nor_kept",
        Keeping,
        r"after observe\(\[1\], 0\) it still holds the array",
    ),
    (
        "test_instances_share_nothing",
        Sharing,
        r"after \[0, 1, 2, 3, 4, 0\] it drafts \[4\] alone, and \[5\] beside another instance",
    ),
    (
        "test_begin_forgets",
        Remembering,
        r"has come to \[6, 7\] a new source drafts \[6\], and one that .* drafts \[0\]",
    ),
    (
        "test_kept_positions",
        LosingKept,
        r"with 12 tokens kept, it drafts \[6\] after .*, and \[0\] where it sees them at once",
    ),
    ("test_drafting_leaves_no_trace", Counting, r"returns \[9\], and \[10\] when asked again"),
    (
        "test_drafting_leaves_no_trace",
        CountingUnlessAskedTwice,
        r"it drafts \[1\], and \[8\] where it was asked after each token",
    ),
    (
        "test_nothing_is_drafted_after_close",
        NeverClosing,
        r"after close\(\), draft\(\[0, 1, .*\], 8\) returned \[3, 3\]",
    ),
    (
        "test_the_answer_is_the_plain_one",
        Meddling,
        r"on a target that goes round in a cycle, at draft width 1, the answer after "
        r"\[1, 2, 3, 4, 1, 2, 3, 4\] goes on with 7, which lies 1 below the plain choice",
    ),
    (
        "test_the_answer_is_the_plain_one",
        FailingLate,
        r"at draft width 1, after \[.*\]: SourceFailedError: FailingLate: observe raised "
        r"IndexError: past the end",
    ),
    (
        "test_the_answer_is_the_plain_one",
        RefusingAll,
        r"open\(\) refused the target of make_target: no head here",
    ),
    ("test_options_make_the_round_trip", Helpless, r"the field size has no help text"),
    ("test_options_make_the_round_trip", Doubling, r"the field size is 6, and 12 when given again"),
    ("test_options_make_the_round_trip", NoOption, r"the field table has the type"),
    ("test_refused_options_are_explained", Mumbling, r"size=-1 is refused with: .*bad value"),
    ("test_refused_options_are_explained", Crashing, r"size=0: .*ZeroDivisionError"),
    (
        "test_the_time_of_a_draft_is_reported",
        FailingLate,
        r"observe\(\[.*\], 32\) raised IndexError: past the end",
    ),
]


def run(
    test: str,
    source_class: type,
    capsys: pytest.CaptureFixture[str],
    make_target: Callable[[], FakeTarget] = lambda: FakeTarget(n_ctx=600, n_vocab=32),
) -> None:
    """One test of the contract on a source, with the fixtures that it asks for."""
    fixtures = {
        "make_source": source_class,
        "make_target": make_target,
        "record_property": lambda name, value: None,
        "capsys": capsys,
    }
    method = getattr(DraftSourceContract(), test)
    method(**{name: fixtures[name] for name in inspect.signature(method).parameters})


@pytest.mark.parametrize(
    ("test", "source_class", "message"),
    BROKEN,
    ids=[f"{row[0]}-{row[1].__name__}" for row in BROKEN],
)
def test_a_broken_source_is_caught(
    test: str, source_class: type, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the source, the rule, and the tokens or the field."""
    with pytest.raises(AssertionError, match=message) as caught:
        run(test, source_class, capsys)
    assert f"{source_class.__name__} breaks the rule: " in str(caught.value)


def test_every_rule_has_a_broken_source() -> None:
    """A test of the contract that nothing breaks may test nothing."""
    assert {test for test, _, _ in BROKEN} == set(CONTRACT_TESTS)


@pytest.mark.parametrize("test", CONTRACT_TESTS)
def test_a_good_source_keeps_every_rule(test: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So what the broken ones are caught for is what they break."""
    run(test, Good, capsys)


def test_every_hook_is_looked_at() -> None:
    """The kit's list is the contract's."""
    assert [
        *("prepare_model", "prepare_context", "open", "begin"),
        *("observe", "draft", "report", "close"),
    ] == HOOKS


def test_the_time_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    """For every length that the target's context holds."""
    recorded: dict[str, str] = {}
    DraftSourceContract().test_the_time_of_a_draft_is_reported(
        make_source=Good,
        make_target=lambda: FakeTarget(n_ctx=600),
        record_property=recorded.__setitem__,  # type: ignore[arg-type]
        capsys=capsys,
    )
    assert re.fullmatch(
        r"draft takes \d+\.\d µs after 64 tokens, \d+\.\d µs after 512 tokens", recorded["draft"]
    )


SUITE = """
import pytest
from bmoe_core import hookimpl
from bmoe_core.testing import DraftSourceContract

class Four:
    @hookimpl
    def draft(self, tokens, n_max):
        return [1, 2, 3, 4]

class TestForgotten(DraftSourceContract):
    pass

class TestFour(DraftSourceContract):
    @pytest.fixture
    def make_source(self):
        return Four

    @pytest.mark.xfail(reason="drafts four at once")
    def test_drafts_fit(self): ...

    @pytest.mark.xfail(reason="believed to be broken")
    def test_begin_forgets(self): ...
"""


def test_a_suite_as_pytest_runs_it(tmp_path: Path) -> None:
    """The message, the time, expected failures and the remedy for a forgotten fixture are shown."""
    (tmp_path / "test_four.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rxf", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "Four breaks the rule: the answer is that of plain decoding." in done.stdout
    assert "draft returned 4 tokens where 1 were asked for" in done.stdout
    assert "trial.py" not in done.stdout.split("short test summary")[0]
    assert "XFAIL test_four.py::TestFour::test_drafts_fit - drafts four at once" in done.stdout
    assert "[XPASS(strict)] believed to be broken" in done.stdout
    assert "TestForgotten needs a fixture make_source that returns the source's" in done.stdout


class TestReplacing:
    """An inherited test may be replaced as an expected failure alone."""

    @pytest.mark.parametrize(
        "replacement",
        [
            lambda self: None,
            None,
            pytest.mark.skip(reason="too slow")(lambda self: None),
            pytest.mark.xfail(lambda self: None),
        ],
        ids=["by another", "by nothing", "by a skipped one", "without a reason"],
    )
    def test_in_silence(self, replacement: Any) -> None:
        """The class cannot even be made."""
        with pytest.raises(TypeError, match=r"Mine.test_drafts_fit replaces a test of the contr"):
            type("Mine", (DraftSourceContract,), {"test_drafts_fit": replacement})

    def test_as_an_expected_failure(self) -> None:
        """The inherited test runs and has to fail, whatever the replacement does."""

        class Mine(DraftSourceContract):
            @pytest.mark.xfail(reason="drafts four at once")
            def test_drafts_fit(self) -> None: ...

        (mark,) = Mine.test_drafts_fit.pytestmark  # type: ignore[attr-defined]
        assert mark.kwargs == {"reason": "drafts four at once", "strict": True}
        with pytest.raises(AssertionError, match="returned 4 tokens"):
            Mine().test_drafts_fit(make_source=TooLong, make_target=FakeTarget)

    def test_by_way_of_another_base_class(self) -> None:
        """What is inherited from elsewhere replaces it no less."""

        class Mixin:
            def test_drafts_fit(self) -> None: ...

        with pytest.raises(TypeError, match=r"Mine.test_drafts_fit replaces a test of the contr"):
            type("Mine", (Mixin, DraftSourceContract), {})

    def test_an_expected_failure_is_inherited(self) -> None:
        """A suite of suites says the reason once."""

        class Mine(DraftSourceContract):
            @pytest.mark.xfail(reason="drafts four at once")
            def test_drafts_fit(self) -> None: ...

        class Yours(Mine):
            pass

        assert Yours.test_drafts_fit is Mine.test_drafts_fit

    def test_more_tests_may_be_added(self) -> None:
        """Only the names of the contract are taken."""

        class Mine(DraftSourceContract):
            def test_my_own(self) -> None: ...

        assert Mine.test_drafts_fit is DraftSourceContract.test_drafts_fit
