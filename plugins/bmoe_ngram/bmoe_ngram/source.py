"""The draft source, and its search for the longest match."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, validators

from bmoe_core import Draft, hookimpl

MAX_MATCH = 64


@define(eq=False)
class NgramSource:
    """Drafts by looking the last tokens up in the prompt and the answer so far.

    The pattern is the end of the history, prompt, answer and settled token alike. Every position
    before the end is a candidate; the longest common suffix with the pattern wins, of equal ones
    the most recent, and the draft is what followed it. A match may overlap the pattern. Below
    ``min_match`` tokens it declines, which costs the run nothing. The rules are those of
    BigMoeOnEdge's n-gram decoding.

    The evidence of a draft is the matched length.

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

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match <= MAX_MATCH:
            raise ValueError(
                f"min_match ({self.min_match}) must be at least 1 and at most max_match "
                f"({self.max_match}), which may be {MAX_MATCH} at most"
            )

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Draft | None:
        """The tokens after the longest, most recent match; None where it is too short."""
        start, length = self._longest_match(tokens)
        if length < self.min_match or n_max < 1:
            return None
        return Draft(tokens[start : start + n_max].tolist(), evidence=length)

    def _longest_match(self, tokens: npt.NDArray[np.int32]) -> tuple[int, int]:
        """Where the continuation of the best match begins, and the match's length.

        The length is 0 where no match reaches ``min_match``.
        """
        n = len(tokens)
        shortest = self.min_match
        if n <= shortest:
            return 0, 0
        # A candidate is where a match ends (exclusive): shortest <= end < n. The first `shortest`
        # comparisons run over whole slices, which leaves few candidates for the others.
        matches = tokens[shortest - 1 : n - 1] == tokens[n - 1]
        for back in range(1, shortest):
            matches &= tokens[shortest - 1 - back : n - 1 - back] == tokens[n - 1 - back]
        ends: npt.NDArray[np.intp] = np.flatnonzero(matches) + shortest
        if not ends.size:
            return 0, 0
        # Nothing beats a full-length match at the most recent place; a text of one repeated token
        # would otherwise keep all its positions through every comparison.
        latest = int(ends[-1])
        if self._match_length(tokens, latest) == self.max_match:
            return latest, self.max_match
        length = shortest
        while length < self.max_match:
            ends_longer = ends[ends > length]
            ends_longer = ends_longer[tokens[ends_longer - 1 - length] == tokens[n - 1 - length]]
            if not ends_longer.size:
                break
            ends, length = ends_longer, length + 1
        return int(ends[-1]), length

    def _match_length(self, tokens: npt.NDArray[np.int32], end: int) -> int:
        """Tokens in common before ``end`` and before the history's end, ``max_match`` at most."""
        longest = min(end, self.max_match)
        differs: Any = tokens[end - longest : end] != tokens[len(tokens) - longest :]
        positions = np.flatnonzero(differs)
        return int(longest - 1 - positions[-1]) if positions.size else longest
