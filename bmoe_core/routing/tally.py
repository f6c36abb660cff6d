"""Counts routed experts and their bytes, over a run and for each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from bmoe_core.routing.cache import CacheSize, LruCache
from bmoe_core.routing.records import DecodeRouting, ExpertLayer

MIB = 2**20


@frozen
class RoutingSummary:
    """The routing of a generation or of one step of it.

    Demanded bytes are those of the distinct experts of each decode and layer, whether or not they
    were in memory already: what a decode has to have, not what it had to read.

    Attributes:
        target_bytes: demanded by the target's decodes, plain and verifying.
        source_bytes: demanded by the draft source's own decodes.
        n_distinct: distinct experts, summed over the target's decodes and their layers.
        n_layers: routed layers, summed over the target's decodes.
        verify_bytes: the part of ``target_bytes`` that decodes of several positions demanded.
        verify_single_bytes: what one position of each of those decodes would have demanded.
        n_hits: expert slices that the modelled cache held when they were needed.
        n_misses: those it did not hold.
        read_bytes: bytes of the misses.
    """

    target_bytes: int = 0
    source_bytes: int = 0
    n_distinct: int = 0
    n_layers: int = 0
    verify_bytes: int = 0
    verify_single_bytes: int = 0
    n_hits: int = 0
    n_misses: int = 0
    read_bytes: int = 0

    def __add__(self, other: RoutingSummary) -> RoutingSummary:
        return RoutingSummary(
            target_bytes=self.target_bytes + other.target_bytes,
            source_bytes=self.source_bytes + other.source_bytes,
            n_distinct=self.n_distinct + other.n_distinct,
            n_layers=self.n_layers + other.n_layers,
            verify_bytes=self.verify_bytes + other.verify_bytes,
            verify_single_bytes=self.verify_single_bytes + other.verify_single_bytes,
            n_hits=self.n_hits + other.n_hits,
            n_misses=self.n_misses + other.n_misses,
            read_bytes=self.read_bytes + other.read_bytes,
        )

    @property
    def demanded_bytes(self) -> int:
        """Bytes demanded by all decodes."""
        return self.target_bytes + self.source_bytes

    @property
    def distinct_per_layer(self) -> float | None:
        """Mean distinct experts that a target decode needs of a layer."""
        return self.n_distinct / self.n_layers if self.n_layers else None

    @property
    def widening(self) -> float | None:
        """Bytes that decodes of several positions demanded, by those of one of their positions.

        1.0: all positions were routed alike; the number of positions: none shared an expert.
        """
        if not self.verify_single_bytes:
            return None
        return self.verify_bytes / self.verify_single_bytes

    @property
    def source_share(self) -> float | None:
        """The source's own part of the demanded bytes, 0 to 1."""
        return self.source_bytes / self.demanded_bytes if self.demanded_bytes else None

    @property
    def hit_rate(self) -> float | None:
        """Expert slices found in the modelled cache, of all that were needed, 0 to 1."""
        touched = self.n_hits + self.n_misses
        return self.n_hits / touched if touched else None

    def demanded_mib_per_token(self, n_generated: int) -> float | None:
        """MiB demanded a generated token."""
        return self.demanded_bytes / MIB / n_generated if n_generated else None

    def read_mib_per_token(self, n_generated: int) -> float | None:
        """MiB that the modelled cache would have had to read a generated token."""
        return self.read_bytes / MIB / n_generated if n_generated else None


