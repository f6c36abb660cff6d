"""The draft source: how far it trusts a match."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from attrs import define, field, validators

from bmoe_core import Draft, hookimpl
from bmoe_suffix.memory import Memory

OVERLAP = 64
"""Tokens of a kept prompt that are read again, to have a context to go on from."""
N_BUCKETS = 8


@define(eq=False)
class SuffixSource:
    """Drafts what most often followed the last tokens, in this and in earlier answers.

    The longest run of tokens at the end of the history that has occurred before, in this
    generation or an earlier one, is the match. The draft follows its most frequent continuation,
    of equal ones the latest, token by token. It ends at ``factor`` times the matched length, or
    where the share of earlier occurrences that went on in this way falls below ``min_share``, so a
    short or ambiguous match costs little and a long copy is drafted at full width. Both rules are
    those of SuffixDecoding (Oliaro et al., arXiv:2411.04975), which keeps suffix trees.

    The evidence of a draft is one of 64 numbers: eight times the bits of the matched length, of
    which there are 7 at most, and the eighth that the share at its end lies in, 0 to 7.
    """

    min_match: int = field(
        default=3,
        validator=[validators.instance_of(int), validators.ge(1)],
        metadata={"help": "shortest run of matching tokens that drafts"},
    )
    factor: float = field(
        default=1.0,
        validator=validators.gt(0.0),
        metadata={"help": "most drafted tokens for each matching one"},
    )
    min_share: float = field(
        default=0.5,
        validator=[validators.ge(0.0), validators.le(1.0)],
        metadata={"help": "end the draft where fewer earlier occurrences went on so, 0 to 1"},
    )
    remember: int = field(
        default=65536,
        validator=[validators.instance_of(int), validators.ge(2)],
        metadata={"help": "most tokens to remember, of this and earlier answers"},
    )
    _memory: Memory = field(init=False)
    _n_held: int = field(default=0, init=False)
    """Confirmed tokens of this generation: what it has read, and what was kept from before."""

    def __attrs_post_init__(self) -> None:
        self._memory = Memory(self.remember)

    @hookimpl
    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """Start a new text; what earlier ones taught stays."""
        self._memory.begin_text()
        self._memory.read(prompt[max(0, n_past - OVERLAP) : n_past].tolist())
        self._n_held = n_past

    @hookimpl
    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """Read what was confirmed."""
        if n_past != self._n_held:
            self._memory.begin_text()
        self._memory.read(tokens.tolist())
        self._n_held = n_past + len(tokens)

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Draft | None:
        """The most frequent continuation of the longest match, as far as it can be trusted."""
        if len(tokens) != self._n_held + 1:
            return None
        state, matched = self._memory.elder.longest_match(int(tokens[-1]))
        if matched < self.min_match:
            return None
        drafted, share = self._follow(state, math.ceil(min(n_max, self.factor * matched)))
        if not drafted:
            return None
        return Draft(drafted, evidence=_evidence(matched, share))

    def _follow(self, state: int, n_max: int) -> tuple[list[int], float]:
        """Up to ``n_max`` tokens after ``state``, and the share of occurrences that agree."""
        automaton = self._memory.elder
        drafted: list[int] = []
        share = 1.0
        while len(drafted) < n_max:
            following = automaton.likeliest(state)
            while following is None:
                # The end of what has been read: an earlier, shorter context may go on.
                state, length = automaton.shorter(state)
                if length < self.min_match:
                    return drafted, share
                following = automaton.likeliest(state)
            token, state, part = following
            if share * part < self.min_share:
                break
            share *= part
            drafted.append(token)
        return drafted, share

    @hookimpl
    def report(self) -> list[str]:
        """How much is remembered."""
        elder = self._memory.elder
        return [f"{elder.n_tokens} tokens remembered in {elder.n_states} states"]

    @hookimpl
    def close(self) -> None:
        """Forget everything."""
        self._memory = Memory(self.remember)
        self._n_held = 0


def _evidence(matched: int, share: float) -> int:
    highest = N_BUCKETS - 1
    return N_BUCKETS * min(matched.bit_length(), highest) + min(int(share * N_BUCKETS), highest)
