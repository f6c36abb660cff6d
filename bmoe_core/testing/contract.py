"""What every draft source has to keep, as a suite that a plugin's own suite inherits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bmoe_core.errors import UsageError
from bmoe_core.testing.class_rules import ClassRules, MakeSource
from bmoe_core.testing.draft_rules import DraftRules, MakeTarget
from bmoe_core.testing.fakes import FakeTarget

_EXPECTED_TO_FAIL = "_bmoe_expected_to_fail"


class DraftSourceContract(ClassRules, DraftRules):
    """Inherit this in a suite, and give it the fixture ``make_source``.

    ::

        class TestContract(DraftSourceContract):
            @pytest.fixture
            def make_source(self):
                return EchoSource

    An inherited test may be replaced as an expected failure alone: mark the method that replaces it
    with ``pytest.mark.xfail(reason=...)``. The inherited test still runs, and has to fail.
    """

    @pytest.fixture
    def make_source(self) -> MakeSource:
        """A callable that makes a new source, such as its class; every suite has its own."""
        raise UsageError(
            f"{type(self).__name__} needs a fixture make_source that returns the source's class, "
            "or a function that makes a source"
        )

    @pytest.fixture
    def make_target(self) -> MakeTarget:
        """A callable that makes a new target; override it for a source that needs a real one.

        The targets are closed by whoever makes them, after the test.
        """
        return lambda: FakeTarget(n_ctx=4608, n_vocab=32)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let an inherited test be replaced as an expected failure alone.

        Raises:
            TypeError: another replacement.
        """
        super().__init_subclass__(**arguments)
        for name in _contract_tests():
            inherited, replacement = getattr(DraftSourceContract, name), getattr(cls, name)
            if replacement is inherited or hasattr(replacement, _EXPECTED_TO_FAIL):
                continue
            reasons = [
                mark.kwargs.get("reason")
                for mark in getattr(replacement, "pytestmark", [])
                if mark.name == "xfail"
            ]
            if not any(reasons):
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a test of the contract: mark it with "
                    'pytest.mark.xfail(reason="why this source may break the rule"), or remove it'
                )
            setattr(cls, name, _expected_to_fail(inherited, str(next(filter(None, reasons)))))


def _contract_tests() -> list[str]:
    return [name for name in dir(DraftSourceContract) if name.startswith("test_")]


def _expected_to_fail(inherited: Callable[..., None], reason: str) -> Callable[..., None]:
    """An inherited test, which now has to fail."""

    def expected(self: Any, **fixtures: Any) -> None:
        inherited(self, **fixtures)

    setattr(expected, _EXPECTED_TO_FAIL, True)
    expected.__name__ = inherited.__name__
    expected.__doc__ = inherited.__doc__
    expected.__signature__ = inspect.signature(inherited)  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.xfail(reason=reason, strict=True)(expected)
    return marked
