"""The shape of the demo model: one frozen record that every other file reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a small `qwen35moe`: delta-net and attention layers, experts, one MTP block."""

    n_vocab: int = 2048
    n_embd: int = 256
    n_layer: int = 6
    """Trunk layers; the MTP block comes after them and is not counted."""
    full_attention_interval: int = 2
    """Layer i attends where (i + 1) % interval == 0; the others are recurrent."""

    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_rot: int = 32
    rope_sections: tuple[int, int, int, int] = (6, 5, 5, 0)
    """Pairs per position axis; they must cover n_rot / 2, or some pairs stay unrotated."""
    rope_base: float = 10000.0

    n_expert: int = 8
    n_expert_used: int = 2
    n_ff: int = 96
    n_ff_shared: int = 96

    n_k_heads: int = 3
    n_v_heads: int = 6
    state_size: int = 32
    conv_kernel: int = 4

    norm_eps: float = 1e-6
    context_length: int = 1024

    @property
    def key_dim(self) -> int:
        return self.n_k_heads * self.state_size

    @property
    def value_dim(self) -> int:
        return self.n_v_heads * self.state_size

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim

    def is_recurrent(self, layer: int) -> bool:
        """The rule llama.cpp derives from `full_attention_interval`."""
        return layer < self.n_layer and (layer + 1) % self.full_attention_interval != 0
