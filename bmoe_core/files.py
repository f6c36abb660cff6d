"""The files a user names: where the prompt comes from, where records go."""

from __future__ import annotations

import sys
from pathlib import Path

from bmoe_core.errors import EmptyPromptError, OutputFileError, PromptFileError, UsageError

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
    except OSError as error:
        raise PromptFileError(f"the prompt file {path} cannot be read: {error.strerror}") from None


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptFileError(
            f"{what} is not UTF-8: the byte 0x{data[error.start]:02x} at offset {error.start} "
            "cannot be decoded; convert it to UTF-8 first"
        ) from None


def check_writable(path: str) -> None:
    """Refuse a file that cannot be written, before a run that would end with it.

    Raises:
        OutputFileError: it cannot be opened for writing.
    """
    existed = Path(path).exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise OutputFileError(f"{path} cannot be written: {error.strerror}") from None
    if not existed:
        Path(path).unlink()
