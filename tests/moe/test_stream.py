"""Streamed and resident models compute the same, to the last bit, whatever the cache holds."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bmoe_core import LlamaModel, LlamaTarget, generate, open_source
from bmoe_core.errors import ExpertReadError, StreamingUnsupportedError, UsageError
from bmoe_core.models import demo_model
from bmoe_core.moe import stream as module
from bmoe_core.moe.options import StreamOptions
from bmoe_core.moe.region import Region
from bmoe_core.moe.store import ExpertStore
from bmoe_core.moe.stream import ExpertStream
from bmoe_core.moe.table import PAGE, ExpertTable
from bmoe_core.routing.records import NO_READS, Reads
from bmoe_core.routing.tap import RouterTap
from bmoe_core.testing import ScriptedSource
from bmoe_core.testing.large import Shape, write_large_moe
from bmoe_core.testing.models import write_hybrid_moe, write_split_copy

Rows = npt.NDArray[np.float32]
PROMPT = list(b"the experts of this model are read as they are needed")
WIDTHS = (1, 1, 4, 8, 1, 3)
LAYOUTS = ("moe", "moe in parts", "hybrid-moe", "hybrid-moe, fused", "Q4_0", "demo")
SHARES = (0.0, 0.3, 1.0)


@pytest.fixture(scope="module")
def paths(
    model_paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A model of each layout."""
    folder = tmp_path_factory.mktemp("streamed")
    write_hybrid_moe(folder / "fused.gguf", fused=True)
    write_large_moe(folder / "q4.gguf", Shape(n_embd=128, n_ff=64, n_expert=8, n_used=2), 3)
    parts = write_split_copy(model_paths["moe"], folder / "parts.gguf", tensors_per_part=9)
    return {
        "moe": model_paths["moe"],
        "moe in parts": parts,
        "hybrid-moe": model_paths["hybrid-moe"],
        "hybrid-moe, fused": folder / "fused.gguf",
        "Q4_0": folder / "q4.gguf",
        "demo": demo_model(),
    }


def capacity_of(path: Path, share: float) -> int:
    """From what one layer takes (0) to what all take (1)."""
    table = ExpertTable.read(path)
    return table.minimum_bytes + int(share * (table.total_bytes - table.minimum_bytes))


@contextmanager
def streamed(
    path: Path, capacity: int | None = None, prepare: Callable[[Any], None] | None = None
) -> Iterator[tuple[LlamaModel, RouterTap, ExpertStream]]:
    options = StreamOptions(n_lanes=2)
    with ExpertStream.open(path, options, capacity=capacity or capacity_of(path, 0)) as stream:

        def prepare_both(params: Any) -> None:
            stream.prepare_model(params)
            if prepare is not None:
                prepare(params)

        with LlamaModel(path, prepare=prepare_both) as model:
            stream.attach(model)
            yield model, RouterTap(stream), stream


def as_stored(params: Any) -> None:
    params.use_extra_bufts = False


