"""Which experts are held, and which make room for others: the least recently used ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

Slice = tuple[int, int]
"""A layer and an expert of it."""


@frozen
class Plan:
    """What has to be done before a layer's experts can be multiplied with.

    Attributes:
        n_held: of the wanted experts, those that are held.
        missing: the others, in the order asked for.
        evicted: slices that make room for them, the least recently used one first.
    """

    n_held: int
    missing: tuple[int, ...]
    evicted: tuple[Slice, ...]


@define
class Residency:
    """The slices that are held, in the order of their last use.

    Attributes:
        capacity: bytes that may be held.
        size_of: bytes that a slice takes, from its layer and expert.
        held_bytes: bytes that are held.
    """

    capacity: int
    size_of: Callable[[int, int], int]
    held_bytes: int = field(default=0, init=False)
    _held: OrderedDict[Slice, int] = field(factory=OrderedDict, init=False)

    def __contains__(self, wanted: Slice) -> bool:
        return wanted in self._held

    def plan(self, layer: int, experts: Sequence[int]) -> Plan:
        """Make room for the experts of a layer; none of them is evicted for another.

        The missing ones are not held before :meth:`hold` says so: reading them may fail.

        Raises:
            ValueError: they do not fit together.
        """
        missing = []
        for expert in experts:
            if (layer, expert) in self._held:
                self._held.move_to_end((layer, expert))
            else:
                missing.append(expert)
        n_held = len(experts) - len(missing)
        needed = sum(self.size_of(layer, expert) for expert in missing)
        evicted = []
        while self.held_bytes + needed > self.capacity:
            # Those wanted now stand at the other end.
            if len(self._held) <= n_held:
                raise ValueError(f"{needed} bytes more do not fit into {self.capacity}")
            dropped, size = self._held.popitem(last=False)
            self.held_bytes -= size
            evicted.append(dropped)
        return Plan(n_held, tuple(missing), tuple(evicted))

    def hold(self, layer: int, expert: int) -> None:
        """Note that a missing expert has been read."""
        size = self.size_of(layer, expert)
        self._held[(layer, expert)] = size
        self.held_bytes += size
