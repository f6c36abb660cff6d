"""From attrs fields to command-line options."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Literal, Optional

import attrs
import pytest

from bmoe_core import SourceContractError
from bmoe_core.options import construct, describe, options_of, switch


class Mode(enum.Enum):
    """An option with two values."""

    FAST = "fast"
    SAFE = "safe"


@attrs.define(eq=False)
class Everything:
    """One field of each type that can be an option."""

    count: int = attrs.field(default=3, metadata={"help": "how many"})
    share: float = 0.5
    label: str = "x"
    verbose: bool = False
    path: Path = Path("here")
    maybe: int | None = None
    perhaps: Optional[float] = None  # noqa: UP045 - the older spelling has to work too
    mode: Mode = Mode.SAFE
    kind: Literal["a", "b"] = "a"
    _hidden: int = 1
    lambda_: float = 0.1
    state: list[int] = attrs.field(factory=list, init=False)


OPTIONS = {option.field: option for option in options_of("all_of_it", Everything)}


def test_state_is_no_option() -> None:
    """init=False fields are left out."""
    assert "state" not in OPTIONS
    assert len(OPTIONS) == 11


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("count", "5", 5),
        ("share", "0.25", 0.25),
        ("label", "text", "text"),
        ("path", "/a/b", Path("/a/b")),
        ("maybe", "4", 4),
        ("perhaps", "0.1", 0.1),
        ("mode", "fast", Mode.FAST),
        ("kind", "b", "b"),
    ],
)
def test_text_becomes_a_value_of_the_field_s_type(field: str, text: str, value: Any) -> None:
    """String annotations are resolved first."""
    assert OPTIONS[field].value.convert(text) == value


def test_flags_join_source_and_field_with_hyphens() -> None:
    """Underscores become hyphens; a private field uses the constructor's name for it."""
    assert OPTIONS["count"].flag == "--all-of-it-count"
    assert OPTIONS["lambda_"].flag == "--all-of-it-lambda"
    assert OPTIONS["hidden"].flag == "--all-of-it-hidden"
    assert switch("all_of_it") == "--all-of-it"


def test_help_says_the_default() -> None:
    """From metadata, with the default behind it."""
    assert describe(OPTIONS["count"]) == "how many (default 3)"
    assert (OPTIONS["count"].value.metavar, OPTIONS["mode"].value.metavar) == ("N", "{fast,safe}")


def test_values_reach_the_instance() -> None:
    """construct sets fields by the constructor's names."""
    source = construct("all", Everything, {"count": 9, "hidden": 2, "lambda_": 0.5})
    assert (source.count, source._hidden, source.lambda_) == (9, 2, 0.5)


def test_a_type_that_cannot_be_an_option_is_refused() -> None:
    """The field and its type are named, and what to do."""

    @attrs.define(eq=False)
    class Bad:
        table: dict[str, int] = attrs.field(factory=dict)

    with pytest.raises(SourceContractError, match=r"the field table has the type dict\[str, int\]"):
        options_of("bad", Bad)


@pytest.mark.parametrize("annotation", ["int or", "typing.Nothing", "NotDefined"])
def test_an_annotation_that_cannot_be_resolved_is_refused(annotation: str) -> None:
    """Whatever is wrong with it; but only where it is an option's."""
    option = attrs.make_class("Bad", {"x": attrs.field(type=annotation, default=1)})  # type: ignore[call-overload]
    with pytest.raises(SourceContractError, match="the type of the field x"):
        options_of("bad", option)
    state = attrs.make_class("Good", {"x": attrs.field(type=annotation, init=False)})  # type: ignore[call-overload]
    assert options_of("good", state) == ()


def test_two_fields_with_one_flag_are_refused() -> None:
    """x and x_ would both be --bad-x."""

    @attrs.define(eq=False)
    class Bad:
        x: int = 1
        x_: int = 2

    with pytest.raises(SourceContractError, match="fields x and x_ would both be --bad-x"):
        options_of("bad", Bad)


def test_a_default_is_shown_as_it_would_be_given() -> None:
    """The text of a choice, and nothing for none or empty."""
    assert describe(OPTIONS["mode"]) == "(default safe)"
    assert describe(OPTIONS["maybe"]) == ""


def test_a_plain_class_has_no_options() -> None:
    """attrs is asked for by options only."""
    assert options_of("plain", object) == ()
