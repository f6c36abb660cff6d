"""Streaming that leaves out experts: lossy, and only where it saves a read."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, evolve, field

from bmoe_core.errors import StreamingUnsupportedError
from bmoe_core.moe.stream import ExpertStream
from bmoe_core.moe.weights import leave_out_cold
from bmoe_core.routing.ggml import Tensor

WEIGHTS = re.compile(rb"(ffn_moe_weights(?:|_softmax|_norm|_scaled))-(\d+)")
"""The router's weights, from its probabilities to what the experts are multiplied by; a model has
some of these steps (``build_moe_ffn`` in llama.cpp's ``src/llama-graph.cpp``)."""


@define(eq=False)
class DroppingStream(ExpertStream):
    """Leaves experts out once the prompt has been read; see :func:`leave_out_cold`.

    What is left out is decided when the weights are final, some nodes after the choice. Which node
    that is, the first graph of each layer shows, from which nothing is left out.
    """

    _prompt_ended: bool = field(default=False, init=False)
    _final: dict[int, bytes] = field(factory=dict, init=False)
    """The name of each layer's final weights."""
    _last_seen: dict[int, bytes] = field(factory=dict, init=False)
    _waiting: tuple[int, int] | None = field(default=None, init=False)
    """The layer and the tensor of a choice whose weights are not final."""

    def prompt_ended(self) -> None:
        """Leave experts out from here on: of a prompt, with nothing held, it would be most."""
        self._prompt_ended = True

    def wants(self, name: bytes) -> bool:
        """Whether to stop after this node: the final weights of a choice that waits for them."""
        found = WEIGHTS.fullmatch(name)
        if found is None:
            return False
        layer = int(found[2])
        if layer not in self._final:
            self._last_seen[layer] = name
        return self._prompt_ended and self._final.get(layer) == name

    def chosen(self, layer: int, experts: Sequence[int], ids: int) -> None:
        """Wait for the weights where experts may be left out."""
        if self._prompt_ended and layer in self._final and layer in self.table.layers:
            self._waiting = (layer, ids)
        else:
            super().chosen(layer, experts, ids)

    def computed(self, name: bytes, address: int) -> None:
        """The final weights are there: leave out, and read what is left."""
        if self._waiting is None:
            return
        (layer, ids), self._waiting = self._waiting, None
        experts = _experts(ids)
        n_positions, n_used = experts.shape
        assert self.options.drop_below is not None
        n_dropped = leave_out_cold(
            experts,
            _weights(address, n_positions, n_used),
            lambda expert: self.store.holds(layer, expert),
            self.options.drop_below,
        )
        self._reads = evolve(
            self._reads,
            n_routed=self._reads.n_routed + n_positions * n_used,
            n_dropped=self._reads.n_dropped + n_dropped,
        )
        super().chosen(layer, np.unique(experts).tolist(), ids)

    def multiplies(self, weights: int, ids: int) -> None:
        """The weights of this layer that were seen last are final."""
        super().multiplies(weights, ids)
        layer, is_streamed = self._bound[weights]
        if is_streamed and layer not in self._final:
            if layer not in self._last_seen:
                raise StreamingUnsupportedError(
                    f"layer {layer} shows no weights of its experts, so none can be left out: "
                    "leave --drop-cold-experts out"
                )
            self._final[layer] = self._last_seen[layer]


def _experts(address: int) -> npt.NDArray[np.int32]:
    """The memory of a choice, (n_positions, n_used); its rows may lie apart."""
    tensor = Tensor.from_address(address)
    n_used, n_positions, stride = tensor.ne[0], tensor.ne[1], tensor.nb[1]
    memory = (ctypes.c_char * ((n_positions - 1) * stride + 4 * n_used)).from_address(tensor.data)
    experts: npt.NDArray[np.int32] = np.ndarray(
        (n_positions, n_used), np.int32, memory, strides=(stride, 4)
    )
    return experts


def _weights(address: int, n_positions: int, n_used: int) -> npt.NDArray[np.float32]:
    """The memory of the weights of a choice, which is contiguous, (n_positions, n_used)."""
    data = Tensor.from_address(address).data
    memory = (ctypes.c_float * (n_positions * n_used)).from_address(data)
    return np.ctypeslib.as_array(memory).reshape(n_positions, n_used)
