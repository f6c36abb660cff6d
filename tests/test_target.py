"""The llama.cpp target: files it refuses, rollback at every depth, and memory that is bounded."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp

from bmoe_core import (
    BmoeError,
    ContextError,
    DecodeError,
    LlamaModel,
    LlamaTarget,
    ModelFileError,
    RollbackError,
    RollbackUnsupportedError,
    UsageError,
    generate,
)
from bmoe_core.target.memory import CheckpointMemory
from bmoe_core.testing.models import END_OF_TEXT, N_VOCAB, write_dense

Load = Callable[[str], LlamaModel]
TOKENS = list(b"The bridge is closed on Mondays, and on Tuesdays.")
# The cache holds f16, and a batch rounds differently from single decodes: a logit (of about 5 in
# size) moves by up to 0.01. A wrong state misses by whole logits.
ATOL = 0.05
DRAFTING_KINDS = ["dense", "moe", "sliding-window", "hybrid-moe"]


def target_of(model: LlamaModel, **arguments: object) -> LlamaTarget:
    return LlamaTarget(model, **{"n_ctx": 128, "n_threads": 1, **arguments})  # type: ignore[arg-type]


def logits_after(model: LlamaModel, tokens: list[int]) -> np.ndarray:
    """The last row of logits of a fresh context."""
    with target_of(model) as target:
        return target.decode(tokens, n_rows=1)[0].copy()


class TestModelFiles:
    def test_missing(self, tmp_path: Path) -> None:
        """The path is named."""
        with pytest.raises(ModelFileError, match=r"no model file .*none\.gguf: check the path"):
            LlamaModel(tmp_path / "none.gguf")

    def test_a_folder(self, tmp_path: Path) -> None:
        """The system's reason is given."""
        with pytest.raises(ModelFileError, match="cannot be read: Is a directory"):
            LlamaModel(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" * 10])
    def test_not_gguf(self, tmp_path: Path, content: bytes) -> None:
        """llama.cpp is not even asked."""
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="is not a GGUF file"):
            LlamaModel(path)

    @pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
    def test_truncated(self, tmp_path: Path, model_paths: dict[str, Path], share: float) -> None:
        """llama.cpp's reason is passed on, with the remedy."""
        data = model_paths["dense"].read_bytes()
        path = tmp_path / "model.gguf"
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(ModelFileError, match=r"cannot be loaded: .+\. If the file was downl"):
            LlamaModel(path)

    def test_an_interrupt_while_loading_is_not_swallowed(
        self, model_paths: dict[str, Path]
    ) -> None:
        """llama.cpp's callback cannot raise: the exception is kept and raised after it."""

        def interrupt(share: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            LlamaModel(model_paths["dense"], on_progress=interrupt)

    def test_ctrl_c_while_loading_is_not_swallowed(self, model_paths: dict[str, Path]) -> None:
        """The signal itself, wherever llama.cpp is in its load or in making the context."""
        with pytest.raises(KeyboardInterrupt):
            LlamaModel(
                model_paths["dense"], on_progress=lambda _: os.kill(os.getpid(), signal.SIGINT)
            )
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_a_model_without_a_tokenizer(self, tmp_path: Path) -> None:
        """llama.cpp would abort at the first text."""
        path = tmp_path / "mute.gguf"
        write_dense(path, tokenizer=False)
        with pytest.raises(ModelFileError, match="has no tokenizer"):
            LlamaModel(path)

    def test_progress_ends_at_one(self, model_paths: dict[str, Path]) -> None:
        """Shares rise to 1."""
        shares: list[float] = []
        LlamaModel(model_paths["dense"], on_progress=shares.append).close()
        assert shares == sorted(shares)
        assert shares[-1] == 1.0

    @pytest.mark.parametrize(
        ("system", "extra"), [(b"AMX_INT8 = 1 | ", False), (b"AVX2 = 1", True)]
    )
    def test_amx_kernels_are_not_chosen(
        self,
        model_paths: dict[str, Path],
        monkeypatch: pytest.MonkeyPatch,
        system: bytes,
        extra: bool,
    ) -> None:
        """Where they are compiled in they may die of an illegal instruction."""
        monkeypatch.setattr(llama_cpp, "llama_print_system_info", lambda: system)
        seen: list[bool] = []
        LlamaModel(
            model_paths["dense"], prepare=lambda params: seen.append(params.use_extra_bufts)
        ).close()
        assert seen == [extra]

    def test_prepare_may_change_the_parameters(self, model_paths: dict[str, Path]) -> None:
        """It is called before the load: a vocabulary without weights is what it asked for."""
        with LlamaModel(
            model_paths["dense"], prepare=lambda params: setattr(params, "vocab_only", True)
        ) as model:
            assert model.tokenize("ab") == [97, 98]


class TestVocabulary:
    def test_text_round_trips(self, load: Load) -> None:
        """Every byte of UTF-8 text comes back."""
        text = "naïve “quotes” 日本 🎉\n\ttab"
        assert load("dense").detokenize(load("dense").tokenize(text)).decode() == text

    def test_control_tokens_are_parsed_where_asked(self, load: Load) -> None:
        """And left out of the text."""
        model = load("dense")
        assert model.tokenize("a<|endoftext|>") == [97, END_OF_TEXT]
        assert len(model.tokenize("a<|endoftext|>", special=False)) == 14
        assert model.detokenize([97, END_OF_TEXT, 98]) == b"ab"
        assert model.is_eog(END_OF_TEXT)
        assert not model.is_eog(97)

    @pytest.mark.parametrize("token", [-1, N_VOCAB, 10**6])
    def test_a_token_outside_it_is_refused(self, load: Load, token: int) -> None:
        """llama.cpp would abort the process."""
        with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary"):
            load("dense").detokenize([token])

    def test_a_text_longer_than_its_first_buffer(self, load: Load) -> None:
        """Tokens are as many as there are."""
        assert len(load("dense").tokenize("x" * 100_000)) == 100_000


@pytest.mark.parametrize("kind", DRAFTING_KINDS)
class TestRollback:
    @pytest.mark.parametrize("rollback", ["snapshots", "checkpoint"])
    @pytest.mark.parametrize("depth", range(9))
    def test_every_depth_leaves_the_state_of_a_fresh_context(
        self, load: Load, kind: str, depth: int, rollback: str
    ) -> None:
        """After a verify decode and a rollback, the next logits are those of the kept tokens."""
        model = load(kind)
        with target_of(model, max_draft=8, rollback=rollback) as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:29], n_rows=9)
            target.roll_back(29 - depth)
            assert target.n_past == 29 - depth
            row = target.decode([7], n_rows=1)[0]
            expected = logits_after(model, [*TOKENS[: 29 - depth], 7])
            np.testing.assert_allclose(row, expected, atol=ATOL)

    def test_again_and_again(self, load: Load, kind: str) -> None:
        """Rollbacks of changing depth, one after each decode, do not add up to an error."""
        model = load(kind)
        with target_of(model, max_draft=4) as target:
            kept = TOKENS[:10]
            target.decode(kept, n_rows=1)
            for i in range(20):
                batch = [TOKENS[(i + j) % len(TOKENS)] for j in range(5)]
                target.decode(batch, n_rows=5)
                n_kept = 1 + i % 5
                kept = kept + batch[:n_kept]
                target.roll_back(len(kept))
            row = target.decode([7], n_rows=1)[0]
            np.testing.assert_allclose(row, logits_after(model, [*kept, 7]), atol=ATOL)

    @pytest.mark.parametrize("n_past", [-1, 31, 1000])
    def test_only_to_a_position_that_is_held(self, load: Load, kind: str, n_past: int) -> None:
        """Neither forward nor below zero."""
        with target_of(load(kind), max_draft=4) as target:
            target.decode(TOKENS[:30], n_rows=1)
            with pytest.raises(RollbackError, match=f"no position {n_past} to go back to: 30"):
                target.roll_back(n_past)
            assert target.n_past == 30

    def test_clearing_starts_anew(self, load: Load, kind: str) -> None:
        """A cleared target is a fresh one."""
        model = load(kind)
        with target_of(model, max_draft=4) as target:
            target.decode(TOKENS[:30], n_rows=1)
            target.clear()
            row = target.decode(TOKENS[:10], n_rows=1)[0]
            np.testing.assert_allclose(row, logits_after(model, TOKENS[:10]), atol=ATOL)


