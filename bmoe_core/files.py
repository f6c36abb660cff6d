"""The files a user names: where the prompt comes from, where records go."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from bmoe_core.errors import (
    EmptyPromptError,
    OutputFileError,
    PromptFileError,
    RunError,
    UsageError,
)

STDIN = "-"


def read_prompt(text: str | None, path: str | None) -> str:
    """The prompt: ``text``, or the content of the file, or of stdin.

    Args:
        text: the prompt itself, or None.
        path: a UTF-8 file, ``-`` for stdin, or None.

    Raises:
        UsageError: neither is given and stdin is a terminal.
        PromptFileError: the file cannot be read, or is not UTF-8.
        EmptyPromptError: there is no text.
    """
    if text is None:
        text = _decode(*_read(path))
    elif any(0xDC80 <= ord(character) <= 0xDCFF for character in text):
        # What Python makes of command-line bytes that are not in the terminal's encoding.
        raise PromptFileError("the prompt given to -p is not UTF-8 text")
    if not text:
        raise EmptyPromptError("the prompt is empty: give some text to go on from")
    return text


def _read(path: str | None) -> tuple[bytes, str]:
    if path in (None, STDIN):
        if sys.stdin is None or (path is None and sys.stdin.isatty()):
            raise UsageError("no prompt was given: add -p TEXT or -f FILE, or pipe text in")
        return sys.stdin.buffer.read(), "the text on stdin"
    assert path is not None
    try:
        return Path(path).read_bytes(), f"the prompt file {path}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PromptFileError(f"the prompt file {path} cannot be read: {reason}") from None


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptFileError(
            f"{what} is not UTF-8: the byte 0x{data[error.start]:02x} at offset {error.start} "
            "cannot be decoded; convert it to UTF-8 first"
        ) from None


class OutputFile:
    """A file that is opened before a run, so as to be refused early, and written after it.

    What it held stays until then; a file that was made for it goes again if nothing is written.
    """

    def __init__(self, path: str) -> None:
        """Open ``path`` for writing.

        Raises:
            OutputFileError: that cannot be done.
        """
        self._path = path
        try:
            self._is_new = not os.path.lexists(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputFileError(f"{path} cannot be written: {reason}") from None
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def write(self, text: str) -> None:
        """Replace the content, in UTF-8, and close the file.

        Raises:
            RunError: the disk is full, or the like.
        """
        try:
            if self._is_regular:
                os.ftruncate(self._descriptor, 0)
            # A file name that is no UTF-8 is written in the escapes of JSON.
            with os.fdopen(
                self._descriptor, "w", encoding="utf-8", errors="backslashreplace"
            ) as file:
                self._is_new = False
                file.write(text)
        except OSError as error:
            raise RunError(
                f"the record could not be written to {self._path}: {error.strerror}; "
                "the answer above is complete"
            ) from error

    def discard(self) -> None:
        """Remove the file where it was made for nothing."""
        if self._is_new and self._is_regular:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
                os.unlink(self._path)
