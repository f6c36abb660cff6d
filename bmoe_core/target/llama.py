"""A llama.cpp context as a target, over the low-level bindings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import psutil
from llama_cpp import llama_cpp

from bmoe_core.closing import Closing
from bmoe_core.errors import (
    ContextError,
    DecodeError,
    RollbackError,
    RollbackUnsupportedError,
    UsageError,
)
from bmoe_core.limits import MAX_THREADS
from bmoe_core.target import log
from bmoe_core.target.capacity import check_cache_fits
from bmoe_core.target.memory import (
    SEQUENCE,
    AttentionMemory,
    CheckpointMemory,
    SnapshotMemory,
)
from bmoe_core.target.model import LlamaModel, Prepare, noticing_interrupts

DEFAULT_N_CTX = 4096
N_BATCH = 512
"""Most tokens a decode: as many as llama.cpp computes at once, so a long prompt shows progress."""

MAX_N_CTX = 2**31 - 1


def default_n_threads() -> int:
    """Physical cores this process may use: a decode is bound by memory, not by hyper-threads."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, usable or 1))


def default_n_ctx(model: LlamaModel) -> int:
    """Positions a context gets that was not told how many: the model's own, 4096 at most."""
    return min(model.n_ctx_train, DEFAULT_N_CTX)


class DecodeTap(Protocol):
    """Watches the graphs of a target's decodes; see :class:`bmoe_core.routing.tap.RouterTap`."""

    def install(self, context_params: Any) -> None:
        """Set the evaluation callback in ``llama_context_params``."""

    def target_decode(self) -> contextlib.AbstractContextManager[None]:
        """Entered around each decode of the target; may raise when it is left."""


