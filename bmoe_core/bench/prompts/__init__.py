"""The prompts that come with the bench, and those that a user names."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from attrs import frozen

from bmoe_core.errors import UsageError
from bmoe_core.files import read_prompt

BUILT_IN = ("prose", "copy", "code-edit", "json", "chat", "numbers")
"""Text that hardly repeats, that copies, that changes a copy, that keeps a form; and rows of
numbers, in which a lookup keeps finding matches that are wrong."""


@frozen
class Prompt:
    """A text to go on from.

    Attributes:
        name: a built-in prompt's name, or the file's without its suffix.
        text: the text.
    """

    name: str
    text: str


def find_prompt(name: str) -> Prompt:
    """A built-in prompt by its name, or else a UTF-8 file.

    Raises:
        UsageError: it is neither.
        PromptError: the file cannot be used.
    """
    if name in BUILT_IN:
        return Prompt(name, files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8"))
    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"there is no prompt {name!r}: give a file, or one of {', '.join(BUILT_IN)}"
        )
    return Prompt(path.stem, read_prompt(None, name))
