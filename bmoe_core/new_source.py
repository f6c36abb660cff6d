"""``bmoe new-source NAME``: a folder with a draft source, its packaging and its suite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from string import Template

from bmoe_core.errors import OutputFileError, SourceConflictError, UsageError
from bmoe_core.sources import NO_SOURCE, installed_sources

USAGE = """usage: bmoe new-source NAME

Writes the folder bmoe-NAME here: a draft source that works, to be changed into yours, with its
packaging and a suite that holds it to the contract. NAME is what --draft-source will take.
"""

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")

_PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "bmoe-$name"
version = "0.1.0"
description = "The draft source $name of bmoe"
requires-python = ">=3.10"
dependencies = ["attrs>=23.1", "bmoe-core>=$core"]

[project.optional-dependencies]
dev = ["bmoe-core[testing]"]

[project.entry-points."bmoe.draft_sources"]
$name = "$module:$source_class"

[tool.setuptools]
py-modules = ["$module"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
addopts = ["--import-mode=importlib"]
"""

_SOURCE = '''"""A draft source as small as can be: it expects the last token to come again."""

from attrs import define, field

from bmoe_core import hookimpl


@define(eq=False)
class $source_class:
    """Drafts the last token again, where it has just come twice."""

    times: int = field(default=2, metadata={"help": "how often it is drafted"})

    @hookimpl
    def draft(self, tokens, n_max):
        """Decline unless the last two tokens are equal."""
        if len(tokens) < 2 or tokens[-1] != tokens[-2]:
            return None
        return [int(tokens[-1])] * min(self.times, n_max)
'''

_SUITE = '''"""The contract that every draft source keeps, and what this one drafts."""

import numpy as np
import pytest
from $module import $source_class

from bmoe_core.testing import DraftSourceContract


class TestContract(DraftSourceContract):
    @pytest.fixture
    def make_source(self):
        return $source_class


def test_a_token_that_came_twice_is_drafted_again():
    assert $source_class(times=3).draft(np.array([7, 4, 4]), 8) == [4, 4, 4]


def test_no_more_than_there_is_room_for():
    assert $source_class(times=3).draft(np.array([7, 4, 4]), 2) == [4, 4]


def test_anything_else_is_declined():
    assert $source_class().draft(np.array([4, 7]), 8) is None
'''

_NEXT = """$folder is a draft source. Next:

    cd $folder
    pip install -e '.[dev]'
    pytest
    bmoe --draft-source $name -p "mask = 0x0000000000"

and then change what draft returns, in $module.py.
"""


def write_new_source(arguments: Sequence[str]) -> str:
    """Write the folder of a new draft source into the current one; what to do next, in words.

    Raises:
        UsageError: not exactly one name, or one that cannot be a source's.
        SourceConflictError: an installed source has the name.
        OutputFileError: the folder is there already, or cannot be written.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        return USAGE
    if len(arguments) != 1:
        raise UsageError("give the new source one name, as in: bmoe new-source echo")
    (name,) = arguments
    _check_name(name)
    folder = Path(f"bmoe-{name}")
    try:
        folder.mkdir()
        for path, text in new_source_files(name).items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise OutputFileError(
            f"{folder} is there already: choose another name, or move it away"
        ) from None
    except OSError as error:
        raise OutputFileError(f"{folder} cannot be written: {error.strerror}") from None
    return Template(_NEXT).substitute(name=name, folder=folder, module=_module(name))


def new_source_files(name: str) -> dict[str, str]:
    """The text of each file of a new source's folder, by its path in it."""
    names = {
        "name": name,
        "module": _module(name),
        "source_class": "".join(word.capitalize() for word in re.split("[_-]", name)) + "Source",
        "core": ".".join(version("bmoe-core").split(".")[:2]),
    }
    templates = {
        "pyproject.toml": _PYPROJECT,
        f"{_module(name)}.py": _SOURCE,
        "tests/test_contract.py": _SUITE,
    }
    return {path: Template(text).substitute(names) for path, text in templates.items()}


def _module(name: str) -> str:
    return f"bmoe_{name.replace('-', '_')}"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name == NO_SOURCE:
        raise UsageError(
            f"a draft source cannot be called {name!r}: use small letters and digits, and - or _ "
            f"between words; {NO_SOURCE} stands for plain decoding"
        )
    for source in installed_sources():
        if source.name == name:
            raise SourceConflictError(
                f"{name} is the draft source of {source.distribution}, which is installed: choose "
                "another name"
            )
