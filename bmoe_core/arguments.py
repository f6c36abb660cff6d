"""The command line: core options, one switch a draft source, and the chosen source's options."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from attrs import frozen

from bmoe_core.answer_options import add_answer_options
from bmoe_core.errors import (
    SourceContractError,
    SourceError,
    SourceOptionError,
    UsageError,
)
from bmoe_core.gate import MAX_WIDTH as AUTO_WIDTH
from bmoe_core.limits import MAX_THREADS
from bmoe_core.loop import DEFAULT_WIDTH, MAX_WIDTH
from bmoe_core.moe.options import add_options as add_streaming_options
from bmoe_core.options import SourceOption, describe, options_of, switch
from bmoe_core.sources import InstalledSource, choose_source, find_source, installed_sources

MAX_N_CTX = 2**24
MAX_CACHE_MB = 2**24
AUTO = "auto"
GATE_OFF, GATE_COST = "off", "cost"
DEFAULT_GATE = GATE_OFF
DEFAULT_DRAFT: dict[str, int | str] = {GATE_OFF: DEFAULT_WIDTH, GATE_COST: AUTO}
"""The width where none is given, for each gate."""

DESCRIPTION = (
    "Run a GGUF model with speculative decoding: a draft source proposes tokens, the model "
    "verifies them, and the answer is the model's own. `bmoe sources` lists the draft sources; "
    "`bmoe new-source` writes the beginnings of one."
)


@frozen
class Arguments:
    """A parsed command line.

    Attributes:
        source: the chosen draft source, or None for plain decoding.
        source_options: the fields of the source that were given on the command line.
        options: every core option, by its attribute name; ``draft`` is the width as a number.
        width_is_auto: the width was not asked for by its number.
    """

    source: str | None
    source_options: dict[str, Any]
    options: argparse.Namespace
    width_is_auto: bool = False


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing a usage dump and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong, with where the options are listed."""
        raise UsageError(f"{message} ({self.prog} --help lists the options)")


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a command line; prints and exits for ``--help`` and ``--version``.

    Raises:
        UsageError: it cannot be understood.
        SourceError: the draft source asked for, or its options, cannot be used.
    """
    installed = installed_sources()
    if not {"-h", "--help"}.isdisjoint(argv):
        _print_help(installed)
    parser = _core_parser(installed)
    chosen, _ = parser.parse_known_args(argv)
    source = choose_source(chosen.draft_source)
    options = _load_options(source) if source is not None else ()
    _add_source_options(parser, source, options)
    parsed, unknown = parser.parse_known_args(argv)
    if unknown:
        raise _unknown_argument(unknown[0], source, installed, parser)
    if parsed.draft is None:
        parsed.draft = DEFAULT_DRAFT[parsed.gate]
    width_is_auto = parsed.draft == AUTO
    if width_is_auto:
        if parsed.gate == GATE_OFF:
            raise UsageError(
                "--draft auto leaves the width to the gate, and --gate off has none: "
                f"use --gate cost, or give --draft a number from 1 to {MAX_WIDTH}"
            )
        parsed.draft = AUTO_WIDTH
    return Arguments(
        source=source,
        source_options=_given(options, parsed),
        options=parsed,
        width_is_auto=width_is_auto,
    )


def parse_source_options(
    source: str, source_class: type, arguments: Sequence[str]
) -> dict[str, Any]:
    """The fields that a source's own options give, as where it is the chosen one.

    Args:
        source: its name, which its options begin with.
        source_class: its class.
        arguments: options of this source, and nothing else.

    Raises:
        UsageError: they cannot be understood.
        SourceContractError: a field cannot be an option.
    """
    options = options_of(source, source_class)
    parser = _core_parser(())
    _add_source_options(parser, source, options)
    parsed = parser.parse_args(arguments)
    return _given(options, parsed)


def _given(options: Iterable[SourceOption], parsed: argparse.Namespace) -> dict[str, Any]:
    return {
        option.field: getattr(parsed, option.flag)
        for option in options
        if hasattr(parsed, option.flag)
    }


def _bounded(low: int, high: int | None = None) -> Any:
    """An argparse type: a whole number from ``low`` to ``high``."""

    def convert(text: str) -> int:
        span = f"a whole number of at least {low}" if high is None else f"{low} to {high}"
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"takes {span}, not {text!r}") from None
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"takes {span}, not {value}")
        return value

    return convert


def _cache_mb(text: str) -> int | str:
    if text == AUTO:
        return text
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CACHE_MB:
        raise argparse.ArgumentTypeError(f"takes {AUTO} or 1 to {MAX_CACHE_MB}, not {text!r}")
    return int(text)


def _width(text: str) -> int | str:
    if text == AUTO:
        return text
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WIDTH:
        raise argparse.ArgumentTypeError(f"takes 1 to {MAX_WIDTH} or {AUTO}, not {text!r}")
    return int(text)


def _core_parser(installed: Iterable[InstalledSource]) -> Parser:
    parser = Parser(
        prog="bmoe",
        description=DESCRIPTION,
        usage="bmoe [-m MODEL] [-p TEXT | -f FILE] [--draft-source NAME] [options]\n"
        "       bmoe chat [-m MODEL] [--system TEXT] [options]\n"
        "       bmoe sources\n"
        "       bmoe bench [options]\n"
        "       bmoe new-source NAME",
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=79),
    )
    model = parser.add_argument_group("model and prompt")
    model.add_argument(
        "-m", "--model", metavar="MODEL", help="the model, a GGUF file (default: the demo model)"
    )
    prompt = model.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument(
        "-f", "--file", metavar="FILE", help="read the prompt from a file (default: from stdin)"
    )
    model.add_argument(
        "-n",
        "--n-predict",
        metavar="N",
        type=_bounded(1),
        default=256,
        help="most tokens to generate (default 256)",
    )
    model.add_argument(
        "-c",
        "--ctx-size",
        metavar="N_CTX",
        type=_bounded(2, MAX_N_CTX),
        help="positions of context (default: the model's, 4096 at most)",
    )
    model.add_argument(
        "-t",
        "--threads",
        metavar="THREADS",
        type=_bounded(1, MAX_THREADS),
        help="threads to decode with (default: physical cores)",
    )
    add_answer_options(parser)
    drafting = parser.add_argument_group("drafting")
    drafting.add_argument(
        "--draft-source",
        metavar="NAME",
        action="append",
        default=[],
        help="who drafts: an installed source, or none for plain decoding (default none)",
    )
    drafting.add_argument(
        "--draft",
        metavar="N|auto",
        type=_width,
        help=f"most tokens a draft, 1 to {MAX_WIDTH}; auto: as the gate sees fit, up to "
        f"{AUTO_WIDTH} (default {DEFAULT_WIDTH} without the gate, auto with it)",
    )
    drafting.add_argument(
        "--gate",
        choices=(GATE_COST, GATE_OFF),
        default=DEFAULT_GATE,
        help="cost: draft where and as wide as it pays; off: verify every draft (default "
        f"{DEFAULT_GATE})",
    )
    drafting.add_argument(
        "--strict", action="store_true", help="end the run where the draft source fails"
    )
    add_streaming_options(parser, _bounded)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", metavar="PATH", help="write the run's record as JSON; - for stdout"
    )
    output.add_argument(
        "--csv", metavar="PATH", help="write a CSV file with a row a token as the run goes"
    )
    output.add_argument(
        "--routing",
        action="store_true",
        help="read which experts a mixture-of-experts model is routed to; slows the run",
    )
    output.add_argument(
        "--cache-mb",
        metavar="N|auto",
        type=_cache_mb,
        help="with --moe-stream: memory for experts in MiB; auto: what is available. Without: "
        "model such a cache, which implies --routing",
    )
    output.add_argument("--quiet", action="store_true", help="no progress and no report")
    output.add_argument("-h", "--help", action="store_true", help="show this and exit")
    output.add_argument(
        "--version", action="version", version=f"bmoe {version('bmoe-core')}", help="show and exit"
    )
    for name in _switched(installed, set(parser._option_string_actions)):
        drafting.add_argument(
            switch(name),
            dest="draft_source",
            action="append_const",
            const=name,
            help=f"short for --draft-source {name}".replace("%", "%%"),
        )
    return parser


def _switched(installed: Iterable[InstalledSource], core: set[str]) -> list[str]:
    """The sources that get a switch of their own; the others are reached by --draft-source.

    None is given for a switch that bmoe has, that two sources would share, or that begins as the
    options of another source do.
    """
    names = sorted({source.name for source in installed})
    switches = [switch(name) for name in names]
    return [
        name
        for name in names
        if switch(name) not in core
        and switches.count(switch(name)) == 1
        and not any(switch(name).startswith(f"{other}-") for other in switches)
    ]


def _load_options(source: str) -> tuple[SourceOption, ...]:
    return options_of(source, find_source(source).load())


def _add_source_options(
    parser: Parser, source: str | None, options: Sequence[SourceOption], title: str | None = None
) -> None:
    if not options:
        return
    group = parser.add_argument_group(title or f"draft source {source}")
    for option in options:
        if option.flag in parser._option_string_actions:
            raise SourceContractError(
                f"the field {option.field} of the draft source {source} would be the option "
                f"{option.flag}, which bmoe has already: the source has to rename it"
            )
        details: dict[str, Any] = {
            "dest": option.flag,
            "default": argparse.SUPPRESS,
            "help": describe(option).replace("%", "%%"),
        }
        if option.value.is_switch:
            details["action"] = argparse.BooleanOptionalAction
        else:
            details.update(type=_converter(option), metavar=option.value.metavar)
        group.add_argument(option.flag, **details)


def _converter(option: SourceOption) -> Any:
    def convert(text: str) -> Any:
        try:
            return option.value.convert(text)
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(
                f"takes {option.value.expected}, not {text!r}"
            ) from None

    return convert


def _unknown_argument(
    argument: str, source: str | None, installed: Iterable[InstalledSource], parser: Parser
) -> UsageError | SourceOptionError:
    flag = argument.split("=")[0]
    # The longest name first: the options of `a-b` begin like those of `a`.
    others = {other.name for other in installed} - {source}
    for name in sorted(others, key=len, reverse=True):
        if flag.startswith(switch(name) + "-"):
            chosen = f"{source} was chosen" if source else "no draft source was chosen"
            return SourceOptionError(
                f"{flag} is an option of the draft source {name}, and {chosen}: "
                f"add --draft-source {name}, or leave the option out"
            )
    near = difflib.get_close_matches(flag, list(parser._option_string_actions), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"unknown argument {argument!r}{hint} (bmoe --help lists the options)")


def _print_help(installed: Sequence[InstalledSource]) -> NoReturn:
    parser = _core_parser(installed)
    broken = []
    for source in installed:
        title = f"draft source {source.name} ({source.distribution} {source.version})"
        try:
            _add_source_options(parser, source.name, _load_options(source.name), title)
        except SourceError as error:
            broken.append(f"broken: {error}")
    parser.epilog = "\n".join(broken)
    parser.print_help()
    raise SystemExit(0)
