"""Leaving out experts: the rule on literal tables, and that nothing else is changed by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bmoe_core import LlamaModel, LlamaTarget
from bmoe_core.errors import StreamingUnsupportedError
from bmoe_core.models import demo_model
from bmoe_core.moe import dropping
from bmoe_core.moe.dropping import DroppingStream
from bmoe_core.moe.options import StreamOptions
from bmoe_core.moe.stream import ExpertStream
from bmoe_core.moe.table import ExpertTable
from bmoe_core.moe.weights import leave_out_cold
from bmoe_core.routing.records import NO_READS, Reads
from bmoe_core.routing.tap import RouterTap

PROMPT = list(b"def area(width, height):")


@pytest.mark.parametrize(
    ("name", "experts", "weights", "held", "share", "left"),
    [
        # An equal share of four is 0.25.
        (
            "a light one that is not held goes, and the others grow to the same sum",
            [[0, 1, 2, 3]],
            [[0.5, 0.25, 0.15, 0.1]],
            {1, 2},
            1.0,
            ([[0, 1, 2, 0]], [[0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0.0]]),
        ),
        (
            "a light one that is held stays",
            [[0, 1, 2, 3]],
            [[0.5, 0.25, 0.15, 0.1]],
            {2, 3},
            1.0,
            None,
        ),
        (
            "above the threshold nothing goes",
            [[0, 1, 2, 3]],
            [[0.5, 0.25, 0.15, 0.1]],
            set(),
            0.3,
            None,
        ),
        (
            "the threshold is of the position's sum, whatever it is",
            [[0, 1, 2, 3]],
            [[5.0, 2.5, 1.5, 1.0]],
            set(),
            0.5,
            ([[0, 1, 2, 0]], [[5.0 / 0.9, 2.5 / 0.9, 1.5 / 0.9, 0.0]]),
        ),
        (
            "the heaviest stays, also among equals",
            [[4, 5]],
            [[0.5, 0.5]],
            set(),
            1.0,
            None,
        ),
        (
            "what another position has read anyway stays",
            [[0, 1], [1, 2]],
            [[0.8, 0.2], [0.7, 0.3]],
            set(),
            1.0,
            ([[0, 1], [1, 1]], [[0.8, 0.2], [1.0, 0.0]]),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_out(
    name: str,
    experts: list[list[int]],
    weights: list[list[float]],
    held: set[int],
    share: float,
    left: tuple[list[list[int]], list[list[float]]] | None,
) -> None:
    """The rule, case by case; None: nothing is touched."""
    ids, values = np.array(experts, np.int32), np.array(weights, np.float32)
    n = leave_out_cold(ids, values, held.__contains__, share)
    wanted = left or (experts, weights)
    assert n == int((np.array(wanted[1]) == 0).sum())
    np.testing.assert_array_equal(ids, wanted[0])
    if left is None:
        np.testing.assert_array_equal(values, np.array(weights, np.float32))
    else:
        np.testing.assert_allclose(values, wanted[1], rtol=1e-6)
        np.testing.assert_allclose(values.sum(1), np.sum(weights, 1), rtol=1e-6)


def run(path: Path, kind: type[ExpertStream], options: StreamOptions) -> tuple[list[Any], Reads]:
    """Logits of decodes after a prompt, and what they took, at the smallest cache."""
    least = ExpertTable.read(path).minimum_bytes
    with (
        kind.open(path, options, capacity=least) as stream,
        LlamaModel(path, prepare=stream.prepare_model) as model,
    ):
        stream.attach(model)
        tap = RouterTap(stream)
        with LlamaTarget(model, n_ctx=256, n_threads=1, max_draft=3, tap=tap) as target:
            rows = [target.decode(PROMPT, 1).copy()]
            assert tap.take()[0].reads is not None
            stream.prompt_ended()
            rows += [target.decode(PROMPT[:n], n).copy() for n in (1, 2, 4, 1, 1)]
        reads = sum((decode.reads or NO_READS for decode in tap.take()), NO_READS)
    return rows, reads


class TestOnAModel:
    @pytest.mark.parametrize("kind", ["moe", "hybrid-moe", "demo"])
    def test_a_threshold_that_nothing_is_below_changes_no_bit(
        self, model_paths: dict[str, Path], kind: str
    ) -> None:
        """The waiting for the weights is not felt."""
        path = model_paths.get(kind, demo_model())
        expected, _ = run(path, ExpertStream, StreamOptions())
        rows, reads = run(path, DroppingStream, StreamOptions(drop_below=1e-6))
        for row, expected_row in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(row, expected_row)
        table = ExpertTable.read(path)
        n_layers = len(table.layers) - (kind != "moe")
        # 9 positions in each layer, 2 experts each.
        assert reads.n_routed == 9 * n_layers * 2
        assert reads.n_dropped == 0

    @pytest.mark.parametrize("kind", ["moe", "hybrid-moe", "demo"])
    def test_at_full_strength_reads_are_saved_and_the_answer_is_another(
        self, model_paths: dict[str, Path], kind: str
    ) -> None:
        """And the prompt's is not, since nothing is left out of it."""
        path = model_paths.get(kind, demo_model())
        expected, all_reads = run(path, ExpertStream, StreamOptions())
        rows, reads = run(path, DroppingStream, StreamOptions(drop_below=1.0))
        np.testing.assert_array_equal(rows[0], expected[0])
        assert any(not np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))
        assert all(np.isfinite(row).all() for row in rows)
        assert 0 < reads.n_dropped < reads.n_routed / 2 + 1
        assert reads.n_missing < all_reads.n_missing

    def test_a_model_that_shows_no_weights_is_refused(
        self, model_paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their nodes have other names: nothing could be left out, and it was asked for."""
        monkeypatch.setattr(dropping, "WEIGHTS", dropping.re.compile(rb"nothing"))
        with pytest.raises(StreamingUnsupportedError, match="leave --drop-cold-experts out"):
            run(model_paths["moe"], DroppingStream, StreamOptions(drop_below=1.0))
