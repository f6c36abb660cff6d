"""Parameter names against GGUF tensor names, both ways."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from .config import ModelConfig
from .model import DemoModel

# llama.cpp wants these in f32 whatever the file's type: norms and everything 1-D, and
KEPT_F32 = ("ffn_gate_inp.", "ssm_conv1d.", "ssm_alpha.", "ssm_beta.")


def tensor_name(param: str, config: ModelConfig) -> str:
    """`layers.3.mixer.attn_q` -> `blk.3.attn_q.weight`; the MTP block is the last block."""
    parts = param.split(".")
    leaf = {"ssm_a_log": "ssm_a", "ssm_dt": "ssm_dt.bias"}.get(parts[-1], f"{parts[-1]}.weight")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{leaf}"
    if parts[:2] == ["mtp", "block"]:
        return f"blk.{config.n_layer}.{leaf}"
    if parts[0] == "mtp":
        return f"blk.{config.n_layer}.nextn.{leaf}"
    return leaf


def to_array(name: str, param: Tensor) -> np.ndarray:
    """The tensor as llama.cpp reads it, in f32: ssm_a is -exp(A_log), one-row matrices are 1-D."""
    value = param.detach().float()
    if name.endswith("ssm_a"):
        value = -value.exp()
    if name.endswith("ffn_gate_inp_shexp.weight"):
        value = value.flatten()
    return value.contiguous().numpy()


def stored_type(name: str, array: np.ndarray, half: bool) -> np.dtype:
    keep = array.ndim == 1 or any(part in name for part in KEPT_F32)
    return np.dtype(np.float32 if keep or not half else np.float16)


def read_config(reader: gguf.GGUFReader) -> ModelConfig:
    """The sizes a file states about itself."""

    def value(key: str) -> int:
        field = reader.get_field(f"qwen35moe.{key}")
        if field is None:
            raise SystemExit(f"no qwen35moe.{key} in the file")
        return int(field.contents())

    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    return ModelConfig(
        n_vocab=int(embedding.shape[1]),
        n_embd=value("embedding_length"),
        n_layer=value("block_count") - value("nextn_predict_layers"),
        full_attention_interval=value("full_attention_interval"),
        n_head=value("attention.head_count"),
        n_head_kv=value("attention.head_count_kv"),
        head_dim=value("attention.key_length"),
        n_rot=value("rope.dimension_count"),
        n_expert=value("expert_count"),
        n_expert_used=value("expert_used_count"),
        n_ff=value("expert_feed_forward_length"),
        n_ff_shared=value("expert_shared_feed_forward_length"),
        n_k_heads=value("ssm.group_count"),
        n_v_heads=value("ssm.time_step_rank"),
        state_size=value("ssm.state_size"),
        conv_kernel=value("ssm.conv_kernel"),
        context_length=value("context_length"),
    )


def load_gguf(path: Path) -> DemoModel:
    """The torch model of an f16 or f32 file, computing in f32."""
    reader = gguf.GGUFReader(str(path))
    config = read_config(reader)
    model = DemoModel(config)
    stored = {tensor.name: torch.tensor(tensor.data).float() for tensor in reader.tensors}
    state = {}
    for name, param in model.named_parameters():
        value = stored[tensor_name(name, config)]
        if name.endswith("ssm_a_log"):
            value = (-value).log()
        state[name] = value.view(param.shape)
    model.load_state_dict(state)
    return model
