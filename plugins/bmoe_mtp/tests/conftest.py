"""A random hybrid mixture-of-experts model with a multi-token-prediction head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bmoe_core import LlamaModel, open_source
from bmoe_core.testing.models import write_dense, write_hybrid_moe


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """The model, its head loaded as the source asks for."""
    path = tmp_path_factory.mktemp("mtp") / "hybrid.gguf"
    write_hybrid_moe(path)
    with LlamaModel(path, prepare=open_source("mtp").prepare_model) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def headless_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a head."""
    path = tmp_path_factory.mktemp("mtp") / "dense.gguf"
    write_dense(path)
    return path
