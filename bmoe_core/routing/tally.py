"""Counts routed experts and their bytes, over a run and for each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, evolve, field

from bmoe_core.routing.cache import CacheSize, LruCache
from bmoe_core.routing.records import NO_READS, DecodeRouting, ExpertLayer
from bmoe_core.routing.summary import MIB, RoutingSummary


@define
class RoutingTally:
    """Counts the routing of one generation.

    Attributes:
        layers: the model's routed layers; may still fill up when the tally is made.
        cache_size: the size of the cache, to be modelled where it is not real; None: none.
        is_streamed: whether the experts are streamed, with a cache of that size.
        summary: what has been counted.
    """

    layers: Mapping[int, ExpertLayer]
    cache_size: CacheSize | None = None
    is_streamed: bool = False
    summary: RoutingSummary = field(factory=RoutingSummary, init=False)
    _cache: LruCache | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        size = None if self.is_streamed else self.cache_size
        self._cache = None if size is None else LruCache(size.mib * MIB)

    def warm(self, decodes: Iterable[DecodeRouting]) -> None:
        """Let the modelled cache see the decodes of the prompt, which are not counted."""
        if self._cache is not None:
            self._cache.feed(decodes, self.layers)
            self._cache.forget_counts()

    def add(self, decodes: Iterable[DecodeRouting]) -> RoutingSummary:
        """Count the decodes of one step, in the order in which they ran; what they came to."""
        step = RoutingSummary()
        for decode in decodes:
            step += self._count(decode)
            if self._cache is not None:
                self._cache.feed([decode], self.layers)
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
        reads = decode.reads or NO_READS
        if not decode.by_target:
            return RoutingSummary(source_bytes=demanded, reads=reads, source_reads=reads)
        verifies = decode.n_tokens > 1
        return RoutingSummary(
            target_bytes=demanded,
            n_distinct=sum(len(routed.experts) for routed in decode.layers),
            n_layers=len(decode.layers),
            verify_bytes=demanded if verifies else 0,
            verify_single_bytes=single if verifies else 0,
            reads=reads,
        )

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
        if self.is_streamed:
            lines += self._streamed_lines(source, n_generated)
        elif self.cache_size is not None:
            lines.append(
                f"moe: modelled, a cache of {self.cache_size} holds {self._held_share:.0%} of the "
                f"expert bytes, hits {summary.hit_rate or 0:.1%} and reads "
                f"{summary.read_mib_per_token(n_generated):.2f} MiB/token"
            )
        return lines

    @property
    def _held_share(self) -> float:
        """The part of the expert bytes that the cache holds, 0 to 1."""
        assert self.cache_size is not None
        return min(1.0, self.cache_size.mib * MIB / self.expert_bytes)

    def _streamed_lines(self, source: str, n_generated: int) -> list[str]:
        reads, own = self.summary.reads, self.summary.source_reads
        lines = [
            f"moe: streamed, a cache of {self.cache_size} holds {self._held_share:.0%} of the "
            f"expert bytes, hits {reads.hit_rate or 0:.1%} and reads "
            f"{reads.n_bytes / MIB / n_generated:.2f} MiB/token in "
            f"{reads.wait_s / n_generated:.4f} s/token"
        ]
        if own.n_held + own.n_missing:
            share = own.n_bytes / reads.n_bytes if reads.n_bytes else 0
            lines.append(
                f"{source}: of {reads.n_bytes / MIB:.1f} MiB read, {own.n_bytes / MIB:.1f} MiB "
                f"({share:.1%}) was the head's own routing, "
                f"{(reads.n_bytes - own.n_bytes) / MIB:.1f} MiB the verify batches"
            )
        if reads.n_routed:
            lines.append(
                f"moe: {reads.n_dropped}/{reads.n_routed} routed experts left out "
                f"({reads.n_dropped / reads.n_routed:.1%}), so this is not the model's own answer"
            )
        return lines

    def to_dict(self, n_generated: int) -> dict[str, Any]:
        """The figures as JSON-ready values."""
        summary = self.summary
        modelled = None if self.is_streamed else self.cache_size
        return {
            "n_expert": self.n_expert,
            "expert_mib": self.expert_bytes / MIB,
            "demanded_mib_per_token": summary.demanded_mib_per_token(n_generated),
            "distinct_experts_per_layer": summary.distinct_per_layer,
            "verify_widening": summary.widening,
            "target_mib": summary.target_bytes / MIB,
            "source_mib": summary.source_bytes / MIB,
            "modelled_cache_mib": None if modelled is None else modelled.mib,
            "modelled_hit_rate": summary.hit_rate,
            "modelled_read_mib_per_token": (
                None if modelled is None else summary.read_mib_per_token(n_generated)
            ),
            "streamed": self._streamed_dict(n_generated) if self.is_streamed else None,
        }

    def _streamed_dict(self, n_generated: int) -> dict[str, Any]:
        reads, own = self.summary.reads, self.summary.source_reads
        return {
            "cache_mib": None if self.cache_size is None else self.cache_size.mib,
            "hit_rate": reads.hit_rate,
            "read_mib": reads.n_bytes / MIB,
            "source_read_mib": own.n_bytes / MIB,
            "read_mib_per_token": reads.n_bytes / MIB / n_generated if n_generated else None,
            "wait_s_per_token": reads.wait_s / n_generated if n_generated else None,
            "drop_rate": reads.n_dropped / reads.n_routed if reads.n_routed else None,
        }
