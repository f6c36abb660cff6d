"""Steps that are taken like one that was looked at."""

from __future__ import annotations

from attrs import define, field

from bmoe_core.gate.chances import is_alike
from bmoe_core.steps import Draft

MOST_REPEATED = 16
"""Steps in a row that are taken like the last two that were looked at, which were alike: booked,
and not learned from. To weigh a draft takes ten times as long."""


@define(eq=False)
class Repeats:
    """Tells whether a step may be taken like the one before.

    Attributes:
        n_left: how many further steps may be.
        is_one: whether the step under way is such a step.
        decided: tokens that the target decided on in them: a draft that is followed goes on there.
    """

    n_left: int = field(default=0, init=False)
    is_one: bool = field(default=False, init=False)
    decided: list[int] = field(factory=list, init=False)
    _won: float = field(default=0.0, init=False)
    """Plain decodes won since the last look."""

    def take(self, draft: Draft, looked_at: Draft) -> bool:
        """Whether the step is one of them, its draft being like the one that was looked at."""
        self.is_one = self.n_left > 0 and is_alike(draft, looked_at)
        self.n_left = self.n_left - 1 if self.is_one else 0
        return self.is_one

    def settle(self, gain: float, n_pending: int) -> None:
        """Book a step; they end where they have lost, or left tokens to be decoded anew.

        Args:
            gain: plain decodes that it won.
            n_pending: tokens that it left.
        """
        self._won = self._won + gain if self.is_one else gain
        if self._won < 0.0 or n_pending:
            self.n_left = 0
