"""Help for testing draft sources: a suite to inherit, targets without weights, random models.

:class:`DraftSourceContract` needs pytest, and ``bmoe_core.testing.models``, which writes GGUF
files, needs gguf: both come with the extra ``bmoe-core[testing]``. The rest needs bmoe alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmoe_core.testing.consistency import plain_gaps
from bmoe_core.testing.fakes import (
    FakeTarget,
    NearTieTarget,
    RefusingTarget,
    ScriptedSource,
    cyclic,
    hashed,
)

if TYPE_CHECKING:
    from bmoe_core.testing.contract import DraftSourceContract

__all__ = [
    "DraftSourceContract",
    "FakeTarget",
    "NearTieTarget",
    "RefusingTarget",
    "ScriptedSource",
    "cyclic",
    "hashed",
    "plain_gaps",
]


def __getattr__(name: str) -> Any:
    # pytest is imported for the suite alone: the fakes serve without it.
    if name != "DraftSourceContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from bmoe_core.testing.contract import DraftSourceContract
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ImportError(
            "DraftSourceContract needs pytest: pip install 'bmoe-core[testing]'"
        ) from error
    return DraftSourceContract
