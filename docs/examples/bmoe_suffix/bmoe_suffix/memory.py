"""What the source remembers: the latest tokens, in two automata of different age."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from bmoe_suffix.automaton import SuffixAutomaton


@define(eq=False)
class Memory:
    """Remembers at least the last ``capacity / 2`` tokens, and never more than ``capacity``.

    Nothing can be taken out of a suffix automaton. So a younger one begins to read along when the
    elder is half full, and takes its place when it is full: old tokens are forgotten without a
    pause to build anything anew.

    Attributes:
        capacity: most tokens the elder automaton reads.
        elder: the automaton to ask.
    """

    capacity: int
    elder: SuffixAutomaton = field(factory=SuffixAutomaton, init=False)
    _younger: SuffixAutomaton | None = field(default=None, init=False)

    def begin_text(self) -> None:
        """What is read from here on does not follow what was read before."""
        self.elder.begin_text()
        if self._younger is not None:
            self._younger.begin_text()

    def read(self, tokens: Iterable[int]) -> None:
        """Read on."""
        for token in tokens:
            self.elder.read(token)
            if self._younger is not None:
                self._younger.read(token)
            elif 2 * self.elder.n_tokens >= self.capacity:
                self._younger = SuffixAutomaton()
            if self.elder.n_tokens >= self.capacity and self._younger is not None:
                self.elder, self._younger = self._younger, None
