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
class DecodeRouting:
    """The routing of one decode.

    Attributes:
        by_target: whether the target decoded, for a verify batch or plainly; False: the draft
            source did, with the target's weights, as a multi-token-prediction head does.
        n_tokens: positions decoded.
        layers: the layers with routed experts, in the order in which they were computed.
    """

    by_target: bool
    n_tokens: int
    layers: tuple[LayerRouting, ...]
