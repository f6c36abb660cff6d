"""Table, residency and memory, on layouts worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmoe_core.errors import StreamingUnsupportedError
from bmoe_core.moe import region as region_module
from bmoe_core.moe.gguf import TensorPlace
from bmoe_core.moe.region import Region
from bmoe_core.moe.residency import Plan, Residency
from bmoe_core.moe.store import _runs
from bmoe_core.moe.table import PAGE, ExpertTable, ExpertTensor
from bmoe_core.testing.models import N_EMBD, N_EXPERT, N_FF_EXPERT

SLICE_BYTES = N_FF_EXPERT * N_EMBD * 4


def tensor(offset: int, slice_bytes: int, n_expert: int = 4) -> ExpertTensor:
    place = TensorPlace("blk.0.x_exps.weight", 0, offset, (1, 1, n_expert), n_expert * slice_bytes)
    return ExpertTensor(place, n_expert, slice_bytes)


class TestTable:
    @pytest.mark.parametrize(
        ("kind", "layers", "matrices"), [("moe", (0, 1), 3), ("hybrid-moe", (0, 1, 2), 3)]
    )
    def test_the_experts_of_a_model(
        self, model_paths: dict[str, Path], kind: str, layers: tuple[int, ...], matrices: int
    ) -> None:
        """Every layer that has some, the head's among them, and nothing else."""
        table = ExpertTable.read(model_paths[kind])
        assert tuple(sorted(table.layers)) == layers
        for tensors in table.layers.values():
            assert len(tensors) == matrices
            assert {(t.n_expert, t.slice_bytes) for t in tensors} == {(N_EXPERT, SLICE_BYTES)}
        assert table.dense_bytes == sum(place.n_bytes for place in table.dense())
        assert not any("exps" in place.name for place in table.dense())

    def test_a_dense_model_is_refused(self, model_paths: dict[str, Path]) -> None:
        """There is nothing to stream."""
        with pytest.raises(StreamingUnsupportedError, match="no routed experts to stream"):
            ExpertTable.read(model_paths["dense"])

    def test_memory_is_counted_in_pages(self) -> None:
        """A slice of one page that begins within one touches two."""
        assert tensor(0, PAGE).paged_bytes(0) == PAGE
        assert tensor(32, PAGE).paged_bytes(0) == 2 * PAGE
        assert tensor(32, PAGE // 4).paged_bytes(0) == PAGE
        assert tensor(PAGE - 32, PAGE // 4).paged_bytes(0) == 2 * PAGE


def one_each(_layer: int, _expert: int) -> int:
    return 1


class TestResidency:
    def test_a_trace_by_hand(self) -> None:
        """What was used longest ago goes first, and nothing that is wanted now."""
        residency = Residency(3, one_each)

        def want(layer: int, *experts: int) -> Plan:
            plan = residency.plan(layer, experts)
            for expert in plan.missing:
                residency.hold(layer, expert)
            return plan

        assert want(0, 1, 2) == Plan(0, (1, 2), ())
        assert want(1, 1) == Plan(0, (1,), ())
        assert want(0, 1) == Plan(1, (), ())
        # The oldest is now (0, 2), then (1, 1).
        assert want(1, 5) == Plan(0, (5,), ((0, 2),))
        # (0, 1) is the oldest but one, and wanted: (1, 1) and (1, 5) make room.
        assert want(0, 1, 3, 4) == Plan(1, (3, 4), ((1, 1), (1, 5)))
        assert residency.held_bytes == 3

    def test_what_was_not_read_is_not_held(self) -> None:
        """A plan whose reading fails leaves its slices missing."""
        residency = Residency(2, one_each)
        assert residency.plan(0, [7]).missing == (7,)
        assert (0, 7) not in residency
        assert residency.plan(0, [7]).missing == (7,)

    def test_more_than_fits_is_a_mistake(self) -> None:
        """The minimum of a cache is there to rule it out."""
        residency = Residency(2, one_each)
        with pytest.raises(ValueError, match="3 bytes more do not fit into 2"):
            residency.plan(0, [0, 1, 2])

    @given(
        st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 5), min_size=1)), max_size=60),
        st.integers(21, 60),
    )
    def test_the_bound_is_kept(self, wants: list[tuple[int, set[int]]], capacity: int) -> None:
        """Whatever is asked for is held afterwards, and never more than the capacity."""
        residency = Residency(capacity, lambda layer, expert: 1 + layer + expert % 2)
        held: set[tuple[int, int]] = set()
        for layer, experts in wants:
            plan = residency.plan(layer, sorted(experts))
            for expert in plan.missing:
                residency.hold(layer, expert)
            assert {expert for expert in experts if (layer, expert) in held} == experts - set(
                plan.missing
            )
            held -= set(plan.evicted)
            held |= {(layer, expert) for expert in experts}
            assert all(one in residency for one in held)
            assert residency.held_bytes == sum(1 + i + j % 2 for i, j in held) <= capacity


class TestRegion:
    @pytest.mark.parametrize(
        ("offset", "slice_bytes", "held", "kept"),
        [
            # Expert 1 of slices of one page, in step with the pages: its page goes.
            (0, PAGE, (0, 2), []),
            # Half a page later: it lies on pages 1 and 2, which 0 and 2 have a part of.
            (PAGE // 2, PAGE, (0, 2), [1, 2]),
            (PAGE // 2, PAGE, (0,), [1]),
            (PAGE // 2, PAGE, (2,), [2]),
            (PAGE // 2, PAGE, (3,), []),
            # Four slices a page: as long as any of them is held the page stays.
            (0, PAGE // 4, (3,), [0]),
            (0, PAGE // 4, (), []),
            # Two pages and a half each: 1 begins within page 2 and ends with page 4.
            (0, 5 * PAGE // 2, (0, 2), [2]),
        ],
    )
    def test_pages_go_unless_a_held_expert_shares_them(
        self, offset: int, slice_bytes: int, held: tuple[int, ...], kept: list[int]
    ) -> None:
        """Memory that was given back reads as zeros."""
        ours = tensor(offset, slice_bytes)
        region = Region(ours)
        region.view[:] = b"\xff" * len(region.view)
        region.give_back(1, lambda expert: expert in held)
        start, end = ours.span(1)
        pages = range(start // PAGE, -(-end // PAGE))
        assert [i for i in pages if region.view[i * PAGE] == 0xFF] == kept
        others = [i for i in range(len(region.view) // PAGE) if i not in pages]
        assert all(region.view[i * PAGE] == 0xFF for i in others)
        region.close()

    def test_a_tensor_lies_as_in_its_file(self) -> None:
        """Same place within a page, so that pages of the file can be read to it as they are."""
        region = Region(tensor(3 * PAGE + 96, 1000))
        assert region.address % PAGE == 96
        assert len(region.window(3 * PAGE, 4 * PAGE)) == PAGE
        region.close()

    def test_a_system_that_reserves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with a limit on addresses, or where every reserved page counts as taken."""

        def refuse(*_: Any, **__: Any) -> Any:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(region_module.mmap, "mmap", refuse)
        with pytest.raises(StreamingUnsupportedError, match=r"no 4 MiB .*overcommit_memory not 2"):
            Region(tensor(0, 2**20))


def test_neighbours_are_read_together() -> None:
    """The first and the last of each run."""
    assert _runs([0, 1, 2, 5, 7, 8]) == [(0, 2), (5, 5), (7, 8)]
    assert _runs([]) == []
