"""`bmoe chat` on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Terminal:
    """`bmoe chat` on a pseudo-terminal, as a user has it."""

    def __init__(self, *arguments: str, columns: int = 80, home: str | None = None) -> None:
        self.leader, follower = pty.openpty()
        os.set_blocking(self.leader, False)
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        environment.pop("COLUMNS", None)
        if home is not None:
            environment["HOME"] = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bmoe_core", "chat", *arguments],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self.seen = ""

    def expect(self, text: str) -> str:
        """What came up to ``text``, which has to come."""
        self.read_until(lambda seen: text in seen)
        before, _, self.seen = self.seen.partition(text)
        return before

    def read_until(self, holds: Callable[[str], bool]) -> None:
        """Read until what came and was not expected yet fulfils ``holds``."""
        deadline = time.monotonic() + 60
        while not holds(self.seen):
            left = deadline - time.monotonic()
            assert left > 0, f"not in {self.seen!r}"
            ready, _, _ = select.select([self.leader], [], [], left)
            data = b""
            if ready:
                # Reading what nobody writes any more is an error on Linux.
                with contextlib.suppress(OSError):
                    data = os.read(self.leader, 65536)
                assert data, f"the end, and not in {self.seen!r}"
            self.seen += data.decode(errors="replace")

    def send(self, text: str) -> None:
        os.write(self.leader, text.encode())

    def leave(self) -> int:
        """Ctrl-D; the exit status."""
        self.send("\x04")
        return self.close()

    def close(self) -> int:
        status = self.process.wait(60)
        os.close(self.leader)
        return status


@pytest.fixture
def start_chat() -> Iterator[Callable[..., Terminal]]:
    """Starts chats, and ends those that are left."""
    made: list[Terminal] = []

    def start(*arguments: str, **settings: Any) -> Terminal:
        made.append(Terminal(*arguments, **settings))
        return made[-1]

    yield start
    for started in made:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


@pytest.fixture
def terminal(
    start_chat: Callable[..., Terminal], chat_paths: dict[str, Path]
) -> Callable[..., Terminal]:
    """Starts chats with a random model."""

    def start(*arguments: str, kind: str = "dense", **settings: Any) -> Terminal:
        return start_chat("-m", str(chat_paths[kind]), "-t", "1", *arguments, **settings)

    return start
