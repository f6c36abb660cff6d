"""Streams the experts of a model that llama.cpp has loaded: the part that knows llama.cpp.

A model's expert tensors are pointed at memory of our own, laid out as they are. Between the choice
of a layer's experts and the multiplications with them llama.cpp stops for the routing tap, and the
chosen experts that are not there yet are read to their places. Nothing that is multiplied with
differs from the file, so the result is that of the resident model, to the last bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field
from llama_cpp import llama_cpp

from bmoe_core.closing import Closing
from bmoe_core.errors import StreamingUnsupportedError
from bmoe_core.moe.lanes import Lanes
from bmoe_core.moe.mapping import MAPS, Mapped, drop_from_page_cache, find_mappings, let_go, warm
from bmoe_core.moe.options import StreamOptions
from bmoe_core.moe.store import ExpertStore
from bmoe_core.moe.table import ExpertTable, ExpertTensor
from bmoe_core.routing.cache import MIB, CacheSize
from bmoe_core.routing.ggml import Tensor
from bmoe_core.routing.records import NO_READS, Reads

if TYPE_CHECKING:
    from typing_extensions import Self


@define(eq=False)
class ExpertStream(Closing):
    """The streamed experts of one model; a stage of :class:`bmoe_core.routing.tap.RouterTap`.

    Open it before the model is loaded, load the model with its :meth:`prepare_model`, then
    :meth:`attach` it, and give every context over the model one tap with this as its stage.

    Attributes:
        table: the model's experts.
        store: those in memory.
        options: how they are streamed.
        cache_size: the memory for them, as resolved.
    """

    table: ExpertTable
    store: ExpertStore
    options: StreamOptions
    cache_size: CacheSize
    _model: Any = field(default=None, init=False)
    _mappings: list[list[Mapped]] = field(factory=list, init=False)
    _bound: dict[int, tuple[int, bool]] = field(factory=dict, init=False)
    """By the address of a weight tensor: its layer, and whether it is streamed."""
    _tensors: dict[str, tuple[int, ExpertTensor]] = field(init=False)
    """By name: a tensor's layer, and the tensor."""
    _staged: tuple[int, int] = field(default=(-1, 0), init=False)
    """The layer whose experts are in place, and the address of their choice."""
    _reads: Reads = field(default=NO_READS, init=False)

    def __attrs_post_init__(self) -> None:
        self._tensors = {
            tensor.place.name: (layer, tensor)
            for layer, tensors in self.table.layers.items()
            for tensor in tensors
        }

    @classmethod
    def open(cls, path: str | Path, options: StreamOptions, *, capacity: int | None = None) -> Self:
        """Open a model's files, and reserve address space for all of its experts.

        Args:
            path: the model; of a split one, its first part.
            options: how to stream.
            capacity: bytes of memory for experts, instead of the options' MiB.

        Raises:
            ModelFileError: a file cannot be read.
            StreamingUnsupportedError: the model has no routed experts, or the system no way to
                stream them.
            UsageError: the memory for experts is below the model's minimum.
        """
        _check_system()
        path = Path(path)
        table = ExpertTable.read(path)
        size = options.cache_size(path, table, capacity)
        lanes = Lanes(table.header.parts, options.n_lanes)
        try:
            store = ExpertStore(table, lanes, size.mib * MIB if capacity is None else capacity)
        except StreamingUnsupportedError:
            lanes.close()
            raise
        return cls(table, store, options, size)

    @property
    def facts(self) -> dict[str, object]:
        """How the experts are streamed, as resolved."""
        return {
            "moe_stream": 1,
            "cache": self.cache_size,
            "expert_mib": f"{self.table.total_bytes / MIB:.1f}",
            "dense_mib": f"{self.table.dense_bytes / MIB:.1f}",
            "io_threads": self.options.n_lanes,
            "direct_io": int(self.store.lanes.is_direct),
            "dense_weights": self.options.dense_weights,
            "drop_cold_experts": self.options.drop_below or "",
        }

    def prepare_model(self, model_params: Any) -> None:
        """Have llama.cpp map the file and compute with it as it is.

        Weights that it repacks for its faster kernels are in another order than in the file.
        """
        model_params.use_extra_bufts = False
        model_params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
        model_params.n_gpu_layers = 0

    def attach(self, model: Any) -> None:
        """Give the mapped experts of a loaded model back to the kernel.

        Args:
            model: the :class:`bmoe_core.LlamaModel`; its contexts need the tap from here on.

        Raises:
            StreamingUnsupportedError: the model was loaded from other files, or not mapped.
        """
        self._mappings = [
            find_mappings(path, *self.store.lanes.identity(part))
            for part, path in enumerate(self.table.header.parts)
        ]
        for part, path in enumerate(self.table.header.parts):
            if not self._mappings[part]:
                raise StreamingUnsupportedError(
                    f"{path} is not what llama.cpp has mapped: it was replaced during the load, "
                    "or the model was not prepared for streaming. Start the run again"
                )
            experts = [
                (tensor.place.offset, tensor.place.offset + tensor.place.n_bytes)
                for tensor in self.table.tensors()
                if tensor.place.part == part
            ]
            let_go(self._mappings[part], experts)
            if self.store.lanes.is_direct:
                drop_from_page_cache(path, experts)
            if self.options.dense_weights == "warm":
                dense = [place for place in self.table.dense() if place.part == part]
                spans = ((place.offset, place.offset + place.n_bytes) for place in dense)
                warm(self._mappings[part], spans)
        self._model = model
        model.streamed_by = self

    def chosen(self, layer: int, experts: Sequence[int], ids: int) -> None:
        """Read what is missing of the chosen experts, before they are multiplied with.

        Args:
            layer: the layer.
            experts: the distinct experts of all positions, ascending.
            ids: address of the tensor that holds the choice.

        Raises:
            ExpertReadError: they cannot be read.
        """
        if layer in self.table.layers:
            self._reads += self.store.stage(layer, experts)
            self._staged = (layer, ids)

    def multiplies(self, weights: int, ids: int) -> None:
        """A multiplication with experts comes: see to it that it finds them.

        Args:
            weights: address of the tensor that holds a matrix of every expert.
            ids: address of the tensor that holds the choice.

        Raises:
            StreamingUnsupportedError: with these weights, or this choice, it would not.
        """
        if weights not in self._bound:
            self._bound[weights] = self._bind(weights)
        layer, is_streamed = self._bound[weights]
        if is_streamed and self._staged != (layer, ids):
            raise StreamingUnsupportedError(
                f"layer {layer} multiplies with other experts than its router chose, and bmoe "
                "cannot stream such a model: leave --moe-stream out"
            )

    def _bind(self, address: int) -> tuple[int, bool]:
        """Point a weight tensor at the memory that its experts are read into."""
        weights = Tensor.from_address(address)
        known = self._tensors.get(weights.name.decode())
        if known is None:
            return -1, False
        layer, tensor = known
        place = tensor.place
        mapped = {mapping.address_of(place.offset) for mapping in self._mappings[place.part]}
        if (weights.ne[2], weights.nb[2]) != (tensor.n_expert, tensor.slice_bytes) or (
            weights.data not in mapped
        ):
            raise StreamingUnsupportedError(
                f"llama.cpp does not hold {place.name} as the file has it, and bmoe cannot stream "
                "such a model: leave --moe-stream out"
            )
        weights.data = self.store.regions[place.name].address
        return layer, True

    def wants(self, name: bytes) -> bool:
        """Whether to be told when this node of routed experts has been computed: never."""
        return False

    def computed(self, name: bytes, address: int) -> None:
        """A node that was wanted has been computed."""

    def prompt_ended(self) -> None:
        """What is decoded from here on is the answer."""

    def take_reads(self) -> Reads:
        """What was read since the last call of this."""
        reads, self._reads = self._reads, NO_READS
        return reads

    def close(self) -> None:
        """Close the model, which computes with this memory, return it and close the files."""
        if self._model is not None:
            self._model.close()
            self._model = None
        self.store.close()


def _check_system() -> None:
    missing = None
    if llama_cpp.llama_supports_gpu_offload():
        missing = "this llama.cpp computes on a GPU, and experts are streamed for a CPU alone"
    elif not MAPS.exists() or not hasattr(ctypes.CDLL(None), "madvise"):
        missing = "experts are streamed on Linux alone"
    if missing is not None:
        raise StreamingUnsupportedError(f"{missing}: leave --moe-stream out")