class TestRecurrentRollback:
    """llama.cpp answers true where it cannot go back; the target must not believe it."""

    def test_only_once_after_a_decode(self, load: Load) -> None:
        """The second rollback is refused, and the first one stands."""
        with target_of(load("hybrid-moe"), max_draft=8) as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:26], n_rows=6)
            target.roll_back(24)
            with pytest.raises(RollbackError, match="0 positions here, not 1"):
                target.roll_back(23)
            assert target.n_past == 24

    def test_never_over_all_of_the_last_decode(self, load: Load) -> None:
        """States older than the last decode are gone, although llama.cpp would say otherwise."""
        with target_of(load("hybrid-moe"), max_draft=8) as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:23], n_rows=3)
            with pytest.raises(RollbackError, match="2 positions here, not 3"):
                target.roll_back(20)

    def test_no_deeper_than_the_snapshots(self, load: Load) -> None:
        """n_rs_seq bounds the depth."""
        with target_of(load("hybrid-moe"), max_draft=3) as target:
            assert target.max_rollback == 3
            target.decode(TOKENS[:20], n_rows=1)
            with pytest.raises(RollbackError, match="3 positions here, not 4"):
                target.roll_back(16)

    def test_a_source_may_lower_the_width(self, load: Load) -> None:
        """What prepare leaves in n_rs_seq is what can be taken back."""
        with target_of(
            load("hybrid-moe"), max_draft=8, prepare=lambda params: setattr(params, "n_rs_seq", 2)
        ) as target:
            assert target.max_rollback == 2

    @pytest.mark.parametrize("draft", [1, 3, 8])
    @pytest.mark.parametrize("n_ctx", range(1, 12))
    def test_a_small_context_drafts_less_or_is_refused(
        self, load: Load, n_ctx: int, draft: int
    ) -> None:
        """llama.cpp aborts where a batch is not longer than the states it keeps."""
        if n_ctx <= 2 or draft > n_ctx:
            with pytest.raises((ContextError, UsageError)):
                target_of(load("hybrid-moe"), n_ctx=n_ctx, max_draft=draft)
            return
        with target_of(load("hybrid-moe"), n_ctx=n_ctx, max_draft=draft) as target:
            assert target.max_rollback == min(draft, n_ctx - 2)
            width = target.max_rollback
            target.decode(TOKENS[: 1 + width], n_rows=1 + width)
            target.roll_back(1)

    def test_an_interrupted_restoring_is_not_taken_for_a_finished_one(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Positions agree before the attention's cells are dropped; the memory is not right yet."""
        with target_of(load("hybrid-moe"), max_draft=4, rollback="checkpoint") as target:
            target.decode(TOKENS[:10], n_rows=1)
            target.decode(TOKENS[10:15], n_rows=5)

            def interrupt(self: object, n_past: int) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(CheckpointMemory, "_drop", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    target.roll_back(10)
            with pytest.raises(RollbackError):
                target.roll_back(10)
            target.clear()
            row = target.decode(TOKENS[:10], n_rows=1)[0]
            np.testing.assert_allclose(
                row, logits_after(load("hybrid-moe"), TOKENS[:10]), atol=ATOL
            )

    def test_plain_decoding_keeps_no_snapshots(self, load: Load) -> None:
        """Each would be real memory, and slows every decode."""
        with target_of(load("hybrid-moe")) as target:
            assert llama_cpp.llama_n_rs_seq(target.ctx) == 0
            assert target.max_rollback == 0

    @pytest.mark.parametrize(("rollback", "n_states"), [("snapshots", 8), ("checkpoint", 1)])
    def test_the_memory_for_rollback_is_known(
        self, load: Load, rollback: str, n_states: int
    ) -> None:
        """A state is two heads of 16 x 16 and three columns of the convolution's 64, in f32."""
        state = 4 * (2 * 16 * 16 + 3 * 64)
        with target_of(load("hybrid-moe"), max_draft=8, rollback=rollback) as target:
            target.decode(TOKENS[:5], n_rows=1)
            target.decode(TOKENS[5:10], n_rows=5)
            # Beside the state itself llama.cpp counts some bytes of bookkeeping.
            assert state * n_states <= target.rollback_mib * 2**20 < state * n_states * 1.1

    def test_without_snapshots_drafting_is_refused(self, load: Load) -> None:
        """A recurrent architecture that llama.cpp keeps none for; plain decoding still works."""
        with pytest.raises(RollbackUnsupportedError, match="--draft-source none"):
            target_of(load("recurrent"), max_draft=3)
        with target_of(load("recurrent")) as target:
            assert target.decode(TOKENS, n_rows=1).shape == (1, N_VOCAB)

    def test_a_checkpoint_is_gone_after_a_plain_decode(self, load: Load) -> None:
        """There is nothing to go back to, and the target says so."""
        with target_of(load("recurrent"), max_draft=3, rollback="checkpoint") as target:
            target.decode(TOKENS[:20], n_rows=1)
            with pytest.raises(RollbackError, match="no state was saved"):
                target.roll_back(19)

    @pytest.mark.parametrize("depth", range(5))
    def test_checkpoints_serve_where_there_are_no_snapshots(self, load: Load, depth: int) -> None:
        """mamba, taken back by a saved state and a replay."""
        model = load("recurrent")
        with target_of(model, max_draft=4, rollback="checkpoint") as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:25], n_rows=5)
            target.roll_back(25 - depth)
            row = target.decode([7], n_rows=1)[0]
            np.testing.assert_allclose(
                row, logits_after(model, [*TOKENS[: 25 - depth], 7]), atol=ATOL
            )

    @pytest.mark.parametrize("kind", ["recurrent", "hybrid-moe"])
    def test_what_is_kept_is_decoded_along_with_the_next_tokens(
        self, load: Load, kind: str
    ) -> None:
        """Two of five tokens stay: no decode is made for them alone, and none is left out.

        The memory is the right one, also after a second rejection, over them and the next ones."""
        model = load(kind)
        with target_of(model, max_draft=4, rollback="checkpoint") as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:25], n_rows=5)
            target.roll_back(22)
            assert (target.n_past, target.n_pending) == (22, 2)
            rows = target.decode([7, 8, 9], n_rows=3)
            assert (target.n_past, target.n_pending, target.n_replayed) == (25, 0, 2)
            for i, after in enumerate(([7], [7, 8], [7, 8, 9])):
                expected = logits_after(model, [*TOKENS[:22], *after])
                np.testing.assert_allclose(rows[i], expected, atol=ATOL)
            target.roll_back(23)
            assert target.n_pending == 3
            row = target.decode([5], n_rows=1)[0]
            assert target.n_replayed == 3
            np.testing.assert_allclose(row, logits_after(model, [*TOKENS[:22], 7, 5]), atol=ATOL)

    def test_tokens_that_wait_may_be_dropped_one_by_one(self, load: Load) -> None:
        """They are in no memory yet; below them nothing was saved."""
        model = load("recurrent")
        with target_of(model, max_draft=4, rollback="checkpoint") as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:25], n_rows=5)
            target.roll_back(23)
            target.roll_back(21)
            assert (target.n_past, target.n_pending) == (21, 1)
            with pytest.raises(RollbackError):
                target.roll_back(19)
            row = target.decode([7], n_rows=1)[0]
            np.testing.assert_allclose(row, logits_after(model, [*TOKENS[:21], 7]), atol=ATOL)

    def test_many_tokens_do_not_wait(self, load: Load) -> None:
        """Of 20 drafted ones 17 stay, with the one before: they are decoded again at once."""
        model = load("recurrent")
        tokens = [1 + i % 40 for i in range(60)]
        with target_of(model, max_draft=20, rollback="checkpoint") as target:
            target.decode(tokens[:20], n_rows=1)
            target.decode(tokens[20:41], n_rows=21)
            target.roll_back(38)
            assert (target.n_past, target.n_pending) == (38, 0)
            row = target.decode([7], n_rows=1)[0]
            assert target.n_replayed == 0
            np.testing.assert_allclose(row, logits_after(model, [*tokens[:38], 7]), atol=ATOL)

    def test_a_cleared_target_has_nothing_waiting(self, load: Load) -> None:
        """What waited belonged to the text that is gone."""
        with target_of(load("recurrent"), max_draft=4, rollback="checkpoint") as target:
            target.decode(TOKENS[:20], n_rows=1)
            target.decode(TOKENS[20:25], n_rows=5)
            target.roll_back(22)
            target.clear()
            assert (target.n_past, target.n_pending) == (0, 0)


