"""Functions cut out of source files, and the same functions under other names."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import random
import textwrap
import tokenize
import warnings

SYLLABLES = (
    "ab ac al an ar at ba be bi bo ca ce co da de di do ed el en er fa fi fo ga ge go ha he id in "
    "is it ka ke la le li lo ma me mi mo na ne no of on or pa pe po qu ra re ri ro sa se si so ta "
    "te ti to un up us va ve vi wa we wi xo ya yo za zu"
).split()
KEPT = frozenset(dir(builtins)) | frozenset(keyword.kwlist) | {"self", "cls"}


def functions(source: str) -> list[str]:
    """Every function and method of a file, dedented, ending in one newline."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    lines = source.splitlines(keepends=True)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            found.append(textwrap.dedent(text).rstrip() + "\n")
    return found


def random_name(rng: random.Random) -> str:
    """A pronounceable name nobody has written: it can only be copied, not remembered."""
    name = "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4)))
    style = rng.random()
    if style < 0.25:
        return name + "_" + "".join(rng.choices(SYLLABLES, k=rng.randint(1, 2)))
    if style < 0.35:
        return name.capitalize()
    if style < 0.42:
        return name + str(rng.randint(0, 99))
    return name


def _names(code: str) -> list[tokenize.TokenInfo]:
    """The renamable identifiers of a snippet, in order; none when it does not tokenize."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return []
    return [t for t in tokens if t.type == tokenize.NAME and t.string not in KEPT]


def rename(code: str, table: dict[str, str]) -> str:
    """Replace whole identifiers, leaving strings and comments as they are."""
    lines = code.splitlines(keepends=True)
    for token in reversed(_names(code)):
        if token.string in table:
            row, start = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:start] + table[token.string] + line[token.end[1] :]
    return "".join(lines)


def identifiers(code: str) -> list[str]:
    return sorted({token.string for token in _names(code)})


def disguise(code: str, rng: random.Random) -> str:
    """The snippet with a random part of its identifiers renamed."""
    names = identifiers(code)
    chosen = rng.sample(names, k=rng.randint(0, len(names)))
    return rename(code, {name: random_name(rng) for name in chosen})
