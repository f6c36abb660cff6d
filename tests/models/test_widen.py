"""Wider experts cost more and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bmoe_core import LlamaModel, LlamaTarget
from bmoe_core.models.widen import WidenError, main, widen_experts
from bmoe_core.moe.table import ExpertTable
from bmoe_core.routing.tap import RouterTap
from bmoe_core.testing.models import f32_cache, write_hybrid_moe

PROMPT = list(b"wider experts")


@pytest.mark.parametrize("kind", ["moe", "hybrid-moe"])
def test_logits_and_routing_stay(model_paths: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """But for the rounding of longer sums of the same numbers; the experts are as much larger."""
    wide = tmp_path / "wide.gguf"
    widen_experts(model_paths[kind], wide, 5)
    results = []
    for path in (model_paths[kind], wide):
        tap = RouterTap()
        with (
            LlamaModel(path) as model,
            LlamaTarget(
                model, n_ctx=64, n_threads=1, max_draft=7, tap=tap, prepare=f32_cache
            ) as target,
        ):
            rows = target.decode(PROMPT, 8).copy()
        results.append((rows, [decode.layers for decode in tap.take()]))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-4)
    assert results[0][1] == results[1][1]
    sizes = [
        sum(tensor.place.n_bytes for tensor in ExpertTable.read(path).tensors())
        for path in (model_paths[kind], wide)
    ]
    assert sizes[1] == 5 * sizes[0]


def test_what_cannot_be_widened_is_refused(
    model_paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dense model, fused gate and up, and less than what there is; nothing is left behind."""
    fused, out = tmp_path / "fused.gguf", tmp_path / "out.gguf"
    write_hybrid_moe(fused, fused=True)
    for source, times, why in (
        (model_paths["dense"], 2, "is it a dense model"),
        (fused, 2, "ffn_gate_up_exps.weight is not one of gate, up and down"),
        (model_paths["moe"], 0, "not 0"),
    ):
        with pytest.raises(WidenError, match=why):
            widen_experts(source, out, times)
        with pytest.raises(SystemExit, match="2"):
            main([str(source), str(out), "--times", str(times)])
        assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [fused]


def test_the_command_says_what_it_wrote(
    model_paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path and the size."""
    out = tmp_path / "out.gguf"
    main([str(model_paths["moe"]), str(out), "--times", "2"])
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size} bytes\n"
