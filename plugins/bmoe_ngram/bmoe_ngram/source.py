"""The draft source, and its search for the longest match."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, validators

from bmoe_core import Draft, hookimpl

MAX_MATCH = 64
FEW = 32
"""Candidates that are compared one by one; more are compared at once, as arrays."""


@define(eq=False)
class NgramSource:
    """Drafts by looking the last tokens up in the prompt and the answer so far.

    The pattern is the end of the history, prompt, answer and settled token alike. Every position
    before the end is a candidate; the longest common suffix with the pattern wins, of equal ones
    the most recent, and the draft is what followed it. A match may overlap the pattern. Below
    ``min_match`` tokens it declines, which costs the run nothing. The rules are those of
    BigMoeOnEdge's n-gram decoding.

    The evidence of a draft is the matched length. The confidence in its tokens is, by Laplace's
    rule of succession, (m + 1) / (m + 3) after a match of m tokens: so many were the same in both
    places, and the one before them was not.

    Raises:
        ValueError: not 1 <= min_match <= max_match <= 64.
    """

    min_match: int = field(
        default=3,
        validator=validators.instance_of(int),
        metadata={"help": "shortest run of matching tokens that drafts"},
    )
    max_match: int = field(
        default=12,
        validator=validators.instance_of(int),
        metadata={"help": "longest run of matching tokens that is looked for"},
    )

    _seen: list[int] = field(factory=list, init=False)
    """The history as far as it is indexed."""
    _ends: dict[tuple[int, ...], list[int]] = field(factory=dict, init=False)
    """For each run of ``min_match`` tokens in it, where it ends (exclusive), in order."""
    _buffer: Callable[[], Any] = field(default=lambda: None, init=False)
    """Tells what the history was a view of, while that lives: a weak reference."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match <= MAX_MATCH:
            raise ValueError(
                f"min_match ({self.min_match}) must be at least 1 and at most max_match "
                f"({self.max_match}), which may be {MAX_MATCH} at most"
            )

    @hookimpl
    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """Index the prompt, which is read anyway, so that the first draft does not wait for it."""
        self._buffer = lambda: None
        self._index(prompt)

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Draft | None:
        """The tokens after the longest, most recent match; None where it is too short."""
        self._index(tokens)
        start, length = self._longest_match()
        if not length or n_max < 1:
            return None
        confidence = (length + 1) / (length + 3)
        return Draft(self._seen[start : start + n_max], length, confidence)

    def _index(self, tokens: npt.NDArray[np.int32]) -> None:
        """Take note of the tokens that were not there the last time.

        The loop lends views of one buffer, to which it only appends within a generation; with any
        other array everything is looked at anew.
        """
        buffer, seen, shortest = tokens.base, self._seen, self.min_match
        if buffer is None or buffer is not self._buffer() or len(tokens) < len(seen):
            self._buffer = (lambda: None) if buffer is None else weakref.ref(buffer)
            seen.clear()
            self._ends.clear()
        # The last token ends the pattern itself, and is a candidate from the next step on.
        first = max(len(seen), shortest)
        seen.extend(tokens[len(seen) :].tolist())
        for end in range(first, len(seen)):
            self._ends.setdefault(tuple(seen[end - shortest : end]), []).append(end)

    def _longest_match(self) -> tuple[int, int]:
        """Where the continuation of the best match begins, and the match's length.

        The length is 0 where no match reaches ``min_match``.
        """
        seen = self._seen
        ends = self._ends.get(tuple(seen[-self.min_match :]))
        if not ends:
            return 0, 0
        if len(ends) > FEW:
            return self._longest_of_many(ends)
        best, longest = 0, 0
        for end in reversed(ends):
            length = self._match_length(end)
            if length > longest:
                best, longest = end, length
                if length == self.max_match:
                    break
        return best, longest

    def _match_length(self, end: int) -> int:
        """Tokens in common before ``end`` and before the history's end, ``max_match`` at most."""
        seen = self._seen
        length, last = self.min_match, len(seen) - 1
        most = min(end, self.max_match)
        while length < most and seen[end - 1 - length] == seen[last - length]:
            length += 1
        return length

    def _longest_of_many(self, candidates: list[int]) -> tuple[int, int]:
        # Nothing beats a full-length match at the most recent place; a text of one repeated token
        # would otherwise keep all its positions through every comparison.
        if self._match_length(candidates[-1]) == self.max_match:
            return candidates[-1], self.max_match
        tokens, ends = np.array(self._seen), np.array(candidates)
        n, length = len(tokens), self.min_match
        while length < self.max_match:
            longer = ends[ends > length]
            longer = longer[tokens[longer - 1 - length] == tokens[n - 1 - length]]
            if not longer.size:
                break
            ends, length = longer, length + 1
        return int(ends[-1]), length
