"""Whether the bmoe-core that is installed is one that a plugin was written for.

A plugin declares the versions it works with as every Python distribution does, by its dependency
on bmoe-core. pip checks that at installation; a bmoe-core exchanged afterwards, or one installed
with ``--no-deps``, is found out here.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from importlib.metadata import version

CORE = "bmoe-core"

Release = tuple[int, ...]

_COMPARISONS: dict[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?$")
_CLAUSE = re.compile(r"(~=|[=!<>]=|[<>])\s*v?(\d+(?:\.\d+)*)(\.\*)?")


def unmet_requirement(requires: Iterable[str]) -> str | None:
    """The version of bmoe-core that is asked for, where the installed one is another.

    Args:
        requires: the requirements of a distribution, in the form of its metadata's Requires-Dist.

    Returns:
        what is asked for, such as ``>=0.3``, or None: nothing, or nothing that is not met.

    Requirements with a marker are passed over, and of a version the release numbers alone are
    compared: a pre-release counts as the release that it comes before.
    """
    for requirement in requires:
        parsed = _REQUIREMENT.match(requirement)
        if parsed is None or parsed[3] or _normalized(parsed[1]) != CORE:
            continue
        asked = parsed[2].strip()
        installed = _release(version(CORE))
        if not all(_is_met(clause, installed) for clause in asked.split(",") if clause.strip()):
            return asked
    return None


def _is_met(clause: str, installed: Release) -> bool:
    """Whether a release meets a clause such as ``>=0.1``; one of another form counts as met."""
    parsed = _CLAUSE.match(clause.strip())
    if parsed is None:
        return True
    comparison, wanted, is_prefix = parsed[1], _release(parsed[2]), bool(parsed[3])
    if comparison == "~=":
        # PEP 440: at least this, with the same release but for its last number.
        return installed >= wanted and installed[: len(wanted) - 1] == wanted[:-1]
    length = len(wanted) if is_prefix else max(len(installed), len(wanted))
    return _COMPARISONS[comparison](_padded(installed, length), _padded(wanted, length))


def _release(text: str) -> Release:
    numbers = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", text)
    return tuple(int(number) for number in numbers[1].split(".")) if numbers else ()


def _padded(release: Release, length: int) -> Release:
    return (*release, *(0,) * (length - len(release)))[:length]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
