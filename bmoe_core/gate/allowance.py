"""What speculation may still lose: the guarantee."""

from __future__ import annotations

from attrs import define, field

START = 3.0
"""Plain decodes that a generation may lose before it has won any: a few drafts' worth."""
REFILL = 0.002
"""Plain decodes that each token adds to that."""
SHARE = 0.01
"""Share of the plain time that may be lost, where that is more: from 375 tokens on. After 200 what
may be lost comes to 1.7%, less what the gate holds back for what is measured wrongly."""
REFILL_ENDS = START / (SHARE - REFILL)
"""Tokens from which on each adds SHARE."""
MOST = 32.0
"""Plain decodes of past gains that may be lost again: enough to risk the widest decode."""
STAKE = 0.2
"""Share of what all generations together have left that one may lose, if that is more than START:
up to 6.4 plain decodes."""


@define(eq=False)
class Allowance:
    """An account in plain decodes, which no step is let overdraw.

    Every token pays in its plain decode and a little more; every second of a verify decode, a
    rollback or a draft is paid out. A step is taken only where the account covers the most that it
    can lose. So after n tokens of the first generation the time spent is at most the plain time and
    what was granted, in plain decodes max(START + REFILL n, SHARE n); docs/explanation/the-gate.md
    says what that rests on.

    All generations together have an account too, which grants START once and SHARE of every token.
    A generation draws on what is left there, and what it wins goes there. So over N tokens of any
    number of generations the time spent is at most the plain time and START + SHARE N.

    Attributes:
        left: plain decodes that may still be lost.
    """

    left: float = field(default=START, init=False)
    _saved: float = field(default=START, init=False)
    """Plain decodes that all generations together may still lose."""
    _n_tokens: int = field(default=0, init=False)

    def begin(self) -> None:
        """A new generation: it may lose as much as the first one, or a share of what was won."""
        self.left = min(self._saved, max(START, STAKE * self._saved))
        self._n_tokens = 0

    def settle(self, n_tokens: int, gain: float) -> None:
        """Book a step.

        Args:
            n_tokens: tokens that it brought.
            gain: plain decodes that it won; lost where negative.
        """
        n_before, self._n_tokens = self._n_tokens, self._n_tokens + n_tokens
        share = REFILL if n_before < REFILL_ENDS else SHARE
        self.left = min(self.left + share * n_tokens + gain, MOST)
        self._saved = min(self._saved + SHARE * n_tokens + gain, MOST)
