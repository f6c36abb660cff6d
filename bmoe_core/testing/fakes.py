"""Targets without weights, and a source that drafts what it is told."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field

from bmoe_core.errors import DecodeError, RollbackError
from bmoe_core.hookspecs import hookimpl


def hashed(order: int = 2, n_vocab: int = 16, seed: int = 0) -> Callable[[Sequence[int]], int]:
    """A rule for :class:`FakeTarget`: the next token depends on the last ``order`` tokens.

    It looks random and falls into a cycle sooner or later, as greedy decoding does.
    """

    def next_token(tokens: Sequence[int]) -> int:
        key = ",".join(str(token) for token in [seed, *tokens[-order:]])
        return zlib.crc32(key.encode()) % n_vocab

    return next_token


def cyclic(period: int = 5) -> Callable[[Sequence[int]], int]:
    """A rule for :class:`FakeTarget`: the tokens below ``period`` in turn, over and over."""
    return lambda tokens: (tokens[-1] + 1) % period


@define(eq=False)
class FakeTarget:
    """A target whose choice after any tokens is ``rule(tokens)``.

    It keeps the rules of :class:`bmoe_core.Target` strictly: a decode past the context, or a
    rollback that a real memory would not survive, raises.

    Attributes:
        rule: gives the next token for a history of token ids.
        n_ctx: positions it holds.
        n_vocab: token ids are below this.
        n_batch: most tokens a decode.
        max_rollback: longest draft that can be taken back.
        eog: tokens that end a generation.
        recurrent: roll back as a recurrent memory does: once after each decode, and never over all
            of its tokens.
        held: the tokens in its memory, in order.
        n_decoded: tokens of each decode so far.
    """

    rule: Callable[[Sequence[int]], int] = field(factory=hashed)
    n_ctx: int = 128
    n_vocab: int = 16
    n_batch: int = 32
    max_rollback: int = 8
    eog: frozenset[int] = frozenset()
    recurrent: bool = False
    held: list[int] = field(factory=list, init=False)
    n_decoded: list[int] = field(factory=list, init=False)
    model: Any = field(default=None, init=False)
    ctx: Any = field(default=None, init=False)
    eval_callback: Any = field(default=None, init=False)
    n_pending: int = field(default=0, init=False)
    n_replayed: int = field(default=0, init=False)
    _depth: int = field(default=0, init=False)

    @property
    def n_past(self) -> int:
        """Tokens in the memory."""
        return len(self.held)

    def decode(self, tokens: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """One row for each of the last ``n_rows`` tokens, 1.0 at the rule's choice, 0.0 elsewhere.

        Raises:
            DecodeError: more tokens than there is room for, or none.
        """
        if not 0 < len(tokens) <= self.n_batch or not 0 <= n_rows <= len(tokens):
            raise DecodeError(f"{len(tokens)} tokens, {n_rows} rows, n_batch {self.n_batch}")
        if self.n_past + len(tokens) > self.n_ctx:
            raise DecodeError(f"{self.n_past} + {len(tokens)} positions in {self.n_ctx}")
        if not all(0 <= token < self.n_vocab for token in tokens):
            raise DecodeError(f"a token outside the vocabulary in {list(tokens)}")
        rows = np.zeros((n_rows, self.n_vocab), np.float32)
        for i, token in enumerate(tokens):
            self.held.append(int(token))
            row = i - (len(tokens) - n_rows)
            if row >= 0:
                self.choose(rows[row], n_decoded=len(tokens))
        self.n_decoded.append(len(tokens))
        self._depth = len(tokens) - 1
        return rows

    def choose(self, row: npt.NDArray[np.float32], n_decoded: int) -> None:
        """Write the logits that follow the held tokens into ``row``.

        Args:
            row: zeros, of shape (n_vocab,).
            n_decoded: how many tokens the decode has.
        """
        row[self.rule(self.held)] = 1.0

    def roll_back(self, n_past: int) -> None:
        """Drop the tokens from ``n_past`` on.

        Raises:
            RollbackError: a recurrent memory could not.
        """
        depth = self.n_past - n_past
        if depth == 0:
            return
        if not 0 <= n_past < self.n_past:
            raise RollbackError(f"no position {n_past} to go back to: {self.n_past} are held")
        if self.recurrent and depth > self._depth:
            raise RollbackError(f"{depth} positions back, {self._depth} possible")
        self._depth = 0
        del self.held[n_past:]

    def clear(self) -> None:
        """Drop every token."""
        self.held.clear()

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """One token a character, by its code point modulo the vocabulary."""
        return [ord(character) % self.n_vocab for character in text]

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """One letter a token, from ``a`` on."""
        return bytes(ord("a") + token % 26 for token in tokens)

    def is_eog(self, token: int) -> bool:
        """Whether ``token`` is among ``eog``."""
        return token in self.eog


@define(eq=False)
class NearTieTarget(FakeTarget):
    """A target whose second choice is close, and which a wide decode prefers now and then.

    So do quantised weights: the width of a batch changes the last bits of a logit. What is decoded
    with drafts may differ from a plain answer, and never by a token further than ``tie`` below the
    plain choice.

    Attributes:
        tie: how far the second choice lies below the first in a plain decode.
    """

    tie: float = 0.01

    def choose(self, row: npt.NDArray[np.float32], n_decoded: int) -> None:
        """The rule's choice and its neighbour, the other way round at every third position."""
        first = self.rule(self.held)
        second = (first + 1) % self.n_vocab
        if n_decoded > 1 and self.n_past % 3 == 0:
            first, second = second, first
        row[first], row[second] = 1.0, 1.0 - self.tie


@define(eq=False)
class RefusingTarget(FakeTarget):
    """A target that promises to take drafts back, and then refuses."""

    def roll_back(self, n_past: int) -> None:
        """Refuse, unless there is nothing to drop.

        Raises:
            RollbackError: there is.
        """
        if n_past != self.n_past:
            raise RollbackError(f"no way back from position {self.n_past} to {n_past}")


@define(eq=False)
class ScriptedSource:
    """Drafts what ``script`` returns, and keeps what it was shown.

    Attributes:
        script: called with the history and the room; its result is the draft.
        observed: the calls of ``observe``: tokens, and the position of the first.
        asked: the calls of ``draft``: the history's length, and the room.
    """

    script: Callable[[npt.NDArray[np.int32], int], Any] = field(default=lambda tokens, n_max: None)
    name: str = field(default="scripted", init=False)
    observed: list[tuple[list[int], int]] = field(factory=list, init=False)
    asked: list[tuple[int, int]] = field(factory=list, init=False)
    begun: list[tuple[list[int], int]] = field(factory=list, init=False)

    @hookimpl
    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """Keep the prompt."""
        self.begun.append((prompt.tolist(), n_past))

    @hookimpl
    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """Keep the tokens."""
        self.observed.append((tokens.tolist(), n_past))

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Any:
        """Whatever the script says."""
        self.asked.append((len(tokens), n_max))
        return self.script(tokens, n_max)
