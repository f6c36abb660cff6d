"""What every draft source has to keep, as a suite that a plugin's own suite inherits."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bmoe_core.arguments import parse_source_options
from bmoe_core.errors import (
    BmoeError,
    SourceError,
    SourceOptionError,
    SourceUnavailable,
    UsageError,
)
from bmoe_core.hookspecs import PROJECT_NAME, DraftSource
from bmoe_core.options import SourceOption, construct, options_of, values_of
from bmoe_core.steps import Draft
from bmoe_core.target.protocol import Target
from bmoe_core.testing.answers import answer_differs, fake_targets
from bmoe_core.testing.fakes import FakeTarget
from bmoe_core.testing.histories import N_PHRASE_TOKENS, histories, phrases
from bmoe_core.testing.trial import Trial, break_rule, show, show_draft, trial

MakeSource = Callable[[], Any]
MakeTarget = Callable[[], Target]

N_MAX = 8
MOST_EVIDENCE = 64
HOOKS = [name for name in vars(DraftSource) if not name.startswith("_")]


class DraftSourceContract:
    """Inherit this in a suite, and give it the fixture ``make_source``.

    ::

        class TestContract(DraftSourceContract):
            @pytest.fixture
            def make_source(self):
                return EchoSource

    An inherited test may be replaced as an expected failure alone: mark the method that replaces it
    with ``pytest.mark.xfail(reason=...)``. The inherited test still runs, and has to fail.

    Attributes:
        max_gap: how far, in logits, a token of a drafted answer may lie below the plain choice on
            the targets of ``make_target``: 0.0 on f32 weights, about 0.5 on quantised ones.
    """

    max_gap = 0.0

    @pytest.fixture
    def make_source(self) -> MakeSource:
        """A callable that makes a new source, such as its class; every suite has its own."""
        raise UsageError(
            f"{type(self).__name__} needs a fixture make_source that returns the source's class, "
            "or a function that makes a source"
        )

    @pytest.fixture
    def make_target(self) -> MakeTarget:
        """A callable that makes a new target; override it for a source that needs a real one.

        The targets are closed by whoever makes them, after the test.
        """
        return lambda: FakeTarget(n_ctx=4608, n_vocab=32)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let an inherited test be replaced as an expected failure alone.

        Raises:
            TypeError: another replacement.
        """
        super().__init_subclass__(**arguments)
        for name, replacement in list(vars(cls).items()):
            inherited = vars(DraftSourceContract).get(name)
            if not name.startswith("test_") or inherited is None:
                continue
            reasons = [
                mark.kwargs.get("reason")
                for mark in getattr(replacement, "pytestmark", [])
                if mark.name == "xfail"
            ]
            if not any(reasons):
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a test of the contract: mark it with "
                    'pytest.mark.xfail(reason="why this source may break the rule"), or remove it'
                )
            setattr(cls, name, _expected_to_fail(inherited, str(next(filter(None, reasons)))))

    def test_its_hooks_are_known(self, make_source: MakeSource) -> None:
        """Every hook is one of a draft source's, with arguments of that hook, and is marked."""
        plugin = make_source()
        rule = "its hooks and their arguments are those of bmoe_core.DraftSource"
        Trial(plugin, FakeTarget(), rule)
        for name in HOOKS:
            method = getattr(plugin, name, None)
            if callable(method) and not hasattr(method, f"{PROJECT_NAME}_impl"):
                break_rule(
                    plugin, rule, f"{name} is not marked with bmoe_core.hookimpl: nothing calls it"
                )

    def test_no_argument_has_a_default(self, make_source: MakeSource) -> None:
        """An argument is passed, or is not named: a default would hide which."""
        plugin = make_source()
        for name in HOOKS:
            for parameter in _parameters(plugin, name):
                if parameter.default is not parameter.empty:
                    break_rule(
                        plugin,
                        "no argument of a hook has a default",
                        f"{name} has {parameter.name}={parameter.default!r}: write {parameter.name}, "
                        "or leave it out where it is not used",
                    )

    def test_drafts_fit(self, make_source: MakeSource, make_target: MakeTarget) -> None:
        """A draft has n_max tokens at most, all of the vocabulary."""
        rule = "a draft has at most n_max tokens, each a token id of the vocabulary"
        with trial(make_source, make_target, rule) as tried:
            for history in histories(tried.target.n_vocab).values():
                for n_max in (1, 2, 3, N_MAX, 64):
                    tried.play(history, n_max)

    def test_evidence_has_few_values(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """64 at most, so that each is seen often enough to learn from."""
        rule = f"evidence has at most {MOST_EVIDENCE} distinct values"
        seen: set[Any] = set()
        with trial(make_source, make_target, rule) as tried:
            for history in histories(tried.target.n_vocab).values():
                tried.begin(history[:1])
                for i, token in enumerate(history[:-1]):
                    tried.feed([token])
                    evidence = tried.draft(history[: i + 2], N_MAX).evidence
                    seen |= set(evidence) if isinstance(evidence, tuple) else {evidence}
                    if len(seen) > MOST_EVIDENCE:
                        break_rule(
                            tried.plugin,
                            rule,
                            f"after {show(history[: i + 2])} it has used {len(seen)}: {seen}",
                        )

    def test_lent_tokens_are_neither_written_nor_kept(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """The arrays belong to the loop, which writes them anew."""
        rule = "the tokens lent to a hook are not kept"
        with trial(make_source, make_target, rule) as tried:
            for history in histories(tried.target.n_vocab).values():
                tried.play(history, N_MAX)
                if tried.kept:
                    break_rule(
                        tried.plugin,
                        rule,
                        f"after {tried.kept[0]} it still holds the array, or a part of it: copy "
                        "what you need, as with tokens.tolist()",
                    )

    def test_instances_share_nothing(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """Each serves a sequence of its own."""
        rule = "two instances share nothing"
        first, second = phrases(), phrases(swapped=True)
        alone = []
        for history in (first, second):
            with trial(make_source, make_target, rule) as tried:
                alone.append(list(_drafts_along(tried, history)))
        with (
            trial(make_source, make_target, rule) as one,
            trial(make_source, make_target, rule) as other,
        ):
            pairs = [(one, first, alone[0]), (other, second, alone[1])]
            for tried, history, _ in pairs:
                tried.begin(history[:1])
            for i in range(len(first) - 1):
                # Both see a token before either is asked.
                for tried, history, _ in pairs:
                    tried.feed([history[i]])
                for tried, history, expected in pairs:
                    draft = tried.draft(history[: i + 2], N_MAX)
                    if draft != expected[i]:
                        break_rule(
                            tried.plugin,
                            rule,
                            f"after {show(history[: i + 2])} it drafts {show_draft(expected[i])} "
                            f"alone, and {show_draft(draft)} beside another instance",
                        )

    def test_begin_forgets(self, make_source: MakeSource, make_target: MakeTarget) -> None:
        """After begin it drafts for tokens it has never seen as a new source does."""
        rule = "begin forgets the last request: its positions, and all that holds for it alone"
        earlier = phrases() * 2
        later = phrases(first=N_PHRASE_TOKENS)
        with trial(make_source, make_target, rule) as tried:
            new = list(_drafts_along(tried, later))
        with trial(make_source, make_target, rule) as tried:
            tried.play(earlier, N_MAX)
            for i, draft in enumerate(_drafts_along(tried, later)):
                if draft != new[i]:
                    break_rule(
                        tried.plugin,
                        rule,
                        f"in a generation that has come to {show(later[: i + 2])} a new source "
                        f"drafts {show_draft(new[i])}, and one that had an earlier generation over "
                        f"{show(earlier)} drafts {show_draft(draft)}",
                    )

    def test_kept_positions(self, make_source: MakeSource, make_target: MakeTarget) -> None:
        """Where the target keeps a part of the last request, it drafts as if it had seen it now."""
        rule = "positions below the n_past of begin are still there: go on from them, or decline"
        kept = phrases()
        for n_past in (len(kept) // 2, len(kept) - 1):
            history = [*kept[:n_past], *phrases(first=N_PHRASE_TOKENS)]
            with trial(make_source, make_target, rule) as tried:
                new = tried.play(history, N_MAX)
            with trial(make_source, make_target, rule) as tried:
                if not tried.target.max_rollback:
                    return
                tried.begin(kept[:n_past])
                tried.feed(kept[:n_past])
                tried.begin(history[:-1], n_past)
                tried.feed(history[n_past:-1])
                draft = tried.draft(history, N_MAX)
                if draft.tokens and draft != new:
                    break_rule(
                        tried.plugin,
                        rule,
                        f"with {n_past} tokens kept, it drafts {show_draft(draft)} after "
                        f"{show(history)}, and {show_draft(new)} where it sees them at once",
                    )

    def test_drafting_leaves_no_trace(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """Asked or not, asked twice, asked and not verified: the next draft is the same."""
        rule = "draft leaves no trace"
        history = phrases()
        with trial(make_source, make_target, rule) as tried:
            unasked = tried.play(history, N_MAX)
            again = tried.draft(history, N_MAX)
            if again != unasked:
                break_rule(
                    tried.plugin,
                    rule,
                    f"draft({show(history)}, {N_MAX}) returns {show_draft(unasked)}, and "
                    f"{show_draft(again)} when asked again",
                )
        with trial(make_source, make_target, rule) as tried:
            *_, asked = _drafts_along(tried, history)
            if asked != unasked:
                break_rule(
                    tried.plugin,
                    rule,
                    f"after {show(history)} it drafts {show_draft(unasked)}, and "
                    f"{show_draft(asked)} where it was asked after each token and no draft was "
                    "verified",
                )

    def test_nothing_is_drafted_after_close(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """What it drafted from has been given back; closing twice is allowed."""
        rule = "a closed source declines"
        with trial(make_source, make_target, rule) as tried:
            if not hasattr(tried.plugin, "close"):
                return
            history = phrases()
            tried.play(history, N_MAX)
            tried.close()
            draft = tried.draft(history, N_MAX)
            if draft.tokens:
                break_rule(
                    tried.plugin,
                    rule,
                    f"after close(), draft({show(history)}, {N_MAX}) returned {show_draft(draft)}",
                )

    def test_the_answer_is_the_plain_one(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """On every fake that it takes, and on its own target, at every width."""
        rule = "the answer is that of plain decoding"
        own = {"the target of make_target": (make_target, self.max_gap)}
        for name, (make, max_gap) in {**fake_targets(), **own}.items():
            for width in (1, 3, N_MAX):
                plugin = make_source()
                try:
                    difference = answer_differs(plugin, make, width, max_gap)
                except SourceUnavailable as error:
                    if name in own:
                        break_rule(plugin, rule, f"open() refused {name}: {error}")
                    break
                if difference:
                    break_rule(plugin, rule, f"on {name}, at draft width {width}, {difference}")

    def test_options_make_the_round_trip(self, make_source: MakeSource) -> None:
        """Its fields are options with a help text, and come through the command line unchanged."""
        plugin = make_source()
        rule = "its fields are its options, on the command line and in Python"
        try:
            values = values_of(plugin)
            for option in _options(plugin):
                if not option.help:
                    break_rule(
                        plugin,
                        rule,
                        f"the field {option.field} has no help text: give it "
                        'metadata={"help": "..."}',
                    )
            given = parse_source_options("source", type(plugin), _arguments(plugin))
            read = values_of(construct("source", type(plugin), {**values, **given}))
        except SourceError as error:
            break_rule(plugin, rule, str(error))
        for name, value in values.items():
            if read[name] != value:
                break_rule(
                    plugin,
                    rule,
                    f"the field {name} is {value!r}, and {read[name]!r} when given again as an "
                    "option",
                )

    def test_refused_options_are_explained(self, make_source: MakeSource) -> None:
        """A value is taken, or refused with ValueError or TypeError in a sentence that names it."""
        plugin = make_source()
        rule = "a refused value is a ValueError or TypeError whose message names the option"
        for option in _options(plugin):
            if type(option.default) not in (int, float):
                continue
            for value in (-1, 0):
                try:
                    construct("source", type(plugin), {option.field: type(option.default)(value)})
                except SourceOptionError as error:
                    if option.field not in str(error) and option.flag not in str(error):
                        break_rule(plugin, rule, f"{option.field}={value} is refused with: {error}")
                except BmoeError as error:
                    break_rule(plugin, rule, f"{option.field}={value}: {error}")

    def test_the_time_of_a_draft_is_reported(
        self,
        make_source: MakeSource,
        make_target: MakeTarget,
        record_property: Callable[[str, object], None],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Measured over short and long histories; how much is too much is not judged here."""
        figures = []
        with trial(make_source, make_target, "draft ends") as tried:
            for n in (64, 512, 4096):
                if n < tried.target.n_ctx:
                    history = [*range(n % 7), *(i * i % 13 for i in range(n - n % 7))]
                    tried.play(history, N_MAX)
                    figures.append(f"{_median_us(tried, history):.1f} µs after {n} tokens")
        figure = f"draft takes {', '.join(figures)}"
        record_property("draft", figure)
        with capsys.disabled():
            print(f"\n{type(tried.plugin).__name__}: {figure}")


def _expected_to_fail(inherited: Callable[..., None], reason: str) -> Callable[..., None]:
    """An inherited test, which now has to fail."""

    def expected(self: Any, **fixtures: Any) -> None:
        inherited(self, **fixtures)

    expected.__name__ = inherited.__name__
    expected.__doc__ = inherited.__doc__
    expected.__signature__ = inspect.signature(inherited)  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.xfail(reason=reason, strict=True)(expected)
    return marked


def _parameters(plugin: object, hook: str) -> list[inspect.Parameter]:
    method = getattr(plugin, hook, None)
    return list(inspect.signature(method).parameters.values()) if callable(method) else []


def _drafts_along(tried: Trial, history: list[int]) -> Iterator[Draft]:
    """The drafts after each token of a history from the second on, none of them verified."""
    tried.begin(history[:1])
    for i, token in enumerate(history[:-1]):
        tried.feed([token])
        yield tried.draft(history[: i + 2], N_MAX)


def _options(plugin: object) -> tuple[SourceOption, ...]:
    return options_of("source", type(plugin))


def _arguments(plugin: object) -> list[str]:
    """The command line that sets every option to the value it has; what is None is left out."""
    line: list[str] = []
    for option in _options(plugin):
        value = values_of(plugin)[option.field]
        if value is None:
            continue
        if option.value.is_switch:
            line.append(option.flag if value else "--no-" + option.flag.removeprefix("--"))
        else:
            line.append(f"{option.flag}={getattr(value, 'value', value)}")
    return line


def _median_us(tried: Trial, history: list[int], n: int = 25) -> float:
    lent = np.array(history, np.int32)
    times = []
    for _ in range(n):
        started = time.perf_counter()
        tried.source.draft(lent, N_MAX)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
