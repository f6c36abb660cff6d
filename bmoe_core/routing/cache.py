"""A model of a cache of experts: what it would have held, and what it would have had to read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from attrs import define, field, frozen

from bmoe_core.available import available_bytes
from bmoe_core.routing.records import DecodeRouting, ExpertLayer

MIB = 2**20
AVAILABLE_FLOOR_MIB = 1024
"""MiB of available memory that an automatic size leaves to the rest of the machine."""


@frozen
class CacheSize:
    """How large a cache is, and why.

    Attributes:
        mib: its size.
        available_mib: for an automatic size, the memory that was available; None: it was given.
        reserved_mib: for an automatic size, what of it is left to others.
    """

    mib: int
    available_mib: int | None = None
    reserved_mib: int = AVAILABLE_FLOOR_MIB

    @classmethod
    def automatic(cls, *, dense_bytes: int = 0, most_bytes: int | None = None) -> CacheSize:
        """What is available now, less :data:`AVAILABLE_FLOOR_MIB`; 0 where that leaves nothing.

        Args:
            dense_bytes: what the weights that are no experts will take, which is left to them.
            most_bytes: what all experts take, more than which is of no use.
        """
        available = available_bytes() // MIB
        reserved = AVAILABLE_FLOOR_MIB + -(-dense_bytes // MIB)
        mib = max(0, available - reserved)
        if most_bytes is not None:
            mib = min(mib, -(-most_bytes // MIB))
        return cls(mib=mib, available_mib=available, reserved_mib=reserved)

    def __str__(self) -> str:
        if self.available_mib is None:
            return f"{self.mib} MiB"
        why = f"{self.available_mib} MiB available less {self.reserved_mib}"
        if self.mib < self.available_mib - self.reserved_mib:
            why += ", and no more than all experts"
        return f"{self.mib} MiB (auto: {why})"


@define
class LruCache:
    """A least-recently-used cache of (layer, expert) slices, of which only the sizes are real.

    Attributes:
        capacity: bytes that it holds at most.
        n_hits: touches of a slice that it held.
        n_misses: touches of a slice that it did not hold.
        read_bytes: bytes of those misses.
    """

    capacity: int
    n_hits: int = field(default=0, init=False)
    n_misses: int = field(default=0, init=False)
    read_bytes: int = field(default=0, init=False)
    _held: OrderedDict[tuple[int, int], int] = field(factory=OrderedDict, init=False)
    _held_bytes: int = field(default=0, init=False)

    @property
    def hit_rate(self) -> float | None:
        """Touches of a slice that it held, of all, 0 to 1; None before any."""
        touched = self.n_hits + self.n_misses
        return self.n_hits / touched if touched else None

    def feed(self, decodes: Iterable[DecodeRouting], layers: Mapping[int, ExpertLayer]) -> None:
        """Touch what decodes need, in the order of decodes and layers, experts ascending."""
        for decode in decodes:
            for routed in decode.layers:
                size = layers[routed.layer].expert_bytes
                for expert in routed.experts:
                    self.touch(routed.layer, expert, size)

    def touch(self, layer: int, expert: int, size: int) -> bool:
        """Need a slice of ``size`` bytes; whether it was held.

        A slice larger than the cache is read each time and displaces nothing.
        """
        key = (layer, expert)
        if key in self._held:
            self._held.move_to_end(key)
            self.n_hits += 1
            return True
        self.n_misses += 1
        self.read_bytes += size
        if size <= self.capacity:
            while self._held_bytes + size > self.capacity:
                _, dropped = self._held.popitem(last=False)
                self._held_bytes -= dropped
            self._held[key] = size
            self._held_bytes += size
        return False

    def forget_counts(self) -> None:
        """Count from here on; what is held stays."""
        self.n_hits = self.n_misses = self.read_bytes = 0
