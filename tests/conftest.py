"""Fixtures shared by the core's tests: tiny models, and draft sources that look installed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bmoe_core import LlamaModel
from bmoe_core.testing.models import WRITERS, write_chat_copy


@pytest.fixture(scope="session")
def model_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random GGUF file of each kind."""
    folder = tmp_path_factory.mktemp("models")
    paths = {kind: folder / f"{kind}.gguf" for kind in WRITERS}
    for kind, path in paths.items():
        WRITERS[kind](path)
    return paths


@pytest.fixture(scope="session")
def chat_paths(model_paths: dict[str, Path]) -> dict[str, Path]:
    """The same files with a chat template, for the kinds that are chatted with."""
    paths = {}
    for kind in ("dense", "sliding-window", "hybrid-moe"):
        paths[kind] = model_paths[kind].with_name(f"{kind}-chat.gguf")
        write_chat_copy(model_paths[kind], paths[kind])
    return paths


@pytest.fixture(scope="session")
def load(model_paths: dict[str, Path]) -> Iterator[Callable[[str], LlamaModel]]:
    """Loads the model of a kind, once."""
    loaded: dict[str, LlamaModel] = {}

    def get(kind: str) -> LlamaModel:
        if kind not in loaded:
            loaded[kind] = LlamaModel(model_paths[kind])
        return loaded[kind]

    yield get
    for model in loaded.values():
        model.close()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a module and its entry point look like an installed distribution."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def add(
        name: str,
        code: str,
        *,
        distribution: str | None = None,
        attribute: str = "S",
        requires: str = "bmoe-core",
    ) -> None:
        distribution = distribution or f"dist-{name}"
        # A module of its own for each test: Python imports a name once a process.
        module = f"{distribution.replace('-', '_')}_{abs(hash((str(tmp_path), name))):x}"
        (folder / f"{module}.py").write_text(textwrap.dedent(code))
        info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
            f"Requires-Dist: {requires}\n"
        )
        (info / "entry_points.txt").write_text(
            f"[bmoe.draft_sources]\n{name} = {module}:{attribute}\n"
        )

    return add
