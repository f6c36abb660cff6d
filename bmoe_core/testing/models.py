"""Small GGUF models with random weights, one for each kind of memory that a target can have.

They answer nonsense, deterministically, in a fraction of a millisecond a token. Their vocabulary
is the 256 bytes and an end-of-text token. Weights are f32, so that a batch and single decodes
differ by rounding alone; the output is scaled up to keep the choices far apart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD = 32
N_FF = 64
N_LAYER = 2
N_HEAD, N_HEAD_KV, HEAD_DIM = 2, 1, 16
N_EXPERT, N_EXPERT_USED, N_FF_EXPERT = 4, 2, 16
N_VOCAB = 257
END_OF_TEXT = 256
N_CTX_TRAIN = 1024
SLIDING_WINDOW = 16
SSM_CONV, SSM_STATE, SSM_V_HEADS, SSM_K_HEADS = 4, 16, 2, 1


class _Model:
    """A GGUF file in the making, with random tensors by llama.cpp's names."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        seed: int,
        n_layer: int = N_LAYER,
        *,
        tokenizer: bool = True,
        n_vocab: int = N_VOCAB,
    ) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self._random = np.random.default_rng(seed)
        writer = self.writer
        writer.add_name(f"random {architecture}")
        writer.add_context_length(N_CTX_TRAIN)
        writer.add_embedding_length(N_EMBD)
        writer.add_block_count(n_layer)
        writer.add_layer_norm_rms_eps(1e-6)
        if tokenizer:
            _add_byte_tokenizer(writer, n_vocab)
        else:
            writer.add_tokenizer_model("none")
            writer.add_vocab_size(n_vocab)
        self.weight("token_embd", n_vocab, N_EMBD)
        self.ones("output_norm", N_EMBD)
        # Far apart logits: a near tie may fall either way between a batch and single decodes.
        self.weight("output", n_vocab, N_EMBD, scale=8.0)

    def weight(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """A random matrix; rows and columns as numpy has them, the reverse of llama.cpp's."""
        self.tensor(f"{name}.weight", self.random(*shape, scale=scale))

    def random(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Values as large as a matrix of this shape wants them."""
        values: np.ndarray = self._random.standard_normal(shape) * scale / np.sqrt(shape[-1])
        return values

    def ones(self, name: str, *shape: int) -> None:
        """A norm's weight."""
        self.tensor(f"{name}.weight", np.ones(shape))

    def tensor(self, name: str, values: np.ndarray) -> None:
        """A tensor by its whole name."""
        self.writer.add_tensor(name, values.astype(np.float32))

    def finish(self) -> None:
        """Write the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def attention(self, block: str, *, gated: bool = False, norms: bool = True) -> None:
        """Queries, keys, values, output; ``gated`` as Qwen 3.5 has them."""
        self.weight(f"{block}.attn_q", N_HEAD * HEAD_DIM * (2 if gated else 1), N_EMBD)
        self.weight(f"{block}.attn_k", N_HEAD_KV * HEAD_DIM, N_EMBD)
        self.weight(f"{block}.attn_v", N_HEAD_KV * HEAD_DIM, N_EMBD)
        self.weight(f"{block}.attn_output", N_EMBD, N_HEAD * HEAD_DIM)
        if norms:
            self.ones(f"{block}.attn_q_norm", HEAD_DIM)
            self.ones(f"{block}.attn_k_norm", HEAD_DIM)

    def feed_forward(self, block: str) -> None:
        """A dense gated feed-forward layer."""
        self.weight(f"{block}.ffn_gate", N_FF, N_EMBD)
        self.weight(f"{block}.ffn_up", N_FF, N_EMBD)
        self.weight(f"{block}.ffn_down", N_EMBD, N_FF)

    def experts(self, block: str, *, shared: bool = False, fused: bool = False) -> None:
        """A router and its experts, and a shared expert where asked for.

        ``fused``: gate and up in one tensor, gate first, with the values that they have apart.
        """
        self.weight(f"{block}.ffn_gate_inp", N_EXPERT, N_EMBD, scale=4.0)
        gate = self.random(N_EXPERT, N_FF_EXPERT, N_EMBD)
        up = self.random(N_EXPERT, N_FF_EXPERT, N_EMBD)
        if fused:
            self.tensor(f"{block}.ffn_gate_up_exps.weight", np.concatenate([gate, up], axis=1))
        else:
            self.tensor(f"{block}.ffn_gate_exps.weight", gate)
            self.tensor(f"{block}.ffn_up_exps.weight", up)
        self.weight(f"{block}.ffn_down_exps", N_EXPERT, N_EMBD, N_FF_EXPERT)
        if shared:
            self.weight(f"{block}.ffn_gate_inp_shexp", N_EMBD)
            self.weight(f"{block}.ffn_gate_shexp", N_FF_EXPERT, N_EMBD)
            self.weight(f"{block}.ffn_up_shexp", N_FF_EXPERT, N_EMBD)
            self.weight(f"{block}.ffn_down_shexp", N_EMBD, N_FF_EXPERT)

    def attention_metadata(self) -> None:
        """Head counts and sizes."""
        writer = self.writer
        writer.add_head_count(N_HEAD)
        writer.add_head_count_kv(N_HEAD_KV)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_rope_freq_base(10000.0)
        writer.add_feed_forward_length(N_FF)

    def expert_metadata(self) -> None:
        """Expert counts and sizes."""
        self.writer.add_expert_count(N_EXPERT)
        self.writer.add_expert_used_count(N_EXPERT_USED)
        self.writer.add_expert_feed_forward_length(N_FF_EXPERT)


def write_dense(
    path: Path, seed: int = 0, *, tokenizer: bool = True, n_vocab: int = N_VOCAB
) -> None:
    """A dense ``llama``: attention alone, any tail can be dropped.

    Beyond the bytes and the end-of-text token, ``n_vocab`` is filled up with words.
    """
    model = _Model(path, "llama", seed, tokenizer=tokenizer, n_vocab=n_vocab)
    model.attention_metadata()
    for i in range(N_LAYER):
        block = f"blk.{i}"
        model.ones(f"{block}.attn_norm", N_EMBD)
        model.attention(block, norms=False)
        model.ones(f"{block}.ffn_norm", N_EMBD)
        model.feed_forward(block)
    model.finish()


def write_moe(path: Path, seed: int = 0) -> None:
    """A ``qwen3moe``: attention and routed experts."""
    model = _Model(path, "qwen3moe", seed)
    model.attention_metadata()
    model.expert_metadata()
    for i in range(N_LAYER):
        block = f"blk.{i}"
        model.ones(f"{block}.attn_norm", N_EMBD)
        model.attention(block)
        model.ones(f"{block}.ffn_norm", N_EMBD)
        model.experts(block)
    model.finish()


def write_sliding_window(path: Path, seed: int = 0) -> None:
    """A ``gemma3``: all layers but every sixth see the last 16 positions only."""
    model = _Model(path, "gemma3", seed, n_layer=6)
    model.attention_metadata()
    model.writer.add_sliding_window(SLIDING_WINDOW)
    for i in range(6):
        block = f"blk.{i}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            model.ones(f"{block}.{norm}", N_EMBD)
        model.attention(block)
        model.feed_forward(block)
    model.finish()


def write_hybrid_moe(path: Path, seed: int = 0, *, fused: bool = False) -> None:
    """A ``qwen35moe`` of one recurrent and one attention layer, with a multi-token-prediction head.

    Its recurrent state can be taken back by llama.cpp's snapshots. ``fused``: the same model with
    the experts' gate and up matrices in one tensor.
    """
    model = _Model(path, "qwen35moe", seed, n_layer=N_LAYER + 1)
    model.attention_metadata()
    model.expert_metadata()
    writer = model.writer
    writer.add_expert_shared_feed_forward_length(N_FF_EXPERT)
    writer.add_rope_dimension_sections([3, 3, 2, 0])
    writer.add_full_attention_interval(N_LAYER)
    writer.add_nextn_predict_layers(1)
    writer.add_ssm_conv_kernel(SSM_CONV)
    writer.add_ssm_inner_size(SSM_V_HEADS * SSM_STATE)
    writer.add_ssm_state_size(SSM_STATE)
    writer.add_ssm_time_step_rank(SSM_V_HEADS)
    writer.add_ssm_group_count(SSM_K_HEADS)
    for i in range(N_LAYER + 1):
        block = f"blk.{i}"
        model.ones(f"{block}.attn_norm", N_EMBD)
        model.ones(f"{block}.post_attention_norm", N_EMBD)
        if (i + 1) % N_LAYER and i < N_LAYER:
            _delta_net(model, block)
        else:
            model.attention(block, gated=True)
        model.experts(block, shared=True, fused=fused)
    head = f"blk.{N_LAYER}.nextn"
    model.weight(f"{head}.eh_proj", N_EMBD, 2 * N_EMBD)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        model.ones(f"{head}.{norm}", N_EMBD)
    model.finish()


def _delta_net(model: _Model, block: str) -> None:
    n_value = SSM_V_HEADS * SSM_STATE
    n_conv = 2 * SSM_K_HEADS * SSM_STATE + n_value
    model.weight(f"{block}.attn_qkv", n_conv, N_EMBD)
    model.weight(f"{block}.attn_gate", n_value, N_EMBD)
    model.weight(f"{block}.ssm_conv1d", n_conv, SSM_CONV)
    model.tensor(f"{block}.ssm_dt.bias", np.zeros(SSM_V_HEADS))
    model.tensor(f"{block}.ssm_a", -np.linspace(0.1, 0.5, SSM_V_HEADS))
    model.weight(f"{block}.ssm_beta", SSM_V_HEADS, N_EMBD)
    model.weight(f"{block}.ssm_alpha", SSM_V_HEADS, N_EMBD)
    model.ones(f"{block}.ssm_norm", SSM_STATE)
    model.weight(f"{block}.ssm_out", N_EMBD, n_value)


def write_recurrent(path: Path, seed: int = 0) -> None:
    """A ``mamba``: recurrent, and llama.cpp keeps no snapshots for it."""
    n_inner, n_state, rank = 2 * N_EMBD, 8, 4
    model = _Model(path, "mamba", seed)
    writer = model.writer
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(SSM_CONV)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(rank)
    for i in range(N_LAYER):
        block = f"blk.{i}"
        model.ones(f"{block}.attn_norm", N_EMBD)
        model.weight(f"{block}.ssm_in", 2 * n_inner, N_EMBD)
        model.weight(f"{block}.ssm_conv1d", n_inner, SSM_CONV)
        model.tensor(f"{block}.ssm_conv1d.bias", np.zeros(n_inner))
        model.weight(f"{block}.ssm_x", rank + 2 * n_state, n_inner)
        model.weight(f"{block}.ssm_dt", n_inner, rank)
        model.tensor(f"{block}.ssm_dt.bias", np.full(n_inner, -2.0))
        model.tensor(f"{block}.ssm_a", -np.tile(np.arange(1.0, n_state + 1), (n_inner, 1)))
        model.tensor(f"{block}.ssm_d", np.ones(n_inner))
        model.weight(f"{block}.ssm_out", N_EMBD, n_inner)
    model.finish()


def f32_cache(context_params: Any) -> None:
    """For a target's ``prepare``: keys and values in f32, so that nothing is rounded to f16."""
    # GGML_TYPE_F32 of ggml.h; llama.cpp's default is f16.
    context_params.type_k = context_params.type_v = 0


def write_f32_copy(source: Path, out: Path) -> None:
    """The same model with its f16 weights as f32.

    On f16 a near tie of a router or of two tokens may fall either way between a batch and single
    decodes; equality of answers is a matter for f32.
    """

    def convert(data: np.ndarray) -> np.ndarray:
        return data.astype(np.float32) if data.dtype == np.float16 else data

    _write_copy(source, out, convert=convert)


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat as a dialogue, each message ended by the end-of-text token."""


def write_chat_copy(source: Path, out: Path, template: str = CHAT_TEMPLATE) -> None:
    """The same model with a chat template."""
    _write_copy(source, out, template=template)


def _write_copy(
    source: Path,
    out: Path,
    convert: Callable[[np.ndarray], np.ndarray] = lambda data: data,
    template: str | None = None,
) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], item)
    if template is not None:
        writer.add_chat_template(template)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, convert(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WRITERS: dict[str, Callable[..., None]] = {
    "dense": write_dense,
    "moe": write_moe,
    "sliding-window": write_sliding_window,
    "hybrid-moe": write_hybrid_moe,
    "recurrent": write_recurrent,
}
"""A writer for each kind: called with a path, and a seed."""


def _add_byte_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """The byte-level vocabulary of GPT-2 without merges: every byte is a token of its own."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = iter(range(0x100, 0x200))
    tokens = [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    words = [f"word{i}" for i in range(n_vocab - N_VOCAB)]
    writer.add_token_list([*tokens, "<|endoftext|>", *words])
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types([*[normal] * 256, control, *[normal] * len(words)])
    # llama.cpp wants at least one; a pair that never occurs in text as two bytes of one word.
    writer.add_token_merges([f"{tokens[0]} {tokens[0]}"])
    writer.add_eos_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
