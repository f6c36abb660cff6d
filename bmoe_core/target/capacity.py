"""Whether a context's cache fits into memory, asked before llama.cpp fills it.

llama.cpp writes zeros over the whole cache when it makes a context. Linux grants more memory than
there is, so that a cache which is too large ends the process without a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
from llama_cpp import llama_cpp

from bmoe_core.errors import ContextError
from bmoe_core.target.model import LlamaModel

CGROUP = Path("/sys/fs/cgroup")

# ggml_type of ggml.h, and the bytes of a value; what is not here counts as 4 bits.
_TYPE_BYTES = {0: 4.0, 1: 2.0, 30: 2.0, 8: 34 / 32}
_LEAST_TYPE_BYTES = 0.5


def check_cache_fits(model: LlamaModel, params: Any) -> None:
    """Refuse a cache that is larger than the memory available.

    Args:
        model: the loaded model.
        params: the ``llama_context_params`` of the context to be made.

    Raises:
        ContextError: it is; the message says which size would fit.
    """
    if llama_cpp.llama_supports_gpu_offload():
        return
    per_position = cache_bytes_per_position(model, params)
    needed, available = per_position * int(params.n_ctx), available_bytes()
    if needed <= available:
        return
    # A tenth is left for what a decode needs besides.
    n_fitting = int(available * 0.9 / per_position) // 256 * 256
    raise ContextError(
        f"a context of {params.n_ctx} positions needs {needed / 2**20:.0f} MiB for keys and "
        f"values, and {available / 2**20:.0f} MiB of memory are available: "
        + (f"-c {n_fitting} may fit" if n_fitting else "use a smaller model")
    )


def cache_bytes_per_position(model: LlamaModel, params: Any) -> float:
    """Bytes of keys and values that a position surely takes; 0 where that cannot be told.

    The size of llama.cpp's unified cache: attention layers × key-value heads × (key + value
    length) × bytes of a value.
    """

    def number(key: str) -> int | None:
        text = model.metadata(f"{model.architecture}.{key}")
        return int(text) if text is not None and text.isdecimal() else None

    n_layer = model.n_layer
    if model.is_recurrent:
        interval = number("full_attention_interval")
        n_layer = n_layer // interval if interval else 0
    if number("attention.sliding_window") and not params.swa_full:
        n_layer = 0
    n_head = number("attention.head_count")
    n_head_kv = number("attention.head_count_kv") or n_head
    n_embd = number("embedding_length")
    if not n_layer or not n_head or not n_head_kv or not n_embd:
        return 0.0
    key = number("attention.key_length") or n_embd // n_head
    value = number("attention.value_length") or n_embd // n_head
    if number("attention.key_length_mla"):
        # Latent attention: the values are a part of the keys.
        value = 0
    key_bytes = _TYPE_BYTES.get(int(params.type_k), _LEAST_TYPE_BYTES)
    value_bytes = _TYPE_BYTES.get(int(params.type_v), _LEAST_TYPE_BYTES)
    return n_layer * n_head_kv * (key * key_bytes + value * value_bytes)


def available_bytes() -> int:
    """Memory that this process can get without swapping, also under a container's limit."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        statistics = dict(
            line.split() for line in (CGROUP / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):
        return available
    if not limit.isdecimal():
        return available
    # The kernel gives the page cache back before it kills.
    return max(min(available, int(limit) - used + int(statistics.get("file", 0))), 0)
