"""The terminal: the streamed answer, and everything that is not the answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from typing import TextIO

from bmoe_core.errors import RunError

REDRAW_S = 0.1


class Progress:
    """One line on a terminal that says what is being waited for; a pipe sees nothing of it."""

    def __init__(self, stream: TextIO | None, *, enabled: bool) -> None:
        self._stream = stream
        self._enabled = enabled and stream is not None and stream.isatty()
        self._drawn_at = 0.0

    def show(self, text: str) -> None:
        """Replace the line, not more often than is seen."""
        now = time.monotonic()
        if self._stream is None or not self._enabled or now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + text[:width])
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._stream is not None and self._drawn_at:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn_at = 0.0


class TextStream:
    """Writes text as it comes, and remembers how much.

    Attributes:
        n_written: characters so far.
    """

    def __init__(self, output: TextIO | None) -> None:
        """Write to ``output``; where that is None, nothing is written."""
        self._output = output
        self._last = ""
        self.n_written = 0

    def write(self, piece: str) -> None:
        """Write some text at once.

        Raises:
            BrokenPipeError: whoever read it is gone.
            RunError: it cannot be written, for another reason.
        """
        self.n_written += len(piece)
        if self._output is None or not piece:
            return
        self._last = piece[-1]
        try:
            self._output.write(piece)
            self._output.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self._output = None
            abandon_stdout()
            raise RunError(f"the answer could not be written: {error.strerror}") from error

    def finish(self) -> None:
        """On a terminal leave a blank line after the text."""
        if self._output is not None and self._output.isatty():
            self._output.write("\n" if self._last == "\n" else "\n\n")
            self._output.flush()


def say(text: str) -> None:
    """A line for the user that is not the answer."""
    # print() would write to stdout where there is no stderr.
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def tolerate_encodings() -> None:
    """Let a terminal that cannot show a character show a question mark instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def abandon_stdout() -> None:
    """Drop what is still to be written to stdout; Python would fail at it again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
