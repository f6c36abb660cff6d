"""llama.cpp's log, kept off the terminal and at hand when something fails."""

from __future__ import annotations

import collections
import ctypes
import logging
from typing import Any

from llama_cpp import llama_cpp

logger = logging.getLogger("bmoe.llama_cpp")
logger.addHandler(logging.NullHandler())

# enum ggml_log_level of ggml.h; 0 (none) and 5 (continue the last message) carry no level.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}

_errors: collections.deque[str] = collections.deque(maxlen=20)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _on_message(level: int, text: bytes, _user_data: Any) -> None:
    message = text.decode("utf-8", errors="replace").strip()
    if not message:
        return
    severity = _LEVELS.get(level, logging.DEBUG)
    if severity >= logging.ERROR:
        _errors.append(message)
    logger.log(severity, "%s", message)


def capture() -> None:
    """Send llama.cpp's log to the logger ``bmoe.llama_cpp`` and forget earlier errors."""
    _errors.clear()
    llama_cpp.llama_log_set(_on_message, ctypes.c_void_p(0))


def first_error() -> str | None:
    """The first error logged since :func:`capture`: the cause; later ones are its echoes."""
    if not _errors:
        return None
    # "function_name: message": the function is of no use to a user.
    _, separator, message = _errors[0].partition(": ")
    return message if separator else _errors[0]
