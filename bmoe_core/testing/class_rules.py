"""The rules that a source's class keeps: its hooks, and its fields as options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from bmoe_core.arguments import parse_source_options
from bmoe_core.errors import BmoeError, SourceError, SourceOptionError
from bmoe_core.hookspecs import PROJECT_NAME, DraftSource
from bmoe_core.options import SourceOption, construct, options_of, values_of
from bmoe_core.testing.fakes import FakeTarget
from bmoe_core.testing.trial import Trial, break_rule

MakeSource = Callable[[], Any]

HOOKS = [name for name in vars(DraftSource) if not name.startswith("_")]


class ClassRules:
    """Tests that need no target; see :class:`bmoe_core.testing.DraftSourceContract`."""

    def test_its_hooks_are_known(self, make_source: MakeSource) -> None:
        """Every hook is one of a draft source's, with arguments of that hook, and is marked."""
        plugin = make_source()
        rule = "its hooks and their arguments are those of bmoe_core.DraftSource"
        Trial(plugin, FakeTarget(), rule)
        for name in HOOKS:
            method = getattr(plugin, name, None)
            if callable(method) and not hasattr(method, f"{PROJECT_NAME}_impl"):
                break_rule(
                    plugin, rule, f"{name} is not marked with bmoe_core.hookimpl: nothing calls it"
                )

    def test_no_argument_has_a_default(self, make_source: MakeSource) -> None:
        """An argument is passed, or is not named: a default would hide which."""
        plugin = make_source()
        for name in HOOKS:
            for parameter in _parameters(plugin, name):
                if parameter.default is not parameter.empty:
                    break_rule(
                        plugin,
                        "no argument of a hook has a default",
                        f"{name} has {parameter.name}={parameter.default!r}: write "
                        f"{parameter.name}, or leave it out where it is not used",
                    )

    def test_options_make_the_round_trip(self, make_source: MakeSource) -> None:
        """Its fields are options with a help text, and come through the command line unchanged."""
        plugin = make_source()
        rule = "its fields are its options, on the command line and in Python"
        options = _options(plugin, rule)
        for option in options:
            if not option.help:
                break_rule(
                    plugin,
                    rule,
                    f"the field {option.field} has no help text: give it "
                    'metadata={"help": "..."}',
                )
        values = values_of(plugin)
        try:
            given = parse_source_options("source", type(plugin), _arguments(plugin, options))
            read = values_of(construct("source", type(plugin), {**values, **given}))
        except BmoeError as error:
            break_rule(plugin, rule, str(error))
        for name, value in values.items():
            if read[name] != value:
                break_rule(
                    plugin,
                    rule,
                    f"the field {name} is {value!r}, and {read[name]!r} when given again as an "
                    "option",
                )

    def test_refused_options_are_explained(self, make_source: MakeSource) -> None:
        """A value is taken, or refused with ValueError or TypeError in a sentence that names it."""
        plugin = make_source()
        rule = "a refused value is a ValueError or TypeError whose message names the option"
        for option in _options(plugin, rule):
            if type(option.default) in (int, float):
                for value in (-1, 0):
                    _try_value(plugin, rule, option, type(option.default)(value))


def _parameters(plugin: object, hook: str) -> list[inspect.Parameter]:
    method = getattr(plugin, hook, None)
    return list(inspect.signature(method).parameters.values()) if callable(method) else []


def _try_value(plugin: object, rule: str, option: SourceOption, value: float) -> None:
    try:
        construct("source", type(plugin), {option.field: value})
    except SourceOptionError as error:
        if option.field not in str(error) and option.flag not in str(error):
            break_rule(plugin, rule, f"{option.field}={value} is refused with: {error}")
    except BmoeError as error:
        break_rule(plugin, rule, f"{option.field}={value}: {error}")


def _options(plugin: object, rule: str) -> tuple[SourceOption, ...]:
    try:
        return options_of("source", type(plugin))
    except SourceError as error:
        break_rule(plugin, rule, str(error))


def _arguments(plugin: object, options: Iterable[SourceOption]) -> list[str]:
    """The command line that sets every option to the value it has; what is None is left out."""
    line: list[str] = []
    for option in options:
        value = values_of(plugin)[option.field]
        if value is None:
            continue
        if option.value.is_switch:
            line.append(option.flag if value else "--no-" + option.flag.removeprefix("--"))
        else:
            line.append(f"{option.flag}={getattr(value, 'value', value)}")
    return line
