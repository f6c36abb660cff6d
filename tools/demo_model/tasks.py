"""Copying tasks: text that repeats, edits or quotes something that stands above it.

The generator is ours; what it fills in are functions and paragraphs of the corpus, mostly with
their identifiers replaced, and made-up lists.
"""

from __future__ import annotations

import random

from .snippets import disguise, identifiers, random_name, rename

REPEAT = "Repeat this code unchanged:"
ALSO_REPEAT = (
    "Repeat this code.",
    "Copy this code exactly:",
    "Print the code again, unchanged:",
    "Repeat the following text unchanged:",
    "Write the function again without changes.",
    "Here is the code:",
)
QUOTE = ("Quote this paragraph:", "Repeat this text unchanged:", "Copy the paragraph below:")


def fenced(code: str, language: str = "") -> str:
    return f"```{language}\n{code}```\n"


def repeat_task(code: str, rng: random.Random) -> str:
    """The evaluation's own format half of the time, variations of it otherwise."""
    if rng.random() < 0.5:
        return f"{REPEAT}\n{fenced(code)}\n{fenced(code)}"
    request = rng.choice((REPEAT, *ALSO_REPEAT))
    language = rng.choice(("", "python", "python"))
    gap = rng.choice(("\n", "\n", "\nThe same code again:\n", "\nAnswer:\n"))
    return f"{request}\n{fenced(code, language)}{gap}{fenced(code, language)}"


def rename_task(code: str, rng: random.Random) -> str:
    """An edit: everything is copied but one identifier."""
    names = identifiers(code)
    if not names:
        return repeat_task(code, rng)
    old, new = rng.choice(names), random_name(rng)
    edited = rename(code, {old: new})
    return f"Rename `{old}` to `{new}` in this code:\n{fenced(code)}\n{fenced(edited)}"


def line_task(code: str, rng: random.Random) -> str:
    """Quote one line, found by its beginning."""
    lines = [line.strip() for line in code.splitlines() if len(line.strip()) > 12]
    if not lines:
        return repeat_task(code, rng)
    line = rng.choice(lines)
    start = line[: rng.randint(4, 8)].rstrip()
    return f"{fenced(code)}Quote the line that begins with `{start}`:\n{line}\n"


def quote_task(paragraph: str, rng: random.Random) -> str:
    quoted = "".join(f"> {line}\n" for line in paragraph.splitlines())
    if rng.random() < 0.5:
        return f"{rng.choice(QUOTE)}\n\n{paragraph}\n\n{paragraph}\n"
    return f"{rng.choice(QUOTE)}\n\n{paragraph}\n\n{quoted}"


def list_task(rng: random.Random) -> str:
    """Made-up records, printed twice: as they are, or as a Python literal."""
    rows = [(random_name(rng), rng.randint(0, 999)) for _ in range(rng.randint(3, 12))]
    table = "".join(f"{name} = {value}\n" for name, value in rows)
    if rng.random() < 0.6:
        return f"{REPEAT}\n{fenced(table)}\n{fenced(table)}"
    literal = "".join(f"    {name!r}: {value},\n" for name, value in rows)
    return f"{fenced(table)}As a dictionary:\n{fenced(f'table = {{{chr(10)}{literal}}}{chr(10)}')}"


def make_task(functions: list[str], paragraphs: list[str], rng: random.Random) -> str:
    """One task; two thirds repeat a function, usually under other names."""
    kind = rng.random()
    if kind > 0.95:
        return list_task(rng)
    if kind > 0.87:
        return quote_task(rng.choice(paragraphs), rng)
    code = rng.choice(functions)
    if rng.random() < 0.7:
        code = disguise(code, rng)
    if kind > 0.80:
        return line_task(code, rng)
    if kind > 0.66:
        return rename_task(code, rng)
    return repeat_task(code, rng)
