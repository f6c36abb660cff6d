"""Make a model heavier without changing it.

A small model decodes in well under a millisecond, nearly all of it overhead, so drafting with it
cannot win or lose time the way it does on a model worth running. `add_ballast` writes a copy with
extra trunk layers that are computed in full and add exactly zero: every projection back into the
residual stream is zero. Logits, head and acceptance stay what they were; a decode costs more.

    python -m bmoe_core.models.ballast IN.gguf OUT.gguf --layers 60
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# Where a layer writes into the residual stream, for attention, recurrent, dense and MoE layers.
OUTPUT_PROJECTIONS = ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")


class BallastError(ValueError):
    """The file cannot be extended; the message says why."""


class _Layers:
    """What the file says about its layers, and which one each new layer is copied from."""

    def __init__(self, reader: gguf.GGUFReader, n_extra: int) -> None:
        self.arch = str(_value(reader, "general.architecture"))
        self.n_blocks = int(_value(reader, f"{self.arch}.block_count"))
        self.n_nextn = int(_value(reader, f"{self.arch}.nextn_predict_layers", 0))
        self.n_extra = n_extra
        self.n_trunk = self.n_blocks - self.n_nextn
        self.interval = int(_value(reader, f"{self.arch}.full_attention_interval", 0))
        names = {tensor.name for tensor in reader.tensors}
        self.recurrent = [f"blk.{i}.ssm_out.weight" in names for i in range(self.n_trunk)]
        self.donors = [self._donor(self.n_trunk + i) for i in range(n_extra)]

    def _donor(self, layer: int) -> int:
        """A trunk layer of the kind that the loader will expect at this index."""
        if not any(self.recurrent):
            return layer % self.n_trunk
        if not self.interval:
            raise BallastError(f"no {self.arch}.full_attention_interval to continue")
        wanted = (layer + 1) % self.interval != 0
        same = [i for i, recurrent in enumerate(self.recurrent) if recurrent == wanted]
        if not same:
            raise BallastError(f"layer {layer} would be of a kind that no present layer has")
        return same[layer % len(same)]

    def order(self) -> Iterator[tuple[int, int, bool]]:
        """(new index, index it is copied from, is it ballast), nextn blocks last."""
        for i in range(self.n_trunk):
            yield i, i, False
        for i, donor in enumerate(self.donors):
            yield self.n_trunk + i, donor, True
        for i in range(self.n_trunk, self.n_blocks):
            yield i + self.n_extra, i, False


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    if field is not None:
        return field.contents()
    if default is None:
        raise BallastError(f"the file has no {key}")
    return default


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, layers: _Layers) -> None:
    """Every key as it is, but for the layer count and arrays with one entry a layer."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        value: Any = field.contents()
        if field.name == f"{layers.arch}.block_count":
            value = layers.n_blocks + layers.n_extra
        elif field.name == gguf.Keys.General.NAME:
            value = f"{value} with {layers.n_extra} no-op layers"
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        if is_array and field.name.startswith(f"{layers.arch}.") and len(value) == layers.n_blocks:
            value = [value[source] for _, source, _ in layers.order()]
        item = field.types[-1] if is_array else None
        writer.add_key_value(field.name, value, field.types[0], item)


def _copy_tensors(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, layers: _Layers) -> None:
    """Tensors outside the blocks first, then block by block; ballast writes zero."""
    blocks: dict[int, list[tuple[str, gguf.ReaderTensor]]] = {}
    for tensor in reader.tensors:
        prefix, _, rest = tensor.name.partition(".")
        if prefix == "blk":
            old_index, _, leaf = rest.partition(".")
            blocks.setdefault(int(old_index), []).append((leaf, tensor))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for index, source, is_ballast in layers.order():
        for leaf, tensor in blocks[source]:
            silent = is_ballast and leaf.partition(".")[0] in OUTPUT_PROJECTIONS
            # All-zero bytes are zero weights in the float and in the block-quantised types alike.
            data = np.zeros_like(tensor.data) if silent else tensor.data
            writer.add_tensor(f"blk.{index}.{leaf}", data, raw_dtype=tensor.tensor_type)


def add_ballast(source: Path, out: Path, n_layers: int) -> None:
    """Write `source` with `n_layers` no-op trunk layers to `out`, replacing it atomically.

    The new layers stand after the trunk and before the MTP block, which stays last. Each is a copy
    of an earlier layer of the kind (recurrent or attention) that the model's pattern asks for at
    its place, routers and experts included, so a decode reads as many bytes as a real layer's.
    """
    if n_layers < 1:
        raise BallastError(f"the number of layers must be at least 1, not {n_layers}")
    reader = gguf.GGUFReader(str(source))
    layers = _Layers(reader, n_layers)
    partial = out.with_name(out.name + ".partial")
    writer = gguf.GGUFWriter(partial, layers.arch)
    try:
        _copy_metadata(reader, writer, layers)
        _copy_tensors(reader, writer, layers)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; exits with status 2 and a line where the file cannot be extended."""
    parser = argparse.ArgumentParser(
        prog="python -m bmoe_core.models.ballast", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--layers", type=int, required=True, help="no-op layers to add")
    args = parser.parse_args(argv)
    try:
        add_ballast(args.source, args.out, args.layers)
    except (BallastError, OSError) as error:
        parser.exit(2, f"ballast: {error}\n")
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
