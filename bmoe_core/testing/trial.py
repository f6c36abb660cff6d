"""One draft source on one target, called hook by hook as the loop calls it."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from attrs import define, evolve, field

from bmoe_core.errors import SourceContractError, SourceUnavailable, summarize
from bmoe_core.guard import BrokenDraftError, check_draft
from bmoe_core.sources import OpenSource, open_source
from bmoe_core.steps import Draft
from bmoe_core.target.protocol import Target

MOST_SHOWN = 32


def break_rule(source: object, rule: str, what: str) -> NoReturn:
    """Fail a test: which source broke which rule, and on what.

    Raises:
        AssertionError: always.
    """
    __tracebackhide__ = True
    raise AssertionError(f"{type(source).__name__} breaks the rule: {rule}.\n{what}")


def show(tokens: Sequence[int] | npt.NDArray[np.int32]) -> str:
    """Token ids for a message, the last ones of many."""
    ids = [int(token) for token in tokens]
    if len(ids) <= MOST_SHOWN:
        return str(ids)
    return f"[..., {str(ids[-MOST_SHOWN:])[1:]} ({len(ids)} tokens)"


def show_draft(draft: Draft) -> str:
    """A draft for a message."""
    if not draft.tokens:
        return "nothing (declined)"
    evidence = "" if draft.evidence is None else f" with evidence {draft.evidence!r}"
    confidence = "" if draft.confidence is None else f" and confidence {draft.confidence!r}"
    return f"{show(draft.tokens)}{evidence}{confidence}"


@define(eq=False)
class Trial:
    """A source on a target; a hook that fails, or what it must not return, fails the test.

    Attributes:
        plugin: the source's instance.
        target: the target it has taken.
        rule: the rule that is tried, for messages.
        kept: what the source was seen to keep of the arrays lent to it: hooks and tokens.
    """

    plugin: Any
    target: Target
    rule: str
    kept: list[str] = field(factory=list, init=False)
    source: OpenSource = field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            self.source = open_source(self.plugin)
        except SourceContractError as error:
            break_rule(self.plugin, self.rule, str(error))

    def open(self) -> None:
        """Let the source take the target.

        Raises:
            SourceUnavailable: it refuses it.
        """
        self.source.open(self.target)

    def begin(self, prompt: Sequence[int], n_past: int = 0) -> None:
        """Begin a generation; the target keeps ``n_past`` positions."""
        if n_past:
            self.target.roll_back(n_past)
        else:
            self.target.clear()
        self._lend("begin", prompt, lambda lent: self.source.begin(lent, n_past), f", {n_past}")

    def feed(self, tokens: Sequence[int]) -> None:
        """Decode tokens and show them to the source, a batch at a time."""
        for start in range(0, len(tokens), self.target.n_batch):
            chunk = tokens[start : start + self.target.n_batch]
            n_past = self.target.n_past
            self.target.decode(chunk, 1)
            self._lend(
                "observe",
                chunk,
                lambda lent, n_past=n_past: self.source.observe(lent, n_past),  # type: ignore[misc]
                f", {n_past}",
            )

    def draft(self, history: Sequence[int], n_max: int) -> Draft:
        """What the source drafts after ``history``, whose last token is not decoded yet."""
        answer = self._lend(
            "draft", history, lambda lent: self.source.draft(lent, n_max), f", {n_max}"
        )
        try:
            return check_draft(answer, n_max, self.target.n_vocab)
        except BrokenDraftError as error:
            break_rule(self.plugin, self.rule, f"draft({show(history)}, {n_max}) {error}")

    def play(self, history: Sequence[int], n_max: int) -> Draft:
        """A whole generation that has come to ``history``, and what is drafted then."""
        self.begin(history[:-1])
        self.feed(history[:-1])
        return self.draft(history, n_max)

    def close(self) -> None:
        """Have the source give back what it holds."""
        try:
            self.source.close()
        except Exception as error:
            break_rule(self.plugin, self.rule, f"close() raised {summarize(error)}")

    def _lend(self, hook: str, tokens: Sequence[int], call: Callable[[Any], Any], rest: str) -> Any:
        """Call a hook with a read-only view, then see whether it was written or kept."""
        # As in the loop, the view is of a longer array, and not the whole of it.
        owner = np.zeros(len(tokens) + 1, np.int32)
        owner[:-1] = tokens
        lent = owner[:-1]
        lent.flags.writeable = False
        called = f"{hook}({show(tokens)}{rest})"
        try:
            answer = call(lent)
        except Exception as error:
            break_rule(self.plugin, self.rule, f"{called} raised {summarize(error)}")
        if lent.tolist() != list(tokens):
            break_rule(
                self.plugin,
                "the tokens lent to a hook are read only",
                f"{called} left them as {show(lent)}",
            )
        if isinstance(answer, np.ndarray):
            # A draft may be a part of the history; the loop copies it at once.
            answer = answer.tolist()
        elif isinstance(answer, Draft) and isinstance(answer.tokens, np.ndarray):
            answer = evolve(answer, tokens=answer.tokens.tolist())
        traces = [weakref.ref(owner), weakref.ref(lent)]
        del owner, lent
        if any(trace() is not None for trace in traces):
            gc.collect()
        if any(trace() is not None for trace in traces):
            self.kept.append(called)
        return answer


@contextlib.contextmanager
def trial(
    make_source: Callable[[], Any], make_target: Callable[[], Target], rule: str
) -> Iterator[Trial]:
    """A new source that has taken a new target, and is closed in the end."""
    tried = Trial(make_source(), make_target(), rule)
    try:
        tried.open()
    except SourceUnavailable as error:
        break_rule(tried.plugin, rule, f"open() refused the target of make_target: {error}")
    yield tried
    tried.close()