class LlamaTarget(Closing):
    """One llama.cpp context over a model, holding one sequence.

    Logits are asked for at the positions that need them only, never for a whole prompt.
    Not thread-safe: one thread at a time.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int | None = None,
        max_draft: int = 0,
        n_threads: int | None = None,
        rollback: Literal["snapshots", "checkpoint"] = "snapshots",
        prepare: Prepare | None = None,
        tap: DecodeTap | None = None,
    ) -> None:
        """Create the context.

        Args:
            model: the loaded model; it must outlive the target.
            n_ctx: positions to hold; None: :func:`default_n_ctx`.
            max_draft: tokens of the longest draft to be verified; 0: plain decodes only.
            n_threads: None: :func:`default_n_threads`.
            rollback: how a recurrent model takes a rejected draft back: ``snapshots`` keeps
                ``max_draft`` states in every decode, ``checkpoint`` saves one state before each
                verify decode and decodes the accepted tokens again, along with the next ones.
            prepare: called with the ``llama_context_params`` before the context is made.
            tap: watches every decode, which makes it slower; None: no callback is set.

        Raises:
            ContextError: the context does not fit into memory, llama.cpp could not make it, or it
                is too small to draft in.
            RollbackUnsupportedError: ``max_draft`` is above 0 and the model cannot roll back.
            UsageError: a number is out of range, or the model's experts are streamed and the tap
                does not stage them.
        """
        model.check_open()
        if model.streamed_by is not None and getattr(tap, "stage", None) is not model.streamed_by:
            raise UsageError(
                f"the experts of {model.path.name} are streamed: give the target a RouterTap whose "
                "stage is what streams them, or it would compute with memory that is empty"
            )
        self._model = model
        self._closed = False
        wanted = n_ctx or default_n_ctx(model)
        self.n_threads = n_threads or default_n_threads()
        for name, number, least, most in (
            ("n_ctx", wanted, 1, MAX_N_CTX),
            ("n_threads", self.n_threads, 1, MAX_THREADS),
            ("max_draft", max_draft, 0, wanted),
        ):
            if not least <= number <= most:
                raise UsageError(f"{name} is {number}, and may be {least} to {most}")
        keeps_snapshots = model.is_recurrent and rollback == "snapshots"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = wanted
        params.n_batch = params.n_ubatch = max(N_BATCH, max_draft + 2)
        params.n_threads = params.n_threads_batch = self.n_threads
        # The draft width for the source to see, and to lower; the snapshots follow from it below.
        params.n_rs_seq = max_draft
        if not llama_cpp.llama_supports_gpu_offload():
            # On a CPU flash attention saves memory and costs time: with SmolLM2 135M a decode at
            # 500 positions took 1.5 times as long with it.
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        # llama.cpp reserves compute memory for this many rows of logits.
        params.n_outputs_max = max_draft + 1
        if prepare is not None:
            prepare(params)
        self._tap = tap
        if tap is not None:
            tap.install(params)
        asked_to_draft = max_draft > 0
        max_draft = _settle_width(params, max_draft, keeps_snapshots)
        if asked_to_draft and keeps_snapshots and max_draft == 0:
            raise ContextError(
                f"a context of {params.n_ctx} positions is too small to draft in: raise it (-c)"
            )
        check_cache_fits(model, params)
        self._ctx = _make_context(model, params)
        self.n_ctx = int(params.n_ctx)
        """Positions it holds; llama.cpp may have rounded its own number up."""
        self.eval_callback = params.cb_eval if params.cb_eval else None
        self.n_batch = int(llama_cpp.llama_n_batch(self._ctx))
        self._n_rows_max = int(params.n_outputs_max) or self.n_batch
        self._batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)
        self._map_batch()
        self._memory = self._make_memory(max_draft, keeps_snapshots)
        if asked_to_draft and self.max_rollback == 0:
            self.close()
            raise RollbackUnsupportedError(
                f"{model.path.name} is a recurrent model whose state llama.cpp cannot take back, "
                "so a draft has to be decoded again where it is rejected: run it with --gate cost, "
                "or with --draft-source none"
            )
        self._n_past = 0
        self.n_replayed = 0
        """Tokens that the last decode decoded again, ahead of those it was given."""
        model.attach(self)

    def _map_batch(self) -> None:
        as_array = np.ctypeslib.as_array
        shape = (self.n_batch,)
        self._tokens = as_array(self._batch.token, shape)
        self._positions = as_array(self._batch.pos, shape)
        self._wants_logits = as_array(self._batch.logits, shape)
        as_array(self._batch.n_seq_id, shape)[:] = 1
        for i in range(self.n_batch):
            self._batch.seq_id[i][0] = SEQUENCE

    def _make_memory(self, max_draft: int, keeps_snapshots: bool) -> AttentionMemory:
        if not self._model.is_recurrent:
            return AttentionMemory(self._ctx, max_draft)
        if keeps_snapshots:
            return SnapshotMemory(self._ctx, max_draft)
        return CheckpointMemory(self._ctx, max_draft, self._replay)

    def check_open(self) -> None:
        """Raise where the context has been freed.

        Raises:
            UsageError: it has.
        """
        if self._closed:
            raise UsageError("this context has been closed: make a new one")

    @property
    def model(self) -> Any:
        """The ``llama_model *``."""
        return self._model.handle

    @property
    def ctx(self) -> Any:
        """The ``llama_context *``."""
        return self._ctx

    @property
    def n_vocab(self) -> int:
        """Token ids are below this."""
        return self._model.n_vocab

    @property
    def n_past(self) -> int:
        """Positions in the memory."""
        return self._n_past

    @property
    def n_pending(self) -> int:
        """Positions of ``n_past`` that the next decode takes along, to decode them again."""
        return self._memory.n_pending

    @property
    def max_rollback(self) -> int:
        """The longest draft whose rejection can be taken back."""
        return self._memory.max_rollback

    @property
    def rollback_mib(self) -> float:
        """MiB held for rollback alone; known once something has been decoded."""
        return 0.0 if self._closed else self._memory.saved_bytes / 2**20

    def decode(self, tokens: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """Decode ``tokens`` from position ``n_past`` on; see :meth:`Target.decode`.

        Raises:
            DecodeError: llama.cpp failed; ``n_past`` says what the memory holds then.
            UsageError: more tokens or rows than this context was made for.
        """
        if self._closed:
            raise DecodeError("the target has been closed")
        n = len(tokens)
        if not 0 < n <= self.n_batch or not 0 <= n_rows <= min(n, self._n_rows_max):
            raise UsageError(
                f"{n} tokens with {n_rows} rows of logits: this context takes 1 to {self.n_batch} "
                f"tokens and up to {self._n_rows_max} rows"
            )
        pending = self._memory.take_pending()
        if len(pending) + n > self.n_batch:
            self._replay(pending)
            pending = []
        self.n_replayed = len(pending)
        self._n_past -= len(pending)
        batch = [*pending, *tokens]
        self._memory.before_decode(batch, n_rows)
        self._decode(batch, n_rows)
        self._memory.after_decode(batch)
        n_vocab = self._model.n_vocab
        if n_rows == 0:
            return np.empty((0, n_vocab), np.float32)
        logits = llama_cpp.llama_get_logits(self._ctx)
        return np.ctypeslib.as_array(logits, (n_rows, n_vocab))

    def _decode(self, tokens: Sequence[int], n_rows: int) -> None:
        n = len(tokens)
        self._batch.n_tokens = n
        self._tokens[:n] = tokens
        self._positions[:n] = np.arange(self._n_past, self._n_past + n)
        self._wants_logits[: n - n_rows] = 0
        self._wants_logits[n - n_rows : n] = 1
        if self._tap is None:
            status = llama_cpp.llama_decode(self._ctx, self._batch)
        else:
            status = self._watched_decode(self._tap)
        if status != 0:
            # An aborted or failed decode may have kept a part of the batch.
            self._n_past = self._memory.n_past
            raise DecodeError(_decode_failure(status, n, self._n_past, self.n_ctx))
        self._n_past += n

    def _watched_decode(self, tap: DecodeTap) -> int:
        try:
            with noticing_interrupts(), tap.target_decode():
                return int(llama_cpp.llama_decode(self._ctx, self._batch))
        except BaseException:
            self._n_past = self._memory.n_past
            raise

    def _replay(self, tokens: Sequence[int]) -> None:
        self._n_past = self._memory.n_past
        self._decode(tokens, 0)

    def roll_back(self, n_past: int) -> None:
        """Drop every position from ``n_past`` on.

        Raises:
            RollbackError: the memory cannot be taken back that far; it is unchanged.
        """
        # A generation that was left suspended may be finished after the target was closed.
        if self._closed:
            return
        # Also where the count agrees the memory is asked: an interrupt may have come between a
        # decode and its being counted.
        held = self._memory.n_past + self._memory.n_pending
        if not 0 <= n_past <= held:
            raise RollbackError(f"there is no position {n_past} to go back to: {held} are held")
        if n_past == self._n_past == held and self._memory.intact:
            return
        self._memory.roll_back(n_past)
        self._n_past = n_past

    def clear(self) -> None:
        """Drop every position."""
        if not self._closed:
            self._memory.clear()
        self._n_past = 0

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``; see :meth:`LlamaModel.tokenize`."""
        return self._model.tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The bytes of ``tokens``; see :meth:`LlamaModel.detokenize`."""
        return self._model.detokenize(tokens)

    def is_eog(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""
        return self._model.is_eog(token)

    def close(self) -> None:
        """Free the context. May repeat."""
        if not self._closed:
            self._closed = True
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._ctx)


def _settle_width(params: Any, max_draft: int, keeps_snapshots: bool) -> int:
    """The draft width that ``params`` leave room for; sets the number of snapshots to it."""
    width = min(max_draft, int(params.n_rs_seq), int(params.n_outputs_max or 2**31) - 1)
    if not keeps_snapshots:
        params.n_rs_seq = 0
        return width
    # llama.cpp aborts where a batch is not longer than what it keeps of it.
    n_ubatch = min(int(params.n_ctx), int(params.n_batch), int(params.n_ubatch))
    params.n_rs_seq = min(width, max(n_ubatch - 2, 0))
    return int(params.n_rs_seq)


def _make_context(model: LlamaModel, params: Any) -> Any:
    log.capture()
    with noticing_interrupts() as interrupted:
        ctx = llama_cpp.llama_init_from_model(model.handle, params)
        if ctx and interrupted():
            llama_cpp.llama_free(ctx)
    if not ctx:
        reason = log.first_error() or "llama.cpp gave no reason"
        raise ContextError(
            f"no context of {params.n_ctx} positions could be made: {reason}. "
            "A smaller context (-c) needs less memory"
        )
    if not llama_cpp.llama_get_memory(ctx):
        llama_cpp.llama_free(ctx)
        raise ContextError(
            f"{model.path.name} keeps no memory of a text, as embedding models do not: "
            "use a model that generates text"
        )
    return ctx


def _decode_failure(status: int, n_tokens: int, n_past: int, n_ctx: int) -> str:
    # The return values of llama_decode, as llama.h gives them.
    reasons = {
        1: "no free place in the context",
        2: "it was aborted",
        -1: "the batch was invalid",
        -2: "memory could not be allocated",
        -3: "the computation failed",
    }
    reason = reasons.get(status, log.first_error() or f"status {status}")
    return f"llama.cpp could not decode {n_tokens} tokens at position {n_past} of {n_ctx}: {reason}"
