"""Which tensors of a model are routed experts, and where each expert's bytes are."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from bmoe_core.errors import StreamingUnsupportedError
from bmoe_core.moe.gguf import GgufHeader, TensorPlace, read_header

EXPERT_TENSOR = re.compile(r"blk\.(\d+)\..*_exps\.weight")
PAGE = mmap.PAGESIZE


def page_floor(position: int) -> int:
    """The start of the page that holds a byte."""
    return position - position % PAGE


def page_ceil(position: int) -> int:
    """The first start of a page at or after a byte."""
    return page_floor(position + PAGE - 1)


@frozen
class ExpertTensor:
    """One matrix of every expert of a layer, stored one expert after the other.

    Attributes:
        place: the tensor in the file.
        n_expert: how many experts it holds.
        slice_bytes: bytes of one expert's matrix.
    """

    place: TensorPlace
    n_expert: int
    slice_bytes: int

    def span(self, expert: int) -> tuple[int, int]:
        """The first byte of an expert in the file, and the one after its last."""
        start = self.place.offset + expert * self.slice_bytes
        return start, start + self.slice_bytes

    def paged_bytes(self, expert: int) -> int:
        """Bytes of the pages of the file that hold a part of an expert."""
        start, end = self.span(expert)
        return page_ceil(end) - page_floor(start)


@frozen
class ExpertTable:
    """The routed experts of a model.

    Attributes:
        header: the model's files and tensors.
        layers: the expert tensors of each layer that has them.
    """

    header: GgufHeader
    layers: dict[int, tuple[ExpertTensor, ...]]

    @classmethod
    def read(cls, path: Path) -> ExpertTable:
        """Read it from a model's header.

        Raises:
            ModelFileError: the header cannot be read.
            StreamingUnsupportedError: the model has no routed experts.
        """
        header = read_header(path)
        layers: dict[int, tuple[ExpertTensor, ...]] = {}
        for place in header.tensors:
            found = EXPERT_TENSOR.fullmatch(place.name)
            if found is None or len(place.shape) != 3:
                continue
            n_expert = place.shape[2]
            tensor = ExpertTensor(place, n_expert, place.n_bytes // n_expert)
            layer = int(found[1])
            layers[layer] = (*layers.get(layer, ()), tensor)
        if not layers:
            raise StreamingUnsupportedError(
                f"{path} has no routed experts to stream: leave --moe-stream out, and llama.cpp "
                "maps the model as it is"
            )
        return cls(header, layers)

    def held_bytes(self, layer: int, expert: int) -> int:
        """Memory that one expert of a layer takes: whole pages, as the kernel gives them."""
        return sum(tensor.paged_bytes(expert) for tensor in self.layers[layer])

    @property
    def total_bytes(self) -> int:
        """Memory that all experts take."""
        return sum(self._layer_bytes(layer) for layer in self.layers)

    @property
    def minimum_bytes(self) -> int:
        """Memory of the largest layer: a long batch needs all experts of a layer at once."""
        return max(self._layer_bytes(layer) for layer in self.layers)

    @property
    def dense_bytes(self) -> int:
        """Bytes of all other tensors."""
        expert_bytes = sum(tensor.place.n_bytes for tensor in self.tensors())
        return sum(place.n_bytes for place in self.header.tensors) - expert_bytes

    def _layer_bytes(self, layer: int) -> int:
        n_expert = max(tensor.n_expert for tensor in self.layers[layer])
        return sum(self.held_bytes(layer, expert) for expert in range(n_expert))

    def tensors(self) -> Iterator[ExpertTensor]:
        """Every expert tensor, in the order of the layers."""
        for layer in sorted(self.layers):
            yield from self.layers[layer]

    def dense(self) -> list[TensorPlace]:
        """Every other tensor, in the order of the files."""
        experts = {tensor.place.name for tensor in self.tensors()}
        return [place for place in self.header.tensors if place.name not in experts]
