"""The loop's side of a draft source: it checks what comes back, times it, and survives it.

A draft is a hint, so a source that raises or breaks its contract must not cost the user the
answer: it is switched off for the rest of the run, and the reason is kept for the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bmoe_core.errors import SourceFailedError, summarize
from bmoe_core.steps import NO_DRAFT, Draft, SourceFailure

T = TypeVar("T")

HANGING_S = 1.0
"""A hook that is interrupted after as many seconds is named as what the user waited for."""


class Source(Protocol):
    """What the loop asks of an opened draft source; see :class:`bmoe_core.DraftSource`."""

    @property
    def name(self) -> str:
        """The source's name in reports."""

    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """A generation begins."""

    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """Tokens were decoded and confirmed."""

    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Any:
        """Propose tokens or decline."""


class BrokenDraftError(Exception):
    """What a source returned is no draft; the message continues "<source>: draft ..."."""


class SourceGuard:
    """Calls one source for one generation.

    Attributes:
        failure: why the source was switched off, or None while it works.
        seconds: time spent in the source since :meth:`take_seconds` was last called.
    """

    def __init__(self, source: Source | None, *, n_vocab: int, strict: bool) -> None:
        self._source = source
        self._observes = source is not None and getattr(source, "observes", True)
        self._n_vocab = n_vocab
        self._strict = strict
        self.failure: SourceFailure | None = None
        self.seconds = 0.0

    @property
    def active(self) -> bool:
        """Whether there is a source that has not failed."""
        return self._source is not None and self.failure is None

    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """Tell the source of a new generation."""
        if self._source is not None:
            self._call("begin", self._source.begin, prompt, n_past)

    def observe(self, tokens: Sequence[int], n_past: int) -> None:
        """Show the source confirmed tokens, the first of them at position ``n_past``."""
        if self._observes and self._source is not None and self.failure is None:
            shown = np.asarray(tokens, np.int32)
            shown.flags.writeable = False
            self._call("observe", self._source.observe, shown, n_past)

    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Draft:
        """Ask for a draft of 1 to ``n_max`` tokens; with no room the source is not asked."""
        if self._source is None or self.failure is not None or n_max < 1:
            return NO_DRAFT
        draft = self._source.draft
        checked = self._call(
            "draft", lambda: check_draft(draft(tokens, n_max), n_max, self._n_vocab)
        )
        return checked or NO_DRAFT

    def take_seconds(self) -> float:
        """Seconds spent in the source since the last call of this."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _call(self, hook: str, function: Callable[..., T], *args: Any) -> T | None:
        started = time.perf_counter()
        try:
            return function(*args)
        except BrokenDraftError as error:
            self._fail(hook, str(error), None)
        except (Exception, SystemExit) as error:
            self._fail(hook, f"raised {summarize(error)}", error)
        except KeyboardInterrupt:
            self._note_hanging(hook, time.perf_counter() - started)
            raise
        finally:
            self.seconds += time.perf_counter() - started
        return None

    def _note_hanging(self, hook: str, seconds: float) -> None:
        if self._source is not None and seconds >= HANGING_S:
            self.failure = SourceFailure(
                source=self._source.name,
                hook=hook,
                reason=f"had been running for {seconds:.1f} s when the run was interrupted",
                run_went_on=False,
            )

    def _fail(self, hook: str, reason: str, cause: BaseException | None) -> None:
        name = self._source.name if self._source is not None else ""
        self.failure = SourceFailure(source=name, hook=hook, reason=reason)
        if self._strict:
            raise SourceFailedError(f"{name}: {hook} {reason}") from cause


def check_draft(answer: Any, n_max: int, n_vocab: int) -> Draft:
    """The draft in what a source's ``draft`` returned.

    Args:
        answer: a :class:`Draft`, a sequence or one-dimensional array of token ids, or None.
        n_max: the most tokens it may hold.
        n_vocab: token ids are below this.

    Raises:
        BrokenDraftError: it breaks the contract; the message names the offending value.
    """
    if answer is None:
        return NO_DRAFT
    evidence: Hashable = None
    confidence: Any = None
    tokens = answer
    if isinstance(answer, Draft):
        tokens, evidence, confidence = answer.tokens, answer.evidence, answer.confidence
    ids = _token_ids(tokens)
    if len(ids) > n_max:
        raise BrokenDraftError(f"returned {len(ids)} tokens where {n_max} were asked for")
    for token in ids:
        if not 0 <= token < n_vocab:
            raise BrokenDraftError(
                f"returned token {token}, which is outside the vocabulary of {n_vocab}"
            )
    if isinstance(evidence, tuple) and len(evidence) != len(ids):
        raise BrokenDraftError(f"returned {len(evidence)} values of evidence for {len(ids)} tokens")
    try:
        hash(evidence)
    except TypeError:
        raise BrokenDraftError(f"returned evidence that is not hashable: {evidence!r}") from None
    confidence = _confidence(confidence, len(ids))
    return Draft(ids, evidence, confidence) if ids else NO_DRAFT


def _confidence(answer: Any, n_tokens: int) -> float | tuple[float, ...] | None:
    if answer is None:
        return None
    values = answer if isinstance(answer, tuple) else (answer,)
    for value in values:
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_number or not 0.0 <= value <= 1.0:
            raise BrokenDraftError(
                f"returned a confidence of {value!r}, which is not a number from 0 to 1"
            )
    if not isinstance(answer, tuple):
        return float(answer)
    if len(answer) != n_tokens:
        raise BrokenDraftError(f"returned {len(answer)} values of confidence for {n_tokens} tokens")
    return tuple(float(value) for value in answer)


def _token_ids(tokens: Any) -> list[int]:
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise BrokenDraftError(
                f"returned an array of shape {tokens.shape} and type {tokens.dtype}, not a "
                "one-dimensional array of token ids"
            )
        return [int(token) for token in tokens]
    if not isinstance(tokens, Sequence) or isinstance(tokens, (str, bytes)):
        raise BrokenDraftError(f"returned {tokens!r}, not a sequence of token ids")
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise BrokenDraftError(f"returned {token!r}, which is not a token id")
    return [int(token) for token in tokens]
