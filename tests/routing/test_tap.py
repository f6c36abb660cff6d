"""The tap on real llama.cpp graphs, its choices recomputed from the weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bmoe_core import DecodeError, LlamaModel, LlamaTarget, UsageError, generate, open_source
from bmoe_core.errors import RoutingUnsupportedError
from bmoe_core.routing import ggml
from bmoe_core.routing.records import DecodeRouting, ExpertLayer
from bmoe_core.routing.tap import RouterTap
from bmoe_core.testing import ScriptedSource
from bmoe_core.testing.models import (
    HEAD_DIM,
    N_EMBD,
    N_EXPERT,
    N_EXPERT_USED,
    N_FF_EXPERT,
    N_HEAD,
    N_HEAD_KV,
    N_LAYER,
    f32_cache,
    write_hybrid_moe,
)

Load = Callable[[str], LlamaModel]
EXPERT_BYTES = 3 * N_FF_EXPERT * N_EMBD * 4
PROMPT = list(b"a mixture of experts routes every token")


def tapped(model: LlamaModel, **arguments: Any) -> tuple[LlamaTarget, RouterTap]:
    tap = RouterTap()
    return LlamaTarget(model, n_ctx=256, n_threads=1, tap=tap, **arguments), tap


def routed_by_hand(path: Path, tokens: list[int]) -> list[list[set[int]]]:
    """The experts of each layer and position of a ``qwen3moe``, in numpy."""
    weights = {t.name: t.data.astype(np.float64) for t in gguf.GGUFReader(path).tensors}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * weights[name]

    def rotate(x: np.ndarray) -> np.ndarray:
        half = HEAD_DIM // 2
        angles = np.arange(len(tokens))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    x = weights["token_embd.weight"][tokens]
    n = len(tokens)
    chosen = []
    for i in range(N_LAYER):
        block = f"blk.{i}"

        def project(h: np.ndarray, name: str, heads: int, block: str = block) -> np.ndarray:
            rows: np.ndarray = h @ weights[f"{block}.{name}.weight"].T
            return rows.reshape(n, heads, HEAD_DIM)

        h = norm(x, f"{block}.attn_norm.weight")
        q = rotate(norm(project(h, "attn_q", N_HEAD), f"{block}.attn_q_norm.weight"))
        k = rotate(norm(project(h, "attn_k", N_HEAD_KV), f"{block}.attn_k_norm.weight"))
        k, v = (np.repeat(a, N_HEAD // N_HEAD_KV, 1) for a in (k, project(h, "attn_v", N_HEAD_KV)))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", share, v).reshape(n, -1)
        x = x + mixed @ weights[f"{block}.attn_output.weight"].T
        h = norm(x, f"{block}.ffn_norm.weight")
        logits = h @ weights[f"{block}.ffn_gate_inp.weight"].T
        top = np.argsort(-logits, axis=-1)[:, :N_EXPERT_USED]
        chosen.append([set(map(int, row)) for row in top])
        gate, up, down = (
            weights[f"{block}.ffn_{name}_exps.weight"] for name in ("gate", "up", "down")
        )
        out = np.zeros_like(x)
        for position, experts in enumerate(top):
            share_of = np.exp(logits[position, experts] - logits[position].max())
            for expert, weight in zip(experts, share_of / share_of.sum(), strict=True):
                inner = silu(gate[expert] @ h[position]) * (up[expert] @ h[position])
                out[position] += weight * (down[expert] @ inner)
        x = x + out
    return chosen


def unions(decode: DecodeRouting) -> list[set[int]]:
    return [set(layer.experts) for layer in decode.layers]


class TestAgainstTheWeights:
    @pytest.mark.parametrize("n_batch", [1, 4, 39])
    def test_every_choice_is_the_router_s(
        self, load: Load, model_paths: dict[str, Path], n_batch: int
    ) -> None:
        """Same experts per layer and position as numpy, and their unions for a batch."""
        expected = routed_by_hand(model_paths["moe"], PROMPT)
        # The prepare hook keeps the keys and values in f32, as numpy does.
        target, tap = tapped(load("moe"), prepare=f32_cache, max_draft=38)
        with target:
            for start in range(0, len(PROMPT), n_batch):
                chunk = PROMPT[start : start + n_batch]
                target.decode(chunk, len(chunk))
                (decode,) = tap.take()
                assert decode.n_tokens == len(chunk)
                assert decode.by_target
                assert [layer.layer for layer in decode.layers] == list(range(N_LAYER))
                assert [layer.n_used for layer in decode.layers] == [N_EXPERT_USED] * N_LAYER
                assert unions(decode) == [
                    set().union(*layer[start : start + len(chunk)]) for layer in expected
                ]

    def test_the_bytes_of_an_expert(self, load: Load) -> None:
        """Gate, up and down, in f32."""
        target, tap = tapped(load("moe"))
        with target:
            target.decode([1], 1)
        assert tap.layers == dict.fromkeys(range(N_LAYER), ExpertLayer(N_EXPERT, EXPERT_BYTES))

    def test_fused_and_split_experts_are_alike(self, load: Load, tmp_path: Path) -> None:
        """One tensor for gate and up: the same choices, the same bytes."""
        path = tmp_path / "fused.gguf"
        write_hybrid_moe(path, fused=True)
        results = []
        with LlamaModel(path) as fused:
            for model in (load("hybrid-moe"), fused):
                target, tap = tapped(model, max_draft=7)
                with target:
                    rows = target.decode(PROMPT[:8], 8).copy()
                results.append((rows, tap.take(), tap.layers))
        (split_rows, *split), (fused_rows, *fused_) = results
        assert split == fused_
        assert split[1] == dict.fromkeys(range(N_LAYER), ExpertLayer(N_EXPERT, EXPERT_BYTES))
        np.testing.assert_allclose(fused_rows, split_rows, atol=1e-4)


class TestWhoDecoded:
    def test_the_head_s_own_layer_is_the_source_s(self, model_paths: dict[str, Path]) -> None:
        """Its decodes route the block after the trunk, and never the trunk's."""
        source = open_source("mtp")
        with LlamaModel(model_paths["hybrid-moe"], prepare=source.prepare_model) as model:
            target, tap = tapped(model, max_draft=3, prepare=source.prepare_context)
            with target:
                source.open(target)
                generation = generate(target, PROMPT, source=source, n_predict=12)
                n_own = n_verify = 0
                for step in generation:
                    for decode in tap.take():
                        routed = [layer.layer for layer in decode.layers]
                        if decode.by_target:
                            assert routed == list(range(N_LAYER))
                            n_verify += decode.n_tokens == 1 + step.n_drafted
                        else:
                            assert routed == [N_LAYER]
                            n_own += 1
                assert n_verify > 0
                # One decode catches up and drafts the first token, one more for each other.
                assert n_own > n_verify
                source.close()

    def test_a_replay_is_the_target_s(self, load: Load) -> None:
        """After a rejection the accepted tokens are part of the target's next decode."""
        target, tap = tapped(load("hybrid-moe"), max_draft=3, rollback="checkpoint")
        source = open_source(ScriptedSource(lambda tokens, n_max: [0, 0, 0][:n_max]))
        with target:
            generation = generate(
                target, PROMPT, source=source, n_predict=4, on_prefill=lambda *_: tap.take()
            )
            steps = iter(generation)
            step = next(steps)
            rejected = tap.take()
            after = next(steps)
            replayed = tap.take()
            generation.close()
        assert step.n_drafted == 3
        assert step.n_accepted < 3
        assert [decode.n_tokens for decode in rejected] == [4]
        n_replayed = len(step.tokens)
        assert [decode.n_tokens for decode in replayed] == [n_replayed + 1 + after.n_drafted]
        assert all(decode.by_target for decode in (*rejected, *replayed))


