"""The generator of large models, on small ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from bmoe_core import LlamaModel, LlamaTarget
from bmoe_core.routing.tap import RouterTap
from bmoe_core.testing.large import Shape, main, write_large_moe


@pytest.mark.parametrize("weights", ["F16", "Q8_0", "Q4_0"])
def test_every_kind_of_weights_runs(tmp_path: Path, weights: str) -> None:
    """llama.cpp loads it, tokens are routed apart, and the logits are finite."""
    path = tmp_path / "m.gguf"
    write_large_moe(path, Shape(64, 64, n_expert=16, n_used=2, weights=weights), n_layer=2)
    tap = RouterTap()
    with (
        LlamaModel(path) as model,
        LlamaTarget(model, n_ctx=64, n_threads=1, tap=tap) as target,
    ):
        rows = target.decode(list(b"abcdefghijklmnop"), 1)
        assert np.isfinite(rows).all()
        assert rows.std() > 0.1
    (decode,) = tap.take()
    # Of the last layer the last position alone is computed.
    first, last = decode.layers
    assert len(first.experts) > 8
    assert len(last.experts) == 2


def test_the_size_is_the_one_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many layers as come nearest to it."""
    path = tmp_path / "m.gguf"
    main([str(path), "--gib", "0.004", "--embd", "128", "--ff", "128", "--experts", "32"])
    # 32 experts of 3 matrices of 128 x 128 weights of 4.5 bits make 884,736 bytes a layer.
    assert capsys.readouterr().out == f"{path}: 5 layers, {path.stat().st_size} bytes\n"
    tensors = gguf.GGUFReader(path).tensors
    assert sum(t.n_bytes for t in tensors if "_exps" in t.name) == 5 * 884_736


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["--used", "9", "--experts", "8"], "--used"), (["--embd", "100"], "multiples of 64")],
)
def test_extents_that_do_not_go_together(tmp_path: Path, arguments: list[str], why: str) -> None:
    """One line, status 2."""
    command = [sys.executable, "-m", "bmoe_core.testing.large", str(tmp_path / "m"), "--gib", "1"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
