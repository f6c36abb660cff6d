"""A suffix automaton that counts what followed every run of tokens it has read.

A suffix automaton is the smallest machine that reads every run of tokens of a text, and can be
built as the text comes, in amortised constant time a token (Blumer et al. 1985, "The smallest
automaton recognizing the subwords of a text"). Each state stands for runs that end at the same
places. The suffix link of a state leads to that of the longest shorter run that also ends
elsewhere, so the links from the end of the text are its contexts, longest first.
"""

from __future__ import annotations

from attrs import define, field

ROOT = 0
NONE = -1
MAX_COUNTED = 32
"""Contexts a token whose counts are brought up to date, the longest first.

A text of one repeated token has as many contexts as tokens; counting in all of them would take
quadratic time. Prose has about ten.
"""


@define(eq=False)
class SuffixAutomaton:
    """Reads texts token by token.

    Attributes:
        n_tokens: tokens read so far, over all texts.
    """

    n_tokens: int = field(default=0, init=False)
    _next: list[dict[int, int]] = field(factory=lambda: [{}], init=False)
    _length: list[int] = field(factory=lambda: [0], init=False)
    _link: list[int] = field(factory=lambda: [NONE], init=False)
    _count: list[int] = field(factory=lambda: [0], init=False)
    """How often the runs of a state have occurred."""
    _followed: list[int] = field(factory=lambda: [0], init=False)
    """How often something came after the runs of a state: less than ``_count`` at a text's end."""
    _likeliest: list[int] = field(factory=lambda: [NONE], init=False)
    """The token that most often followed the runs of a state, of equal ones the latest."""
    _end: int = field(default=ROOT, init=False)
    """The state of the whole text that is being read."""

    @property
    def n_states(self) -> int:
        """States, at most two for each token."""
        return len(self._next)

    def begin_text(self) -> None:
        """What is read from here on does not follow what was read before."""
        self._end = ROOT

    def read(self, token: int) -> None:
        """Read the next token of the text."""
        before = self._end
        if token in self._next[before]:
            # An earlier text went on in the same way.
            self._end = self._only(before, token)
        else:
            self._end = self._grow(before, token)
        self._count_in_contexts(before, token)
        self.n_tokens += 1

    def longest_match(self, token: int) -> tuple[int, int]:
        """The longest run before the end that, followed by ``token``, has been read before.

        Returns:
            its state and its length, ``token`` included; the root and 0 where ``token`` is new.
        """
        state = self._end
        while state != NONE:
            following = self._next[state].get(token)
            if following is not None:
                return following, self._length[state] + 1
            state = self._link[state]
        return ROOT, 0

    def likeliest(self, state: int) -> tuple[int, int, float] | None:
        """What most often followed the runs of ``state``; None where nothing has.

        Returns:
            the token, the state after it, and its share of all that has followed, 0 to 1.
        """
        token = self._likeliest[state]
        if token == NONE:
            return None
        following = self._next[state][token]
        # Of contexts that were not counted in, what has followed is known and how often is not.
        share = self._count[following] / max(1, self._followed[state])
        return token, following, min(1.0, share)

    def shorter(self, state: int) -> tuple[int, int]:
        """The next shorter context that also occurred elsewhere: its state and length."""
        state = self._link[state]
        return state, self._length[state]

    def _grow(self, before: int, token: int) -> int:
        """A state for the whole text with ``token`` at its end."""
        new = self._add({}, self._length[before] + 1, ROOT)
        state = before
        while state != NONE and token not in self._next[state]:
            self._next[state][token] = new
            if self._likeliest[state] == NONE:
                self._likeliest[state] = token
            state = self._link[state]
        if state != NONE:
            self._link[new] = self._only(state, token)
        return new

    def _only(self, state: int, token: int) -> int:
        """The state after ``token`` that stands for no run longer than ``state``'s and ``token``.

        Where the one there stands for longer runs too, which have not occurred now, it is split.
        """
        following = self._next[state][token]
        length = self._length[state] + 1
        if self._length[following] == length:
            return following
        split = self._add(dict(self._next[following]), length, self._link[following])
        self._count[split] = self._count[following]
        self._followed[split] = self._followed[following]
        self._likeliest[split] = self._likeliest[following]
        self._link[following] = split
        while state != NONE and self._next[state].get(token) == following:
            self._next[state][token] = split
            state = self._link[state]
        return split

    def _add(self, following: dict[int, int], length: int, link: int) -> int:
        self._next.append(following)
        self._length.append(length)
        self._link.append(link)
        self._count.append(0)
        self._followed.append(0)
        self._likeliest.append(NONE)
        return len(self._next) - 1

    def _count_in_contexts(self, state: int, token: int) -> None:
        """Count ``token`` as what followed ``state`` and its shorter contexts."""
        counted = NONE
        for _ in range(MAX_COUNTED):
            if state == NONE:
                break
            following = self._next[state][token]
            # Neighbouring contexts may lead to one state: it has occurred once.
            if following != counted:
                self._count[following] += 1
                counted = following
            self._followed[state] += 1
            rival = self._next[state][self._likeliest[state]]
            if self._count[following] >= self._count[rival]:
                self._likeliest[state] = token
            state = self._link[state]
