"""The figures of the routing of a generation, or of one step of it."""

from __future__ import annotations

from attrs import frozen

from bmoe_core.routing.records import NO_READS, Reads

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
        reads: what streaming took, over all decodes; nothing where the experts are not streamed.
        source_reads: the part of it that the draft source's own decodes took.
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
    reads: Reads = NO_READS
    source_reads: Reads = NO_READS

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
            reads=self.reads + other.reads,
            source_reads=self.source_reads + other.source_reads,
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
