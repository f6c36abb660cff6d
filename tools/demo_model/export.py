"""Write a checkpoint as GGUF: `python -m tools.demo_model.export CHECKPOINT OUT.gguf`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch

from . import tokenizer as bpe
from .checkpoint import load_weights
from .config import ModelConfig
from .model import DemoModel
from .weights import stored_type, tensor_name, to_array

RARE = 10
NAME = "bmoe demo"
DESCRIPTION = (
    "A small hybrid attention/recurrent mixture of experts with an MTP head, trained from scratch "
    "to demonstrate speculative decoding. It writes code-shaped text and copies from its prompt; "
    "it knows nothing."
)
LICENSE_NAME = (
    "MIT; trained on the Python standard library and documentation (PSF-2.0) and on generated text"
)


def add_sizes(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Everything llama.cpp's loader of this architecture asks for."""
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer + 1)
    writer.add_feed_forward_length(config.n_expert_used * config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_rope_dimension_count(config.n_rot)
    writer.add_rope_dimension_sections(list(config.rope_sections))
    writer.add_expert_count(config.n_expert)
    writer.add_expert_used_count(config.n_expert_used)
    writer.add_expert_feed_forward_length(config.n_ff)
    writer.add_expert_shared_feed_forward_length(config.n_ff_shared)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.value_dim)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.n_v_heads)
    writer.add_ssm_group_count(config.n_k_heads)
    arch = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN35MOE]
    writer.add_uint32(f"{arch}.full_attention_interval", config.full_attention_interval)
    writer.add_uint32(f"{arch}.nextn_predict_layers", 1)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Tokens, types and merges of a `tokenizers` file. The end of text is the only special one."""
    saved = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(saved["vocab"], key=saved["vocab"].__getitem__)
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[bpe.END_ID] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in saved["merges"]])
    writer.add_eos_token_id(bpe.END_ID)
    writer.add_pad_token_id(bpe.END_ID)
    writer.add_add_bos_token(False)


def write(model: DemoModel, tokenizer: Path, out: Path, half: bool) -> None:
    config = model.config
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN35MOE])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_license_name(LICENSE_NAME)
    writer.add_languages(["en"])
    writer.add_tags(["code", "speculative-decoding", "test-model"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    add_sizes(writer, config)
    add_tokenizer(writer, tokenizer)
    for param_name, param in model.named_parameters():
        name = tensor_name(param_name, config)
        array = to_array(name, param)
        writer.add_tensor(name, array.astype(stored_type(name, array, half)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def silence_odd_tokens(model: DemoModel, corpus: Path) -> int:
    """Zero the output rows of tokens that are no text by themselves, or nearly never occur.

    Most are bytes that ASCII text has no use for. Nothing ever made them less likely than the
    rest, so unlikelihood training turns to them; with a logit of 0 they are no longer chosen. The
    price: the model writes no character that has no token of its own.
    """
    counts = np.zeros(model.config.n_vocab, dtype=np.int64)
    for path in sorted(corpus.glob("*.train.u16")):
        counts += np.bincount(np.fromfile(path, dtype=np.uint16), minlength=len(counts))
    tokenizer = bpe.load(corpus / "tokenizer.json")
    broken = ["\ufffd" in tokenizer.decode([i]) for i in range(len(counts))]
    odd = torch.from_numpy((counts < RARE) | np.array(broken))
    model.output[odd] = 0
    return int(odd.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--corpus", type=Path, default=Path("run/corpus"))
    parser.add_argument("--f32", action="store_true", help="full precision, for parity checks")
    args = parser.parse_args()
    model = DemoModel(ModelConfig())
    load_weights(model, args.checkpoint)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    n_silent = silence_odd_tokens(model, args.corpus)
    write(model, args.corpus / "tokenizer.json", args.out, half=not args.f32)
    print(f"{args.out}: {args.out.stat().st_size} bytes, {n_silent} odd tokens silenced")


if __name__ == "__main__":
    main()
