"""A draft source's options: the fields of its attrs class, as the command line sees them."""

from __future__ import annotations

import enum
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
from attrs import frozen

from bmoe_core.errors import SourceContractError, SourceOptionError, summarize


@frozen
class ValueType:
    """How a text on the command line becomes a value of a field's type.

    Attributes:
        convert: makes the value; raises ValueError or KeyError where it cannot.
        metavar: what stands for the value in help texts.
        expected: what the text has to be, in words.
        is_switch: a bool, given as ``--flag`` or ``--no-flag`` without a text.
    """

    convert: Callable[[str], Any]
    metavar: str
    expected: str
    is_switch: bool = False


_VALUE_TYPES = {
    int: ValueType(int, "N", "a whole number"),
    float: ValueType(float, "X", "a number"),
    str: ValueType(str, "TEXT", "a text"),
    bool: ValueType(bool, "", "", is_switch=True),
}


@frozen
class SourceOption:
    """One option of a source.

    Attributes:
        source: the source's name.
        field: the field of its class.
        value: how the text given on the command line becomes a value.
        default: the value when not given; :data:`attrs.NOTHING` where it must be.
        help: the field's ``metadata["help"]``.
    """

    source: str
    field: str
    value: ValueType
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The long option, such as ``--ngram-min-match``."""
        return switch(self.source) + "-" + self.field.strip("_").replace("_", "-")


def describe(option: SourceOption) -> str:
    """An option's help text with its default."""
    default = option.default
    if default is attrs.NOTHING:
        return f"{option.help} (required)".strip()
    if isinstance(default, enum.Enum):
        default = default.value
    if default in (None, "") or isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return option.help
    return f"{option.help} (default {default})".strip()


def switch(source: str) -> str:
    """The long option that chooses a source by its name."""
    return "--" + source.replace("_", "-")


def options_of(name: str, source_class: type) -> tuple[SourceOption, ...]:
    """The options of a source's class: its attrs fields that the constructor takes.

    Raises:
        SourceContractError: a field cannot be given on a command line.
    """
    if not attrs.has(source_class):
        return ()
    options: dict[str, SourceOption] = {}
    for attribute in attrs.fields(source_class):
        if not attribute.init:
            continue
        option = SourceOption(
            source=name,
            field=attribute.alias or attribute.name,
            value=_value_type(name, attribute.name, _resolved_type(name, source_class, attribute)),
            default=attribute.default,
            help=str(attribute.metadata.get("help", "")),
        )
        if option.flag in options:
            raise SourceContractError(
                f"{name}: the fields {options[option.flag].field} and {option.field} would both be "
                f"{option.flag}"
            )
        options[option.flag] = option
    return tuple(options.values())


def values_of(plugin: object) -> dict[str, Any]:
    """The values that a source's options have, by the option's name; empty for no attrs class."""
    source_class = type(plugin)
    if not attrs.has(source_class):
        return {}
    return {
        attribute.alias or attribute.name: getattr(plugin, attribute.name)
        for attribute in attrs.fields(source_class)
        if attribute.init
    }


def construct(name: str, source_class: type, values: Mapping[str, Any]) -> Any:
    """An instance of a source's class with some of its fields set.

    Raises:
        SourceOptionError: an unknown field, a missing one, or a value the class refuses.
    """
    known = {option.field: option for option in options_of(name, source_class)}
    unknown = [field for field in values if field not in known]
    if unknown:
        has = ", ".join(known) or "none"
        raise SourceOptionError(f"{name} has no option {unknown[0]!r}; its options are: {has}")
    for field, option in known.items():
        if option.default is attrs.NOTHING and field not in values:
            raise SourceOptionError(f"{name} needs {option.flag} {option.value.metavar}")
    try:
        return source_class(**values)
    except (ValueError, TypeError) as error:
        # The first argument alone: validators of attrs append the field, the type and the value.
        raise SourceOptionError(f"{name}: {error.args[0] if error.args else error}") from error
    except (Exception, SystemExit) as error:
        raise SourceContractError(f"{name} cannot be made: {summarize(error)}") from error


def _resolved_type(name: str, source_class: type, attribute: attrs.Attribute[Any]) -> Any:
    """A field's type, string annotations resolved.

    Field by field, not with attrs.resolve_types, which fails over the type of a field that is no
    option and may be known to type checkers alone.
    """
    if not isinstance(attribute.type, str):
        return attribute.type
    owner = next(
        (
            base
            for base in source_class.__mro__
            if attribute.name in vars(base).get("__annotations__", ())
        ),
        source_class,
    )
    holder = types.SimpleNamespace(__annotations__={attribute.name: attribute.type})
    try:
        hints = typing.get_type_hints(holder, vars(sys.modules[owner.__module__]))
    except Exception as error:
        raise SourceContractError(
            f"{name}: the type of the field {attribute.name}, {attribute.type!r}, cannot be "
            f"resolved: {summarize(error)}"
        ) from error
    return hints[attribute.name]


def _value_type(name: str, field: str, annotation: Any) -> ValueType:
    wanted = _without_none(annotation)
    if wanted in _VALUE_TYPES:
        return _VALUE_TYPES[wanted]
    if typing.get_origin(wanted) is Literal:
        return _choice({str(value): value for value in typing.get_args(wanted)})
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return _choice({str(member.value): member for member in wanted})
    if isinstance(wanted, type) and hasattr(wanted, "__fspath__"):
        return ValueType(wanted, "PATH", "a path")
    raise SourceContractError(
        f"{name}: the field {field} has the type {annotation}, which cannot be an option: use int, "
        "float, str, bool, a path, an Enum or a Literal, or init=False for state"
    )


def _choice(values: Mapping[str, Any]) -> ValueType:
    return ValueType(
        values.__getitem__, "{" + ",".join(values) + "}", f"one of {', '.join(values)}"
    )


def _without_none(annotation: Any) -> Any:
    """``T`` for ``T | None``, anything else as it is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        others = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        if len(others) == 1:
            return others[0]
    return annotation
