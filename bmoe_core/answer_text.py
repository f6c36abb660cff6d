"""The text of an answer as its tokens come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Callable, Sequence

from bmoe_core.errors import UsageError

Detokenize = Callable[[Sequence[int]], bytes]


class AnswerText:
    """Turns the tokens of one answer into text, and finds where a stop string ends it.

    A character that is cut between two tokens is held back until it is whole, and so is text that
    may be the beginning of a stop string. Stop strings are searched for in the UTF-8 bytes, where
    they may begin and end within tokens.

    Attributes:
        text: the text that has been given out.
    """

    def __init__(self, detokenize: Detokenize, stops: Sequence[str] = ()) -> None:
        """Take no tokens yet.

        Args:
            detokenize: the bytes of some tokens; the end may cut a UTF-8 sequence.
            stops: the texts that end the answer, none of them in it.

        Raises:
            UsageError: a stop string is empty, or no Unicode text.
        """
        self.text = ""
        self._detokenize = detokenize
        self._stops = [_encoded(stop) for stop in stops]
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begins: list[int] = []
        """At which byte of the answer each token begins; kept where there are stop strings."""
        self._n_bytes = 0
        self._waiting = bytearray()
        """The last bytes of the answer, not decoded yet: a stop string may begin in them."""
        self._n_cut = 0
        """Bytes from the beginning of the stop string on."""

    @property
    def finds_stops(self) -> bool:
        """Whether there are stop strings, so that :meth:`add` is a stop rule."""
        return bool(self._stops)

    def add(self, tokens: Sequence[int]) -> int | None:
        """Take the next tokens; what follows a stop string is dropped.

        Returns:
            Where a stop string has come: how many tokens of the answer begin before it, of which
            the last may reach into it. None while there is none. As the stop rule of
            :func:`bmoe_core.generate` answers.
        """
        if not self._stops:
            self._waiting += self._detokenize(tokens)
            return None
        for token in tokens:
            piece = self._detokenize([token])
            self._begins.append(self._n_bytes)
            self._n_bytes += len(piece)
            self._waiting += piece
            start = self._find_stop(len(piece))
            if start is not None:
                self._n_cut = len(self._waiting) - start
                del self._waiting[start:]
                return bisect.bisect_left(self._begins, self._n_bytes - self._n_cut)
        return None

    def take(self) -> str:
        """The text that has become certain since the last call."""
        n_held = 0 if self._n_cut else self._n_held_back()
        ready = bytes(self._waiting[: len(self._waiting) - n_held])
        del self._waiting[: len(ready)]
        return self._give_out(self._decoder.decode(ready))

    def finish(self, n_tokens: int) -> str:
        """The rest of the text of an answer of ``n_tokens``: no more come.

        An interrupt may have come between :meth:`add` and the confirmation of what it was given.
        """
        if n_tokens < len(self._begins):
            n_beyond = self._n_bytes - self._begins[n_tokens]
            # After a stop string less is waiting than its tokens' bytes.
            del self._waiting[max(len(self._waiting) + self._n_cut - n_beyond, 0) :]
        rest = bytes(self._waiting)
        self._waiting.clear()
        return self._give_out(self._decoder.decode(rest, final=True))

    def _find_stop(self, n_new: int) -> int | None:
        """Where in ``_waiting`` the first stop string begins that ends in its last ``n_new``."""
        first = max(len(self._waiting) - n_new - self._longest + 1, 0)
        found = [self._waiting.find(stop, first) for stop in self._stops]
        return min((start for start in found if start >= 0), default=None)

    def _n_held_back(self) -> int:
        """Bytes at the end of ``_waiting`` that may be the beginning of a stop string."""
        for n in range(min(self._longest - 1, len(self._waiting)), 0, -1):
            tail = self._waiting[len(self._waiting) - n :]
            if any(stop.startswith(tail) for stop in self._stops):
                return n
        return 0

    def _give_out(self, piece: str) -> str:
        self.text += piece
        return piece


def _encoded(stop: str) -> bytes:
    if not stop:
        raise UsageError("a stop string is empty, which would end every answer before it begins")
    try:
        return stop.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the stop string {stop!r} is not Unicode text") from None
