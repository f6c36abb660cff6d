"""Make a model's experts wider without changing what it computes.

Streaming is about experts that are large, and the demo model's are not. `widen_experts` writes a
copy whose experts have several times the hidden width: more rows to compute and to read, whose part
in the sum is zero. Routing, head and acceptance stay what they were; an expert costs more.

    python -m bmoe_core.models.widen IN.gguf OUT.gguf --times 32
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

FLOATS = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
INNER = ("ffn_gate_exps", "ffn_up_exps")
OUTPUT = "ffn_down_exps"


class WidenError(ValueError):
    """The file's experts cannot be widened; the message says why."""


def widen_experts(source: Path, out: Path, times: int) -> None:
    """Write `source` with experts of `times` their width to `out`, replacing it atomically.

    The new rows of gate and up repeat the old ones, and the new columns of down are zero.

    Raises:
        WidenError: there are no experts, or they are not f32 or f16, or gate and up are fused.
    """
    if times < 1:
        raise WidenError(f"experts can be made 1 or more times as wide, not {times}")
    reader = gguf.GGUFReader(str(source))
    field = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    architecture = str(field.contents()) if field is not None else ""
    width_key = f"{architecture}.expert_feed_forward_length"
    if reader.get_field(width_key) is None:
        raise WidenError("the file says nothing of the width of experts: is it a dense model?")
    partial = out.with_name(out.name + ".partial")
    writer = gguf.GGUFWriter(partial, architecture)
    try:
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
                continue
            value = field.contents()
            if field.name == width_key:
                value = int(value) * times
            item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, field.types[0], item)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, _widened(tensor, times), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def _widened(tensor: gguf.ReaderTensor, times: int) -> npt.NDArray[np.generic]:
    leaf = tensor.name.removesuffix(".weight").rpartition(".")[2]
    data: npt.NDArray[np.generic] = tensor.data
    if not leaf.endswith("_exps"):
        return data
    if leaf not in (*INNER, OUTPUT) or tensor.tensor_type not in FLOATS:
        raise WidenError(f"{tensor.name} is not one of gate, up and down, in f32 or f16")
    if leaf in INNER:
        return np.tile(data, (1, times, 1))
    return np.concatenate(
        [data, np.zeros((*data.shape[:2], data.shape[2] * (times - 1)), data.dtype)], axis=2
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; exits with status 2 and a line where the file cannot be widened."""
    parser = argparse.ArgumentParser(
        prog="python -m bmoe_core.models.widen", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--times", type=int, required=True, help="times the width of experts")
    arguments = parser.parse_args(argv)
    try:
        widen_experts(arguments.source, arguments.out, arguments.times)
    except (WidenError, OSError) as error:
        parser.exit(2, f"widen: {error}\n")
    print(f"{arguments.out}: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
