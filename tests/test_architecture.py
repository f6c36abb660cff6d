"""Who may import whom, read from the imports themselves; and which names are public."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bmoe_core

ROOT = Path(bmoe_core.__file__).parent
PLUGINS = ROOT.parent / "plugins"

ALLOWED: dict[str, set[str]] = {
    "__init__": {
        *("errors", "gate", "hookspecs", "loop", "sampling", "sources", "steps", "target"),
        "telemetry",
    },
    "__main__": {"cli"},
    "answer": {"answer_text", "errors", "loop", "sampling", "sources", "steps", "telemetry"},
    "answer_options": {"errors", "files", "sampling"},
    "answer_text": {"errors"},
    "accounts": {"csv_log", "footprint", "routing", "steps", "telemetry"},
    "adapters": {"errors", "guard", "hookspecs", "sources"},
    "arguments": {
        *("answer_options", "errors", "gate", "limits", "loop", "moe.options", "options"),
        "sources",
    },
    "available": set(),
    "bench": {
        *("arguments", "errors", "files", "gate", "guard", "hookspecs", "interrupts", "limits"),
        *("closing", "loop", "models"),
        *("options", "routing", "sources", "steps", "target", "telemetry"),
    },
    "chat": {"answer", "errors", "generator", "target"},
    "chat_command": {
        *("answer_options", "arguments", "chat", "console", "errors", "gate", "generator"),
        *("interrupts", "sampling", "sources", "steps"),
    },
    "cli": {
        *("accounts", "answer_options", "arguments", "bench", "chat", "chat_command", "console"),
        *("csv_log", "errors", "files", "footprint", "gate", "generator", "interrupts", "listing"),
        *("models", "moe", "new_source", "routing", "sampling", "sources", "steps", "target"),
        "telemetry",
    },
    "closing": set(),
    "console": {"errors"},
    "csv_log": {"files", "footprint", "routing", "steps", "telemetry"},
    "errors": set(),
    "files": {"errors"},
    "footprint": set(),
    "gate": {"policy", "steps"},
    "generator": {
        *("answer", "answer_text", "errors", "loop", "policy", "sampling", "sources", "steps"),
        *("closing", "target"),
    },
    "guard": {"errors", "steps"},
    "hookspecs": {"steps", "target.protocol"},
    "interrupts": set(),
    "limits": set(),
    "listing": {"errors", "options", "sources"},
    "loop": {"errors", "guard", "meter", "policy", "steps"},
    "meter": set(),
    "models": set(),
    "moe": {"closing", "errors", "routing"},
    "moe.options": {"errors", "moe.table", "routing.cache"},
    "new_source": {"errors", "sources"},
    "options": {"errors"},
    "requirements": set(),
    "policy": {"steps"},
    "routing": {"available", "errors"},
    "sampling": {"errors"},
    "sources": {"errors", "hookspecs", "options", "requirements", "target.protocol"},
    "steps": {"meter"},
    "target": {"closing", "errors", "limits", "sampling"},
    "target.protocol": set(),
    "telemetry": {"footprint", "meter", "steps"},
    "testing": {
        *("arguments", "errors", "gate", "guard", "hookspecs", "loop", "options", "sources"),
        *("policy", "steps", "target.protocol"),
    },
}
"""Imports that happen when the program runs. A package may import its own modules."""

LLAMA_CPP = {
    *("adapters", "bench.peers", "chat", "moe.stream", "target", "routing.ggml", "routing.tap"),
}
"""The only ones that may import llama_cpp."""


def modules() -> dict[str, Path]:
    """Every module of the core by its dotted name below bmoe_core."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")
    }


def runtime_imports(path: Path) -> set[str]:
    """Modules that a file imports outside ``if TYPE_CHECKING``, by their absolute names."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return found


def owner(module: str) -> str:
    """The row of the table that a module falls under."""
    return module if module in ALLOWED else module.split(".")[0]


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_follow_the_table(module: str) -> None:
    """A module imports what its row allows, and nothing else of the core."""
    imported = {
        name.removeprefix("bmoe_core.")
        for name in runtime_imports(modules()[module])
        if name.startswith("bmoe_core.")
    }
    row = owner(module)
    foreign = {name for name in imported if name.split(".")[0] != row.split(".")[0]}
    forbidden = {name for name in foreign if not ({name, name.split(".")[0]} & ALLOWED[row])}
    assert not forbidden


@pytest.mark.parametrize("module", sorted(modules()))
def test_llama_cpp_stays_behind_the_target(module: str) -> None:
    """Everything else is tested without it."""
    uses = any(name.split(".")[0] == "llama_cpp" for name in runtime_imports(modules()[module]))
    assert not uses or {module, module.split(".")[0]} & LLAMA_CPP


def test_plugins_use_public_names_only() -> None:
    """What a third party has to live with, the shipped plugins live with."""
    paths = [path for path in PLUGINS.rglob("bmoe_*/**/*.py") if "tests" not in path.parts]
    assert len(paths) >= 4
    for path in paths:
        imported = {name for name in runtime_imports(path) if name.startswith("bmoe_core")}
        assert imported <= {"bmoe_core"}


def test_importing_bmoe_core_does_not_load_llama_cpp() -> None:
    """Listing sources and testing a plugin stay quick."""
    code = "import bmoe_core, sys; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names() -> None:
    """A name that comes or goes is a decision: change this list with it."""
    assert sorted(bmoe_core.__all__) == [
        "Answer",
        "BmoeError",
        "ContextError",
        "Conversation",
        "CostGate",
        "DecodeError",
        "Draft",
        "DraftSource",
        "EmptyPromptError",
        "FinishReason",
        "Generation",
        "Generator",
        "LlamaModel",
        "LlamaTarget",
        "ModelError",
        "ModelFileError",
        "OpenSource",
        "OutputFileError",
        "PromptError",
        "PromptFileError",
        "PromptTooLongError",
        "RollbackError",
        "RollbackUnsupportedError",
        "RunError",
        "Sampler",
        "Sampling",
        "SourceConflictError",
        "SourceContractError",
        "SourceError",
        "SourceFailedError",
        "SourceFailure",
        "SourceImportError",
        "SourceOptionError",
        "SourceUnavailable",
        "SourceVersionError",
        "Step",
        "Summary",
        "Tally",
        "Target",
        "UnknownSourceError",
        "UsageError",
        "argmax",
        "generate",
        "hookimpl",
        "installed_sources",
        "open_source",
        "report_lines",
    ]
    for name in bmoe_core.__all__:
        assert getattr(bmoe_core, name) is not None


def test_the_error_tree_is_drawn_as_it_is() -> None:
    """Every error class is in the drawing at the top of errors.py, below its base."""
    from bmoe_core import errors

    drawing = (errors.__doc__ or "").splitlines()
    depth: dict[str, int] = {}
    for line in drawing:
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if words and words[0].isidentifier() and hasattr(errors, words[0]):
            depth[words[0]] = line.index(words[0])
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.BmoeError)
    }
    assert set(depth) == set(classes)
    names = list(depth)
    for i, name in enumerate(names):
        above = [other for other in names[:i] if depth[other] < depth[name]]
        if above:
            assert classes[name].__bases__[0] is classes[above[-1]]
