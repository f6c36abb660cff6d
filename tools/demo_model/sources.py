"""Where the text comes from: the standard library's sources and the Python documentation.

Both are under the PSF licence (documentation examples: 0BSD). Files, not samples, are assigned to
training or validation, by a hash of their name, before anything is cut out of them.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VALIDATION_SHARE = 0.04
# Tables of characters and of help text: long, regular, and nothing to learn from.
SKIPPED = ("site-packages", "__pycache__", "encodings", "pydoc_data", "ensurepip", "lib2to3/tests")


@dataclass(frozen=True)
class Document:
    """One file of the corpus. `kind` is `library`, `tests` or `docs`."""

    name: str
    kind: str
    text: str

    @property
    def is_validation(self) -> bool:
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32 < VALIDATION_SHARE


def _is_prose_or_code(text: str) -> bool:
    """Refuse tables of data: mostly digits, or not ASCII."""
    if len(text) < 200:
        return False
    digits = sum(map(str.isdigit, text))
    foreign = sum(not character.isascii() for character in text)
    return digits < 0.15 * len(text) and foreign < 0.02 * len(text)


def _read(root: Path, pattern: str, prefix: str) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob(pattern)):
        name = path.relative_to(root).as_posix()
        if any(part in name for part in SKIPPED):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        text = text.replace("\r\n", "\n").replace("\f", "")
        if _is_prose_or_code(text):
            yield f"{prefix}/{name}", text


def standard_library() -> Iterator[Document]:
    """Every usable source file of the running interpreter's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for name, text in _read(root, "*.py", "lib"):
        parts = name.split("/")
        is_test = any(part in ("test", "tests", "idle_test") for part in parts)
        yield Document(name, "tests" if is_test else "library", text)


def documentation(root: Path) -> Iterator[Document]:
    """The reStructuredText sources, as installed by Debian's python3.11-doc (`_sources`)."""
    for name, text in _read(root, "*.rst*", "docs"):
        yield Document(name, "docs", text)


def all_documents(docs: Path) -> list[Document]:
    """Sorted by name, so that the corpus does not depend on the file system."""
    return sorted([*standard_library(), *documentation(docs)], key=lambda document: document.name)
