"""Ctrl-C and a request to terminate end a run in the same way, with different exit statuses."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TerminationRequest(KeyboardInterrupt):
    """SIGTERM has come: whoever cleans up after Ctrl-C cleans up after this."""


@contextlib.contextmanager
def raising_on_sigterm() -> Iterator[None]:
    """SIGTERM raises :class:`TerminationRequest`, unless someone handles it already."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def exit_status_of(interrupt: KeyboardInterrupt) -> int:
    """The status a shell expects of a process that ended so: 128 and the signal's number."""
    is_request = isinstance(interrupt, TerminationRequest)
    return EXIT_TERMINATED if is_request else EXIT_INTERRUPTED


def _raise(_number: int, _frame: Any) -> NoReturn:
    raise TerminationRequest