class TestWithoutIt:
    def test_no_callback_is_installed(self, load: Load) -> None:
        """A target that was given no tap evaluates its graphs undisturbed."""
        seen = []
        with LlamaTarget(
            load("moe"), n_ctx=64, n_threads=1, prepare=lambda p: seen.append(bool(p.cb_eval))
        ) as target:
            target.decode([1], 1)
            assert target.eval_callback is None
        assert seen == [False]

    def test_the_answer_is_the_same(self, load: Load) -> None:
        """Watching changes no bit of a logit."""
        with LlamaTarget(load("moe"), n_ctx=256, n_threads=1, max_draft=3) as target:
            plain = target.decode(PROMPT[:4], 4).copy()
        target, _ = tapped(load("moe"), max_draft=3)
        with target:
            np.testing.assert_array_equal(target.decode(PROMPT[:4], 4), plain)


class TestFailures:
    def test_a_callback_of_the_source_s_own_is_refused(self, load: Load) -> None:
        """llama.cpp takes one, and neither may be dropped silently."""

        def own_callback(params: Any) -> None:
            RouterTap().install(params)

        with pytest.raises(UsageError, match="leave --routing"):
            tapped(load("moe"), prepare=own_callback)

    def test_an_error_in_the_callback_ends_the_decode(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A graph that was cut short gives no logits to rely on."""
        target, tap = tapped(load("moe"))

        def fail(_self: Any, _address: int) -> None:
            raise OSError("unreadable")

        monkeypatch.setattr(RouterTap, "_note_choice", fail)
        with target, pytest.raises(DecodeError, match="could not be read: OSError: unreadable"):
            target.decode([1], 1)
        monkeypatch.undo()
        assert tap.take() == []

    def test_an_interrupt_in_the_callback_comes_through(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As Ctrl-C does anywhere else, and the target can go on."""
        target, _ = tapped(load("moe"))

        def interrupt(_self: Any, _address: int) -> None:
            raise KeyboardInterrupt

        with target:
            monkeypatch.setattr(RouterTap, "_note_choice", interrupt)
            with pytest.raises(KeyboardInterrupt):
                target.decode([1], 1)
            monkeypatch.undo()
            target.clear()
            assert target.decode([1], 1).shape == (1, 257)

    @pytest.mark.parametrize(
        ("function", "answer"),
        [("ggml_get_name", 7), ("ggml_get_data", 0), ("ggml_op_name", b"ADD")],
    )
    def test_another_ggml_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, function: str, answer: Any
    ) -> None:
        """Tensors laid out differently would be read as something else."""
        real = ggml._ggml.libggml

        class Other:
            def __getattr__(self, name: str) -> Any:
                if name != function:
                    return getattr(real, name)
                return type("F", (), {"__call__": lambda _self, _argument: answer})()

        monkeypatch.setattr(ggml._ggml, "libggml", Other())
        with pytest.raises(RoutingUnsupportedError, match=r"llama-cpp-python 0\.3\.36"):
            RouterTap()

    def test_a_missing_function_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The message names what to do."""
        monkeypatch.setattr(ggml._ggml, "libggml", object())
        with pytest.raises(RoutingUnsupportedError, match="leave --routing, --cache-mb and --moe"):
            RouterTap()

    def test_rows_that_lie_apart_are_read_as_rows(self) -> None:
        """A tensor of chosen experts is a view of all experts in order of preference."""
        values = (ctypes.c_int32 * 8)(3, 1, 9, 9, 0, 2, 9, 9)
        tensor = ggml.Tensor(data=ctypes.addressof(values))
        tensor.ne[:] = (2, 2, 1, 1)
        tensor.nb[:] = (4, 16, 32, 32)
        library = ggml.Library()

        def get(address: int, out: Any, offset: int, size: int) -> None:
            source = ggml.Tensor.from_address(address).data
            ctypes.memmove(out, source + offset, size)

        library._tensor_get = get
        assert library.read_int32(ctypes.addressof(tensor)) == [[3, 1], [0, 2]]