def logits(model: LlamaModel, tap: RouterTap | None) -> list[Rows]:
    """Of a prompt, of decodes of several widths, and of rejected tokens decoded again."""
    with LlamaTarget(model, n_ctx=256, n_threads=1, max_draft=7, tap=tap) as target:
        rows = [target.decode(PROMPT, 1).copy()]
        for width in WIDTHS:
            rows.append(target.decode(PROMPT[:width], width).copy())
            target.roll_back(target.n_past - width // 2)
    return rows


class TestByteIdentity:
    @pytest.mark.parametrize("share", SHARES)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_logits(self, paths: dict[str, Path], layout: str, share: float) -> None:
        """Every layout, from one layer's memory to all: equal, plain and several wide."""
        path = paths[layout]
        with LlamaModel(path, prepare=as_stored) as model:
            expected = logits(model, None)
        capacity = capacity_of(path, share)
        with streamed(path, capacity) as (model, tap, stream):
            rows = logits(model, tap)
            assert stream.store.held_bytes <= capacity
            reads = [decode.reads for decode in tap.take()]
        for row, expected_row in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(row, expected_row)
        assert all(read is not None for read in reads)
        assert sum(read.n_missing for read in reads if read) > 0
        if share == 1.0:
            assert reads[-1] is not None
            assert reads[-1].n_missing == 0

    @pytest.mark.parametrize("layout", ["moe", "hybrid-moe, fused", "demo"])
    def test_experts_that_were_not_read_would_be_noticed(
        self, paths: dict[str, Path], layout: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The comparison can fail: with nothing read, the multiplications are with zeros."""
        with LlamaModel(paths[layout], prepare=as_stored) as model:
            expected = logits(model, None)
        monkeypatch.setattr(ExpertStore, "stage", lambda *_: NO_READS)
        with streamed(paths[layout]) as (model, tap, _):
            rows = logits(model, tap)
        assert not any(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))

    @pytest.mark.parametrize("share", SHARES)
    @pytest.mark.parametrize("kind", ["hybrid-moe", "demo"])
    def test_speculation_with_the_head(
        self, paths: dict[str, Path], kind: str, share: float
    ) -> None:
        """The head's own experts too, which only its own context computes with."""

        def run(model: LlamaModel, tap: RouterTap | None, source: Any) -> list[list[Any]]:
            with LlamaTarget(
                model,
                n_ctx=256,
                n_threads=1,
                max_draft=3,
                tap=tap,
                prepare=source.prepare_context,
            ) as target:
                source.open(target)
                generation = generate(target, PROMPT, source=source, n_predict=24)
                steps = [
                    [step.tokens, step.n_drafted, step.n_accepted, step.evidence]
                    for step in generation
                ]
                source.close()
            return steps

        source = open_source("mtp")

        def prepare(params: Any) -> None:
            source.prepare_model(params)
            as_stored(params)

        with LlamaModel(paths[kind], prepare=prepare) as model:
            expected = run(model, None, source)
        capacity = capacity_of(paths[kind], share)
        with streamed(paths[kind], capacity, source.prepare_model) as (model, tap, _):
            assert run(model, tap, source) == expected
            own = [decode for decode in tap.take() if not decode.by_target]
            head = max(layer for decode in own for layer in [decode.layers[0].layer])
            assert head == model.n_layer
            assert sum((decode.reads or NO_READS).n_missing for decode in own) > 0

    def test_a_replay_after_a_rejection(self, paths: dict[str, Path]) -> None:
        """With checkpoints the accepted tokens are decoded again, and routed again."""
        answers = []
        source = open_source(ScriptedSource(lambda tokens, n_max: [0, 0, 0][:n_max]))
        with LlamaModel(paths["hybrid-moe"], prepare=as_stored) as model:
            answers.append(self.replayed(model, None, source))
        with streamed(paths["hybrid-moe"]) as (model, tap, _):
            answers.append(self.replayed(model, tap, source))
        assert answers[0] == answers[1]

    def replayed(self, model: LlamaModel, tap: RouterTap | None, source: Any) -> list[int]:
        with LlamaTarget(
            model, n_ctx=256, n_threads=1, max_draft=3, rollback="checkpoint", tap=tap
        ) as target:
            generation = generate(target, PROMPT, source=source, n_predict=16)
            return [token for step in generation for token in step.tokens]


class TestMemory:
    def test_mapped_experts_are_given_back(self, paths: dict[str, Path]) -> None:
        """llama.cpp has the whole file mapped and read; of the experts nothing stays resident."""
        with streamed(paths["demo"], capacity_of(paths["demo"], 1)) as (_, _, stream):
            resident = resident_kib(paths["demo"])
            dense_kib = stream.table.dense_bytes / 1024
            # Pages at the edges are shared: at most two for each of the 21 expert tensors.
            assert resident <= dense_kib + 2 * 21 * 4 + 8
            # Weights of the head, which is not used here, are not mapped.
            assert resident >= 0.8 * dense_kib

    def test_a_run_holds_what_it_may(self, paths: dict[str, Path]) -> None:
        """Memory for experts is taken page by page and given back page by page."""
        path = paths["demo"]
        with streamed(path, capacity_of(path, 0.3)) as (model, tap, stream):
            logits(model, tap)
            resident = sum(resident_bytes(region) for region in stream.store.regions.values())
            assert resident > 0.5 * stream.store.held_bytes
            assert resident <= stream.store.held_bytes <= stream.store.capacity


def resident_kib(path: Path) -> int:
    """Resident KiB of all mappings of a file."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def resident_bytes(region: Region) -> int:
    """Of a region, by mincore(2)."""
    length = len(region.view)
    pages = (ctypes.c_ubyte * (length // PAGE))()
    base = ctypes.c_void_p(region.address - region.address % PAGE)
    assert ctypes.CDLL(None).mincore(base, ctypes.c_size_t(length), pages) == 0
    return sum(page & 1 for page in pages) * PAGE


class TestFailures:
    def test_an_error_of_the_disk_ends_the_decode(
        self, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never an answer from half of an expert; the target can go on once the disk does."""
        with (
            streamed(paths["moe"]) as (model, tap, _),
            LlamaTarget(model, n_ctx=64, n_threads=1, tap=tap) as target,
        ):
            expected = target.decode(PROMPT[:4], 1).copy()
            target.clear()
            with monkeypatch.context() as patch:
                patch.setattr(os, "preadv", broken)
                with pytest.raises(ExpertReadError, match="Input/output error"):
                    target.decode(PROMPT[:4], 1)
            target.clear()
            np.testing.assert_array_equal(target.decode(PROMPT[:4], 1), expected)

    def test_an_error_under_the_head_ends_the_next_decode(
        self, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The draft was nonsense then, and the disk is broken for the target too."""
        with (
            streamed(paths["moe"]) as (model, tap, _),
            LlamaTarget(model, n_ctx=64, n_threads=1, tap=tap) as target,
        ):
            monkeypatch.setattr(os, "preadv", broken)
            # Outside of a decode of the target, as the head's are.
            target._tap = None
            target.decode(PROMPT[:1], 1)
            target._tap = tap
            monkeypatch.undo()
            with pytest.raises(ExpertReadError):
                target.decode(PROMPT[:1], 1)

    def test_a_target_without_the_stage_is_refused(self, paths: dict[str, Path]) -> None:
        """It would multiply with memory that nothing was read into."""
        with streamed(paths["moe"]) as (model, tap, _):
            for wrong in (None, RouterTap()):
                with pytest.raises(UsageError, match="give the target a RouterTap"):
                    LlamaTarget(model, n_ctx=64, tap=wrong)
            LlamaTarget(model, n_ctx=64, tap=tap).close()

    def test_a_model_that_was_not_mapped_is_refused(self, paths: dict[str, Path]) -> None:
        """As when it was loaded without prepare_model, into memory."""

        def read(params: Any) -> None:
            params.load_mode = 0

        options = StreamOptions()
        with (
            ExpertStream.open(paths["demo"], options, capacity=capacity_of(paths["demo"], 1)) as s,
            LlamaModel(paths["demo"], prepare=read) as model,
            pytest.raises(StreamingUnsupportedError, match="is not what llama"),
        ):
            s.attach(model)

    def test_weights_that_llama_cpp_holds_otherwise_are_refused(
        self, paths: dict[str, Path]
    ) -> None:
        """Loaded to memory of its own: what is there may be repacked."""

        def read(params: Any) -> None:
            params.load_mode = 0

        with (
            LlamaModel(paths["moe"]),
            streamed(paths["moe"], None, read) as (model, tap, _),
            LlamaTarget(model, n_ctx=64, n_threads=1, tap=tap) as target,
            pytest.raises(StreamingUnsupportedError, match="as the file has it"),
        ):
            target.decode(PROMPT[:1], 1)

    def test_another_choice_than_the_router_s_is_refused(
        self, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An architecture that maps its router's choice to other experts."""
        real = ExpertStream.chosen
        monkeypatch.setattr(
            ExpertStream,
            "chosen",
            lambda self, layer, experts, ids: real(self, layer, experts, ids + 1),
        )
        with (
            streamed(paths["moe"]) as (model, tap, _),
            LlamaTarget(model, n_ctx=64, n_threads=1, tap=tap) as target,
            pytest.raises(StreamingUnsupportedError, match="other experts than its router"),
        ):
            target.decode(PROMPT[:1], 1)

    def test_a_cache_below_one_layer_is_refused(self, paths: dict[str, Path]) -> None:
        """The message has the least that does."""
        least = capacity_of(paths["demo"], 0)
        with pytest.raises(UsageError, match=r"too small.*which takes 2 MiB"):
            ExpertStream.open(paths["demo"], StreamOptions(), capacity=least - 1)

    @pytest.mark.parametrize("missing", ["gpu", "linux"])
    def test_a_system_without_the_means_is_refused(
        self, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        """Before anything is loaded."""
        if missing == "gpu":
            monkeypatch.setattr(module.llama_cpp, "llama_supports_gpu_offload", lambda: True)
        else:
            monkeypatch.setattr(Path, "exists", lambda self: False)
        with pytest.raises(StreamingUnsupportedError, match="leave --moe-stream out"):
            ExpertStream.open(paths["moe"], StreamOptions())

    def test_the_model_goes_before_the_memory(self, paths: dict[str, Path]) -> None:
        """A decode after that is refused, not a crash."""
        path = paths["moe"]
        stream = ExpertStream.open(path, StreamOptions(), capacity=capacity_of(path, 1))
        model = LlamaModel(path, prepare=stream.prepare_model)
        stream.attach(model)
        target = LlamaTarget(model, n_ctx=64, n_threads=1, tap=RouterTap(stream))
        target.decode(PROMPT[:1], 1)
        stream.close()
        stream.close()
        with pytest.raises(Exception, match="has been closed"):
            target.decode(PROMPT[:1], 1)


def broken(*_: Any) -> int:
    raise OSError(5, "Input/output error")


def test_reads_add_up() -> None:
    """Field by field."""
    assert Reads(1, 2, 3, 0.5, 4, 5) + Reads(10, 20, 30, 0.25, 40, 50) == Reads(
        11, 22, 33, 0.75, 44, 55
    )
    assert Reads(3, 1).hit_rate == 0.75
    assert NO_READS.hit_rate is None
