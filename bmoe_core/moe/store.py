"""The experts in memory: what is held, and reading what is not."""

from __future__ import annotations

import time
from collections.abc import Sequence

from attrs import define, field

from bmoe_core.moe.lanes import Lanes, Stretch
from bmoe_core.moe.region import Region
from bmoe_core.moe.residency import Residency
from bmoe_core.moe.table import ExpertTable, page_ceil, page_floor
from bmoe_core.routing.records import Reads


@define(eq=False)
class ExpertStore:
    """Memory for all experts of a model, of which a chosen amount is in use.

    Attributes:
        table: where the experts are in the files.
        lanes: read them.
        capacity: bytes of memory for them, at least :attr:`ExpertTable.minimum_bytes`.
        regions: the memory of each expert tensor, by its name.
    """

    table: ExpertTable
    lanes: Lanes
    capacity: int
    regions: dict[str, Region] = field(init=False)
    _residency: Residency = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._residency = Residency(self.capacity, self.table.held_bytes)
        self.regions = {tensor.place.name: Region(tensor) for tensor in self.table.tensors()}

    @property
    def held_bytes(self) -> int:
        """Bytes of memory in use, at most."""
        return self._residency.held_bytes

    def holds(self, layer: int, expert: int) -> bool:
        """Whether an expert is in memory."""
        return (layer, expert) in self._residency

    def stage(self, layer: int, experts: Sequence[int]) -> Reads:
        """Have all of these experts of a layer in memory.

        Args:
            layer: a layer of the table.
            experts: distinct experts of it, ascending.

        Raises:
            ExpertReadError: they could not be read; those that were missing still are.
        """
        started = time.perf_counter()
        plan = self._residency.plan(layer, experts)
        for slice_layer, expert in plan.evicted:
            self._give_back(slice_layer, expert)
        n_bytes = 0
        if plan.missing:
            n_bytes = self.lanes.read(self._stretches(layer, plan.missing))
            for expert in plan.missing:
                self._residency.hold(layer, expert)
        return Reads(
            n_held=plan.n_held,
            n_missing=len(plan.missing),
            n_bytes=n_bytes,
            wait_s=time.perf_counter() - started,
        )

    def _give_back(self, layer: int, expert: int) -> None:
        for tensor in self.table.layers[layer]:
            self.regions[tensor.place.name].give_back(
                expert, lambda other: (layer, other) in self._residency
            )

    def _stretches(self, layer: int, missing: Sequence[int]) -> list[Stretch]:
        """Neighbours in a file are read in one stretch."""
        stretches = []
        for tensor in self.table.layers[layer]:
            region, part = self.regions[tensor.place.name], tensor.place.part
            for first, last in _runs(missing):
                offset, end = page_floor(tensor.span(first)[0]), tensor.span(last)[1]
                window = region.window(offset, page_ceil(end))
                stretches.append(Stretch(part, offset, end, window))
        return stretches

    def close(self) -> None:
        """Return the memory and close the files."""
        self.lanes.close()
        for region in self.regions.values():
            region.close()
        self.regions = {}


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
