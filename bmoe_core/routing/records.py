"""What the router chose in a decode, and how large the experts are."""

from __future__ import annotations

from attrs import frozen


@frozen
class ExpertLayer:
    """The routed experts of one layer.

    Attributes:
        n_expert: how many there are.
        expert_bytes: bytes of one of them, all of its matrices together.
    """

    n_expert: int
    expert_bytes: int


@frozen
class LayerRouting:
    """The experts that one decode needs of one layer.

    Attributes:
        layer: the layer's index in the model file.
        experts: the distinct experts over all positions of the decode, ascending: their union.
        n_used: experts that one position is routed to.
    """

    layer: int
    experts: tuple[int, ...]
    n_used: int


@frozen
class Reads:
    """What streaming the experts of one or several decodes took.

    Attributes:
        n_held: distinct experts, of each decode and layer, that were in memory already.
        n_missing: those that had to be read.
        n_bytes: bytes read.
        wait_s: seconds that the decodes stood still for it.
        n_routed: experts that positions were routed to, in decodes that might leave some out.
        n_dropped: of them, those left out.
    """

    n_held: int = 0
    n_missing: int = 0
    n_bytes: int = 0
    wait_s: float = 0.0
    n_routed: int = 0
    n_dropped: int = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(
            n_held=self.n_held + other.n_held,
            n_missing=self.n_missing + other.n_missing,
            n_bytes=self.n_bytes + other.n_bytes,
            wait_s=self.wait_s + other.wait_s,
            n_routed=self.n_routed + other.n_routed,
            n_dropped=self.n_dropped + other.n_dropped,
        )

    @property
    def hit_rate(self) -> float | None:
        """Experts that were in memory already, of all that were needed, 0 to 1."""
        needed = self.n_held + self.n_missing
        return self.n_held / needed if needed else None


NO_READS = Reads()


@frozen
class DecodeRouting:
    """The routing of one decode.

    Attributes:
        by_target: whether the target decoded, for a verify batch or plainly; False: the draft
            source did, with the target's weights, as a multi-token-prediction head does.
        n_tokens: positions decoded.
        layers: the layers with routed experts, in the order in which they were computed.
        reads: what streaming their experts took; None: they were not streamed.
    """

    by_target: bool
    n_tokens: int
    layers: tuple[LayerRouting, ...]
    reads: Reads | None = None
