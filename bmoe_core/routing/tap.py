"""Reads the router's choices while llama.cpp decodes.

llama.cpp lets a callback see each node of a graph, once before it is computed and, for those that
the callback asks for, once after. A graph's routed layers have a node ``ffn_moe_topk-<layer>``, the
chosen experts of each position (``build_moe_ffn`` in ``src/llama-graph.cpp``), and after it the
multiplications with the experts, whose weights say how large an expert is.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from attrs import define
from llama_cpp import llama_cpp

from bmoe_core.errors import BmoeError, DecodeError, UsageError, summarize
from bmoe_core.routing.ggml import NAME_OFFSET, OP_OFFSET, SRC_OFFSET, Library, Tensor
from bmoe_core.routing.records import DecodeRouting, ExpertLayer, LayerRouting, Reads

TOPK_PREFIX = b"ffn_moe_topk-"
# What the names of the nodes of routed experts begin with, as the number in their first 8 bytes.
_MOE_NODE = int.from_bytes(b"ffn_moe_", sys.byteorder)
EXPERT_WEIGHT = re.compile(rb"blk\.(\d+)\..*_exps\.weight")

# The tensor as an address: ctypes would make an object of a typed pointer at every node.
_EvalCallback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


IDS_OFFSET = SRC_OFFSET + 2 * ctypes.sizeof(ctypes.c_void_p)
"""Of a multiplication with experts, the tensor that says which."""


class ExpertStage(Protocol):
    """Puts experts in place between their choice and the multiplications with them.

    Tensors are given by their addresses. An exception ends the decode.
    """

    def chosen(self, layer: int, experts: Sequence[int], ids: int) -> None:
        """The distinct ``experts`` of ``layer``, ascending, chosen in the tensor ``ids``."""

    def multiplies(self, weights: int, ids: int) -> None:
        """``weights`` are to be multiplied with, those that ``ids`` names; nothing has been yet."""

    def wants(self, name: bytes) -> bool:
        """Whether :meth:`computed` is to be called once the node of this name has been."""

    def computed(self, name: bytes, address: int) -> None:
        """A node that was wanted holds its values, and nothing has read them yet."""

    def prompt_ended(self) -> None:
        """What is decoded from here on is the answer."""

    def take_reads(self) -> Reads:
        """What was read since the last call of this."""


@define
class _OpenDecode:
    """The decode that is being computed."""

    by_target: bool
    n_tokens: int
    layers: list[LayerRouting]


class RouterTap:
    """Collects the routing of every decode of the contexts that its callback is set on.

    Attributes:
        layers: the routed layers that have been computed so far, by their index.
    """

    def __init__(self, stage: ExpertStage | None = None) -> None:
        """Make the callback; :meth:`install` sets it.

        Args:
            stage: told of each choice before it is acted on; None: the experts are in memory.

        Raises:
            RoutingUnsupportedError: ggml's tensors cannot be read with this llama-cpp-python.
        """
        self.layers: dict[int, ExpertLayer] = {}
        self.stage = stage
        self._library = Library()
        self._weights: dict[bytes, tuple[int, int, int]] = {}
        self._known: set[int] = set()
        self._decodes: list[DecodeRouting] = []
        self._open: _OpenDecode | None = None
        self._target_decodes = False
        self._error: BaseException | None = None
        self._callback = _EvalCallback(self._on_node)

    def install(self, context_params: Any) -> None:
        """Set the callback in ``llama_context_params``.

        Raises:
            UsageError: a callback is set already.
        """
        if context_params.cb_eval:
            raise UsageError(
                "the routing cannot be read: the draft source has set an evaluation callback of "
                "its own, and llama.cpp takes one; leave --routing, --cache-mb and --moe-stream out"
            )
        callback_type = llama_cpp.ggml_backend_sched_eval_callback
        context_params.cb_eval = ctypes.cast(self._callback, callback_type)

    @contextlib.contextmanager
    def target_decode(self) -> Iterator[None]:
        """What is routed meanwhile is the target's; all else is the draft source's own.

        Raises:
            DecodeError: the routing of the decode could not be read, so its result is in doubt.
            BmoeError: the stage raised it, in this decode or in one of the source's before it.
        """
        self._close()
        self._raise_kept()
        self._target_decodes = True
        try:
            yield
        finally:
            self._close()
            self._target_decodes = False
        self._raise_kept()

    def _raise_kept(self) -> None:
        error, self._error = self._error, None
        if isinstance(error, (KeyboardInterrupt, BmoeError)):
            raise error
        if error is not None:
            raise DecodeError(f"the routing could not be read: {summarize(error)}") from error

    def take(self) -> list[DecodeRouting]:
        """The decodes since the last call of this, in the order in which they ran."""
        self._close()
        decodes, self._decodes = self._decodes, []
        return decodes

    def _on_node(self, address: int, ask: bool, _user_data: Any) -> bool:
        # An exception cannot pass through llama.cpp: it is kept for the end of the decode.
        try:
            # Every node of a graph comes here, so nearly all of the tap's cost is in this line.
            if ctypes.c_uint64.from_address(address + NAME_OFFSET).value != _MOE_NODE:
                return False
            name = ctypes.string_at(address + NAME_OFFSET)
            if name.startswith(TOPK_PREFIX):
                if not ask:
                    self._note_choice(address)
                return True
            if self.stage is not None and not ask:
                self.stage.computed(name, address)
                return True
            if ctypes.c_int.from_address(address + OP_OFFSET).value == self._library.mul_mat_id:
                self._note_multiplication(address)
            return self.stage is not None and self.stage.wants(name)
        except BaseException as error:
            self._error = self._error or error
        return False

    def _note_choice(self, address: int) -> None:
        name = ctypes.string_at(address + NAME_OFFSET)
        layer = int(name[len(TOPK_PREFIX) :])
        chosen = self._library.read_int32(address)
        # A layer that comes again, or an earlier one, belongs to a new decode.
        if self._open is not None and self._open.layers and layer <= self._open.layers[-1].layer:
            self._close()
        if self._open is None:
            self._open = _OpenDecode(self._target_decodes, len(chosen), [])
        distinct = tuple(sorted({expert for row in chosen for expert in row}))
        self._open.layers.append(LayerRouting(layer, distinct, len(chosen[0])))
        if self.stage is not None:
            self.stage.chosen(layer, distinct, address)

    def _note_multiplication(self, address: int) -> None:
        weights = ctypes.c_void_p.from_address(address + SRC_OFFSET).value
        if weights is None:
            return
        if weights not in self._known:
            self._note_weights(weights)
        if self.stage is not None:
            ids = ctypes.c_void_p.from_address(address + IDS_OFFSET).value
            self.stage.multiplies(weights, ids or 0)

    def _note_weights(self, address: int) -> None:
        """Learn the size of a layer's experts from one of its weight tensors."""
        self._known.add(address)
        tensor = Tensor.from_address(address)
        found = EXPERT_WEIGHT.fullmatch(tensor.name)
        if found is None or tensor.name in self._weights:
            return
        layer = int(found[1])
        self._weights[tensor.name] = (layer, tensor.ne[2], tensor.nb[2])
        ours = [weight for weight in self._weights.values() if weight[0] == layer]
        self.layers[layer] = ExpertLayer(
            n_expert=ours[0][1], expert_bytes=sum(size for _, _, size in ours)
        )

    def _close(self) -> None:
        if self._open is not None:
            self._decodes.append(
                DecodeRouting(
                    by_target=self._open.by_target,
                    n_tokens=self._open.n_tokens,
                    layers=tuple(self._open.layers),
                    reads=None if self.stage is None else self.stage.take_reads(),
                )
            )
            self._open = None