class TestBounds:
    def test_rows_are_those_asked_for(self, load: Load) -> None:
        """The last n_rows tokens, in order, equal single decodes."""
        model = load("dense")
        with target_of(model, max_draft=4) as target:
            target.decode(TOKENS[:10], n_rows=0)
            rows = target.decode(TOKENS[10:15], n_rows=3).copy()
            for i in range(3):
                expected = logits_after(model, TOKENS[: 13 + i])
                np.testing.assert_allclose(rows[i], expected, atol=ATOL)

    def test_more_than_the_context_was_made_for_is_refused(self, load: Load) -> None:
        """llama.cpp would abort the process."""
        with target_of(load("dense"), max_draft=2) as target:
            with pytest.raises(ValueError, match="0 tokens"):
                target.decode([], n_rows=0)
            with pytest.raises(ValueError, match="up to 3 rows"):
                target.decode(TOKENS[:8], n_rows=4)
            with pytest.raises(ValueError, match="takes 1 to 128 tokens"):
                target.decode([1] * 513, n_rows=1)

    def test_a_token_outside_the_vocabulary(self, load: Load) -> None:
        """An error, and the memory is as before."""
        with target_of(load("dense")) as target:
            target.decode(TOKENS[:5], n_rows=1)
            with pytest.raises(DecodeError, match="1 tokens at position 5 of 128: the batch was i"):
                target.decode([N_VOCAB], n_rows=1)
            assert target.n_past == 5
            target.decode(TOKENS[5:6], n_rows=1)

    @pytest.mark.parametrize(
        "arguments", [{"n_ctx": -1}, {"n_ctx": 2**31}, {"n_threads": 513}, {"max_draft": -1}]
    )
    def test_numbers_that_would_wrap_are_refused(
        self, load: Load, arguments: dict[str, int]
    ) -> None:
        """ctypes would cut them to 32 bits."""
        with pytest.raises(UsageError, match=r"is -?\d+, and may be"):
            target_of(load("dense"), **arguments)

    def test_what_a_source_sets_is_kept_to(self, load: Load) -> None:
        """A context length, rows and a width that prepare changed bound the target."""

        def prepare(params: Any) -> None:
            params.n_ctx = 64
            params.n_outputs_max = 3

        with target_of(load("dense"), max_draft=8, prepare=prepare) as target:
            assert (target.n_ctx, target.max_rollback) == (64, 2)

        def lower(params: Any) -> None:
            assert params.n_rs_seq == 8
            params.n_rs_seq = 5

        with target_of(load("dense"), max_draft=8, prepare=lower) as target:
            assert target.max_rollback == 5

    def test_after_the_model_was_closed(self, model_paths: dict[str, Path]) -> None:
        """The targets over it are closed with it, and everything says so instead of crashing."""
        model = LlamaModel(model_paths["hybrid-moe"])
        target = target_of(model, max_draft=2)
        target.decode([1, 2], n_rows=1)
        generation = generate(target, [1, 2, 3])
        steps = iter(generation)
        next(steps)
        model.close()
        model.close()
        for call in (
            lambda: target.decode([1], 1),
            lambda: target.tokenize("a"),
            lambda: target.detokenize([1]),
            lambda: model.description,
            lambda: model.is_eog(1),
            lambda: target_of(model),
            lambda: next(steps),
        ):
            with pytest.raises(BmoeError, match="closed"):
                call()
        assert target.rollback_mib == 0.0

    def test_a_closed_target_is_left_alone(self, load: Load) -> None:
        """A generation may be finished late; llama.cpp must not be called then."""
        target = target_of(load("dense"))
        target.close()
        target.close()
        target.roll_back(0)
        target.clear()
        with pytest.raises(DecodeError, match="closed"):
            target.decode([1], n_rows=1)

    def test_no_eval_callback_unless_asked_for(self, load: Load) -> None:
        """A callback costs a microsecond or two a graph node."""
        with target_of(load("moe")) as target:
            assert target.eval_callback is None
