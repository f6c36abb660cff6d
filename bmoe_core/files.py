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


def read_grammar(path: str) -> str:
    """The text of a grammar's file.

    Raises:
        UsageError: the file cannot be read, or is not UTF-8.
    """
    what = f"the grammar file {path}"
    try:
        return _decode(_read_file(path, what), what)
    except PromptFileError as error:
        raise UsageError(str(error)) from None


def _read(path: str | None) -> tuple[bytes, str]:
    if path in (None, STDIN):
        if sys.stdin is None or (path is None and sys.stdin.isatty()):
            raise UsageError("no prompt was given: add -p TEXT or -f FILE, or pipe text in")
        return sys.stdin.buffer.read(), "the text on stdin"
    assert path is not None
    what = f"the prompt file {path}"
    return _read_file(path, what), what


def _read_file(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PromptFileError(f"{what} cannot be read: {reason}") from None


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptFileError(
            f"{what} is not UTF-8: the byte 0x{data[error.start]:02x} at offset {error.start} "
            "cannot be decoded; convert it to UTF-8 first"
        ) from None


class OutputFile:
    """A file that is opened before a run, so as to be refused early, and written later.

    What it held stays until then; a file that was made for it goes again if nothing is written.

    Attributes:
        path: the file, as it was given.
    """

    def __init__(self, path: str) -> None:
        """Open ``path`` for writing.

        Raises:
            OutputFileError: that cannot be done.
        """
        self.path = path
        try:
            self._is_new = not os.path.lexists(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputFileError(f"{path} cannot be written: {reason}") from None
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._begun = False

    def append(self, text: str) -> None:
        """Write ``text`` in UTF-8 at once; the first call drops what the file held.

        Raises:
            OSError: the disk is full, or the like.
        """
        if self._is_regular and not self._begun:
            os.ftruncate(self._descriptor, 0)
        self._begun = True
        # A file name that is no UTF-8 is written in the escapes of JSON.
        data = text.encode("utf-8", errors="backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def is_same_file(self, other: OutputFile) -> bool:
        """Whether both write to one file."""
        return self._is_regular and os.path.sameopenfile(self._descriptor, other._descriptor)

    def write(self, text: str) -> None:
        """Replace the content.

        Raises:
            RunError: the disk is full, or the like.
        """
        try:
            self.append(text)
        except OSError as error:
            raise RunError(
                f"the record could not be written to {self.path}: {error.strerror}; "
                "the answer above is complete"
            ) from error

    def close(self) -> None:
        """Close the file, and remove it where it was made for nothing."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
            if self._is_new and self._is_regular and not self._begun:
                os.unlink(self.path)