@define
class RoutingTally:
    """Counts the routing of one generation.

    Attributes:
        layers: the model's routed layers; may still fill up when the tally is made.
        cache_size: the size of the cache to model; None: none.
        summary: what has been counted.
    """

    layers: Mapping[int, ExpertLayer]
    cache_size: CacheSize | None = None
    summary: RoutingSummary = field(factory=RoutingSummary, init=False)
    _cache: LruCache | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        size = self.cache_size
        self._cache = None if size is None else LruCache(size.mib * MIB)

    def warm(self, decodes: Iterable[DecodeRouting]) -> None:
        """Let the modelled cache see the decodes of the prompt, which are not counted."""
        for decode in decodes:
            self._touch(decode)
        if self._cache is not None:
            self._cache.forget_counts()

    def add(self, decodes: Iterable[DecodeRouting]) -> RoutingSummary:
        """Count the decodes of one step, in the order in which they ran; what they came to."""
        step = RoutingSummary()
        for decode in decodes:
            step += self._count(decode)
            self._touch(decode)
        if self._cache is not None:
            cache = self._cache
            step = evolve(
                step, n_hits=cache.n_hits, n_misses=cache.n_misses, read_bytes=cache.read_bytes
            )
            cache.forget_counts()
        self.summary += step
        return step

    def _count(self, decode: DecodeRouting) -> RoutingSummary:
        demanded = single = 0
        for routed in decode.layers:
            size = self.layers[routed.layer].expert_bytes
            demanded += size * len(routed.experts)
            single += size * routed.n_used
        if not decode.by_target:
            return RoutingSummary(source_bytes=demanded)
        verifies = decode.n_tokens > 1
        return RoutingSummary(
            target_bytes=demanded,
            n_distinct=sum(len(routed.experts) for routed in decode.layers),
            n_layers=len(decode.layers),
            verify_bytes=demanded if verifies else 0,
            verify_single_bytes=single if verifies else 0,
        )

    def _touch(self, decode: DecodeRouting) -> None:
        if self._cache is None:
            return
        for routed in decode.layers:
            size = self.layers[routed.layer].expert_bytes
            for expert in routed.experts:
                self._cache.touch(routed.layer, expert, size)

    @property
    def n_expert(self) -> int:
        """Routed experts of a layer, the most of all layers."""
        return max((layer.n_expert for layer in self.layers.values()), default=0)

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts seen so far."""
        return sum(layer.n_expert * layer.expert_bytes for layer in self.layers.values())

    def lines(self, source: str, n_generated: int) -> list[str]:
        """The report's lines on routing.

        Args:
            source: the draft source's name, which begins the line on its own decodes.
            n_generated: tokens generated.
        """
        summary = self.summary
        demanded = summary.demanded_mib_per_token(n_generated)
        if demanded is None:
            return []
        widening = "" if summary.widening is None else f", verify widening ×{summary.widening:.2f}"
        distinct = summary.distinct_per_layer or 0
        lines = [
            f"moe: {demanded:.2f} MiB/token demanded, {distinct:.1f} distinct experts a layer "
            f"(of {self.n_expert}){widening}"
        ]
        if summary.source_bytes:
            lines.append(
                f"{source}: of {summary.demanded_bytes / MIB:.1f} MiB demanded, "
                f"{summary.source_bytes / MIB:.1f} MiB ({summary.source_share:.1%}) was the head's "
                f"own routing, {summary.target_bytes / MIB:.1f} MiB the verify batches"
            )
        if self.cache_size is not None:
            held = min(1.0, self.cache_size.mib * MIB / self.expert_bytes)
            lines.append(
                f"moe: modelled, a cache of {self.cache_size} holds {held:.0%} of the expert "
                f"bytes, hits {summary.hit_rate or 0:.1%} and reads "
                f"{summary.read_mib_per_token(n_generated):.2f} MiB/token"
            )
        return lines

    def to_dict(self, n_generated: int) -> dict[str, Any]:
        """The figures as JSON-ready values."""
        summary = self.summary
        return {
            "n_expert": self.n_expert,
            "expert_mib": self.expert_bytes / MIB,
            "demanded_mib_per_token": summary.demanded_mib_per_token(n_generated),
            "distinct_experts_per_layer": summary.distinct_per_layer,
            "verify_widening": summary.widening,
            "target_mib": summary.target_bytes / MIB,
            "source_mib": summary.source_bytes / MIB,
            "modelled_cache_mib": None if self.cache_size is None else self.cache_size.mib,
            "modelled_hit_rate": summary.hit_rate,
            "modelled_read_mib_per_token": (
                None if self.cache_size is None else summary.read_mib_per_token(n_generated)
            ),
        }
