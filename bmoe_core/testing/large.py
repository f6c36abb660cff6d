"""A mixture-of-experts model of any size with random weights, for measuring what size costs.

It answers nonsense. It is written a tensor at a time, so that it may be larger than memory.

    python -m bmoe_core.testing.large OUT.gguf --gib 6 --experts 64 --used 4 --type Q4_0
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from bmoe_core.testing.models import N_VOCAB, add_byte_tokenizer

HEAD_DIM = 64
N_CTX_TRAIN = 4096
Bytes = npt.NDArray[np.uint8]


@frozen
class Shape:
    """The extents of a model.

    Attributes:
        n_embd: width of its rows; with ``n_ff`` a multiple of 64.
        n_ff: width of an expert.
        n_expert: routed experts a layer.
        n_used: of them, those that a token is routed to.
        weights: how matrices are stored: ``F16``, ``Q8_0`` or ``Q4_0``.
    """

    n_embd: int = 2048
    n_ff: int = 1024
    n_expert: int = 64
    n_used: int = 4
    weights: str = "Q4_0"

    @property
    def kind(self) -> gguf.GGMLQuantizationType:
        """The type of the matrices."""
        return gguf.GGMLQuantizationType[self.weights]

    @property
    def layer_bytes(self) -> int:
        """Bytes of the experts of a layer."""
        n_weights, n_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        return 3 * self.n_expert * self.n_embd * self.n_ff // n_weights * n_bytes

    def tensors(self, n_layer: int) -> dict[str, tuple[int, ...]]:
        """Every tensor by name, with its extents as numpy has them."""
        embd, expert = self.n_embd, (self.n_expert, self.n_ff, self.n_embd)
        tensors: dict[str, tuple[int, ...]] = {
            "token_embd": (N_VOCAB, embd),
            "output_norm": (embd,),
            "output": (N_VOCAB, embd),
        }
        for i in range(n_layer):
            layer: dict[str, tuple[int, ...]] = {
                "attn_norm": (embd,),
                "attn_q_norm": (HEAD_DIM,),
                "attn_k_norm": (HEAD_DIM,),
                **{f"attn_{name}": (embd, embd) for name in ("q", "k", "v", "output")},
                "ffn_norm": (embd,),
                "ffn_gate_inp": (self.n_expert, embd),
                "ffn_gate_exps": expert,
                "ffn_up_exps": expert,
                "ffn_down_exps": (self.n_expert, self.n_embd, self.n_ff),
            }
            tensors |= {f"blk.{i}.{name}": extents for name, extents in layer.items()}
        return tensors


@define
class _Random:
    """Random tensors as they are stored."""

    shape: Shape
    _generator: np.random.Generator = field(factory=lambda: np.random.default_rng(0))

    def kind(self, name: str) -> gguf.GGMLQuantizationType:
        """How a tensor is stored: norms and routers in f32."""
        plain = name.endswith(("norm", "gate_inp"))
        return gguf.GGMLQuantizationType.F32 if plain else self.shape.kind

    def tensor(self, name: str, extents: tuple[int, ...]) -> npt.NDArray[Any]:
        """A norm of ones, or a matrix whose products keep the size of what they are fed."""
        if name.endswith("norm"):
            return np.ones(extents, np.float32)
        # What a layer adds is about as large as a row of the embedding, so that tokens differ
        # also in what the last routers are fed.
        scale = 1.0 if name == "token_embd" else extents[-1] ** -0.5
        kind = self.kind(name)
        if kind == gguf.GGMLQuantizationType.F32:
            router = self._generator.standard_normal(extents, np.float32)
            router *= np.float32(4 * scale)
            return router
        if kind == gguf.GGMLQuantizationType.F16:
            even = self._generator.random(extents, np.float32)
            even -= np.float32(0.5)
            even *= np.float32(12**0.5 * scale)
            return even.astype(np.float16)
        return self._blocks(kind, extents, scale)

    def _blocks(
        self, kind: gguf.GGMLQuantizationType, extents: tuple[int, ...], scale: float
    ) -> Bytes:
        """Blocks of one f16 scale and of numbers that are equally likely.

        The least number has no counterpart above zero, so that a block's mean is not zero: the
        sign of the scale is random, or all rows would be alike and choose the same experts.
        """
        n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_levels = 2 ** (8 * (n_bytes - 2) // n_weights)
        row_bytes = extents[-1] // n_weights * n_bytes
        blocks = self._generator.integers(
            0, 256, (*extents[:-1], row_bytes // n_bytes, n_bytes), np.uint8
        )
        # The deviation of numbers that are equally likely is their range by the root of 12.
        step = np.array([scale * 12**0.5 / n_levels], np.float16)
        signs = blocks[..., 1] & 0x80
        blocks[..., :2] = step.view(np.uint8)
        blocks[..., 1] |= signs
        return blocks.reshape(*extents[:-1], row_bytes)


def write_large_moe(path: Path, shape: Shape, n_layer: int) -> None:
    """Write a ``qwen3moe`` with random weights.

    Args:
        path: the file, replaced where it is there.
        shape: its extents.
        n_layer: its layers, of :attr:`Shape.layer_bytes` of experts each.
    """
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name(f"random {n_layer} layers of {shape.n_expert} experts")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(n_layer)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_head_count(shape.n_embd // HEAD_DIM)
    writer.add_head_count_kv(shape.n_embd // HEAD_DIM)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_used)
    writer.add_expert_feed_forward_length(shape.n_ff)
    add_byte_tokenizer(writer)
    random = _Random(shape)
    tensors = shape.tensors(n_layer)
    for name, extents in tensors.items():
        kind = random.kind(name)
        n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(extents)) // n_weights * n_bytes
        # The extents of what is stored as bytes are those of the bytes.
        stored = extents
        if n_weights > 1:
            stored = (*extents[:-1], extents[-1] // n_weights * n_bytes)
        dtype = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
        writer.add_tensor_info(f"{name}.weight", stored, np.dtype(dtype), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, extents in tensors.items():
        writer.write_tensor_data(random.tensor(name, extents))
    writer.close()


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bmoe_core.testing.large", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--gib", type=float, required=True, help="GiB of experts, about")
    parser.add_argument("--experts", type=int, default=64, help="experts a layer (default 64)")
    parser.add_argument("--used", type=int, default=4, help="experts a token (default 4)")
    parser.add_argument("--embd", type=int, default=2048, help="width (default 2048)")
    parser.add_argument("--ff", type=int, default=1024, help="width of an expert (default 1024)")
    parser.add_argument("--type", choices=("F16", "Q8_0", "Q4_0"), default="Q4_0")
    arguments = parser.parse_args(argv)
    if not 0 < arguments.used <= arguments.experts:
        parser.exit(2, "large: --used may be 1 to --experts\n")
    if arguments.embd % HEAD_DIM or arguments.ff % HEAD_DIM:
        parser.exit(2, f"large: --embd and --ff have to be multiples of {HEAD_DIM}\n")
    shape = Shape(arguments.embd, arguments.ff, arguments.experts, arguments.used, arguments.type)
    n_layer = max(1, round(arguments.gib * 2**30 / shape.layer_bytes))
    write_large_moe(arguments.out, shape, n_layer)
    print(f"{arguments.out}: {n_layer} layers, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
