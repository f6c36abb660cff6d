"""What speculation may still lose: the guarantee."""

from __future__ import annotations

from attrs import define, field

START = 1.25
"""Plain decodes that a generation may lose before it has won any. The first draft of one token can
lose one at most, two decodes of one position each costing no less than one of two."""
SHARE = 0.006
"""Share of the plain time that may be lost on top. With START it comes to 1.5% after 200 tokens,
which leaves something for what is measured wrongly."""
MOST = 32.0
"""Plain decodes of past gains that may be lost again: enough to risk the widest decode."""


@define(eq=False)
class Allowance:
    """An account in plain decodes, which no step is let overdraw.

    Every token pays in its plain decode and a share more; every second of a verify decode, a
    rollback or a draft is paid out. A step is taken only where the account covers the most that it
    can lose. So at any moment the time spent is at most (1 + SHARE) times the plain time, and START
    plain decodes; docs/explanation/the-gate.md says what that rests on.

    Attributes:
        left: plain decodes that may still be lost.
    """

    left: float = field(default=START, init=False)

    def begin(self) -> None:
        """A new generation does not live on what an older one has won."""
        self.left = min(self.left, START)

    def settle(self, n_tokens: int, gain: float) -> None:
        """Book a step.

        Args:
            n_tokens: tokens that it brought.
            gain: plain decodes that it won; lost where negative.
        """
        self.left = min(self.left + SHARE * n_tokens + gain, MOST)
