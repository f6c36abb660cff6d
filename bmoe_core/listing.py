"""``bmoe sources``: what is installed, its options, and what is broken."""

from __future__ import annotations

import inspect
import textwrap

from bmoe_core.errors import SourceError
from bmoe_core.options import SourceOption, describe, options_of
from bmoe_core.sources import InstalledSource, find_source, installed_sources

WIDTH = 79


def describe_sources() -> list[str]:
    """The lines of ``bmoe sources``; a broken source is listed with its reason."""
    installed = installed_sources()
    if not installed:
        return ["no draft source is installed; pip install bmoe-ngram brings prompt lookup"]
    return [line for source in installed for line in _describe(source)]


def _describe(source: InstalledSource) -> list[str]:
    heading = f"{source.name}  ({source.distribution} {source.version})"
    try:
        source_class = find_source(source.name).load()
        options = options_of(source.name, source_class)
    except SourceError as error:
        return [heading, *_indented(f"broken: {error}")]
    summary = (inspect.getdoc(source_class) or "no description").splitlines()[0]
    lines = [heading, *_indented(summary)]
    for option in options:
        lines += _describe_option(option)
    return lines


def _describe_option(option: SourceOption) -> list[str]:
    name = f"{option.flag} {option.value.metavar}".strip()
    return textwrap.wrap(
        f"{name:<24}  {describe(option)}",
        WIDTH,
        initial_indent="    ",
        subsequent_indent=" " * 30,
    )


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
