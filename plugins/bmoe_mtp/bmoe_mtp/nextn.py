"""The head's own llama.cpp context, and every unstable binding that it needs.

Read from llama.cpp as vendored by llama-cpp-python 0.3.36: ``src/llama-ext.h`` (the functions that
``llama_cpp.llama_cpp_ext`` binds and declares unstable), ``common/speculative.cpp`` (which row goes
with which token) and ``src/models/qwen35moe.cpp`` (the head's graph).

The head reads a token together with the target's hidden row of the position **before** it, and
predicts the token after it. So position p of its context takes token x_p and row h_{p-1}.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp

from bmoe_core import SourceUnavailable, Target

LLAMA_CPP_PYTHON = "0.3.36"
"""The first llama-cpp-python whose bindings this file was written for."""

N_UBATCH = 32
"""Positions a decode of the head's context: its compute memory is taken from the model's."""

SEQUENCE = 0

JUMPING_ROPES = (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)

Rows = npt.NDArray[np.float32]


def load_bindings() -> Any:
    """The unstable bindings.

    Raises:
        SourceUnavailable: the installed llama-cpp-python does not have them.
    """
    try:
        bindings: Any = importlib.import_module("llama_cpp.llama_cpp_ext")
    except (ImportError, AttributeError):
        # AttributeError: the module is there, and a symbol is missing in the library.
        bindings = None
    needed = (
        "llama_set_embeddings_nextn",
        "llama_get_embeddings_nextn",
        "llama_get_embeddings_nextn_ith",
    )
    has_head = hasattr(llama_cpp, "llama_model_n_layer_nextn") and hasattr(
        llama_cpp, "LLAMA_CONTEXT_TYPE_MTP"
    )
    if not has_head or not all(hasattr(bindings, name) for name in needed):
        raise SourceUnavailable(
            "the installed llama-cpp-python cannot run a multi-token-prediction head: "
            f"install llama-cpp-python {LLAMA_CPP_PYTHON}, or use --draft-source ngram, which "
            "needs no head"
        )
    return bindings


def n_heads(model: Any) -> int:
    """Multi-token-prediction layers of a ``llama_model *``."""
    return int(llama_cpp.llama_model_n_layer_nextn(model))


class HeadContext:
    """A context of type MTP over the target's model, holding one sequence.

    Attributes:
        n_past: the position that it decodes next. Raised by hand, it leaves positions out.
        may_jump: whether that is allowed: llama.cpp wants positions without gaps but from models
            whose positions have several dimensions (``llama_batch_allocr::init``).
        n_embd: length of a hidden row.
        row_bytes: its bytes.
        mib: MiB of its buffers, as llama.cpp logged them.
    """

    def __init__(self, target: Target) -> None:
        """Make the context and let the target output its hidden rows.

        Raises:
            SourceUnavailable: llama.cpp could not make it.
        """
        self._bindings = load_bindings()
        self._target = target
        self._target_ctx = target.ctx
        self.n_embd = int(llama_cpp.llama_model_n_embd(target.model))
        self.row_bytes = 4 * self.n_embd
        params = llama_cpp.llama_context_default_params()
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
        params.n_ctx = target.n_ctx
        params.n_batch = params.n_ubatch = N_UBATCH
        params.n_outputs_max = 1
        params.n_threads = params.n_threads_batch = llama_cpp.llama_n_threads(target.ctx)
        if not llama_cpp.llama_supports_gpu_offload():
            # As for the target: on a CPU a decode takes longer with it.
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if target.eval_callback is not None:
            params.cb_eval = target.eval_callback
        with _logged_buffer_sizes() as sizes:
            self._ctx = llama_cpp.llama_init_from_model(target.model, params)
        if not self._ctx:
            raise SourceUnavailable(
                "llama.cpp could not make a context for this model's multi-token-prediction head: "
                "use --draft-source ngram, which needs none"
            )
        self.mib = sum(sizes)
        self._memory = llama_cpp.llama_get_memory(self._ctx)
        self._batch = llama_cpp.llama_batch_init(N_UBATCH, self.n_embd, 1)
        self._map_batch()
        # Unmasked: a row for every position of a decode, not for those with logits alone. Masked,
        # the head's graph would give the row of its batch's first position for that of its last.
        self._bindings.llama_set_embeddings_nextn(self._target_ctx, True, False)
        self._bindings.llama_set_embeddings_nextn(self._ctx, True, False)
        self.n_past = 0
        self.may_jump = llama_cpp.llama_model_rope_type(target.model) in JUMPING_ROPES
        self._logits_type = ctypes.c_float * target.n_vocab
        self._row_type = ctypes.c_float * self.n_embd
        self._offsets = np.arange(N_UBATCH, dtype=np.int32)

    def _map_batch(self) -> None:
        # llama_batch_init allocates token ids or embedding rows; the head wants both.
        self._token_ids = (llama_cpp.llama_token * N_UBATCH)()
        self._batch.token = ctypes.cast(self._token_ids, type(self._batch.token))
        as_array = np.ctypeslib.as_array
        self._tokens = as_array(self._token_ids)
        self._rows = as_array(self._batch.embd, (N_UBATCH, self.n_embd))
        self._positions = as_array(self._batch.pos, (N_UBATCH,))
        self._wants_logits = as_array(self._batch.logits, (N_UBATCH,))
        as_array(self._batch.n_seq_id, (N_UBATCH,))[:] = 1
        for i in range(N_UBATCH):
            self._batch.seq_id[i][0] = SEQUENCE

    def copy_target_rows(self, n: int, address: int) -> None:
        """Copy the target's hidden rows of the first ``n`` tokens that it was given last.

        Those of tokens that it decoded again come before them.

        Args:
            n: rows.
            address: where to, for n * n_embd float32.
        """
        rows = self._bindings.llama_get_embeddings_nextn(self._target_ctx)
        begin = ctypes.addressof(rows.contents) + self._target.n_replayed * self.row_bytes
        ctypes.memmove(address, begin, n * self.row_bytes)

    def decode(self, tokens: Sequence[int], rows: Rows, *, logits: bool) -> Rows | None:
        """Decode tokens with the hidden rows of the positions before them.

        Args:
            tokens: at least one token id.
            rows: float32 array of shape (len(tokens), n_embd).
            logits: whether the last position's logits are wanted.

        Returns:
            The last position's logits, shape (n_vocab,), valid until the next decode, or None.

        Raises:
            RuntimeError: llama.cpp failed.
        """
        for start in range(0, len(tokens), N_UBATCH):
            chunk = tokens[start : start + N_UBATCH]
            n = len(chunk)
            last = start + n == len(tokens)
            self._batch.n_tokens = n
            self._tokens[:n] = chunk
            self._rows[:n] = rows[start : start + n]
            np.add(self._offsets[:n], self.n_past, out=self._positions[:n])
            self._wants_logits[:n] = 0
            self._wants_logits[n - 1] = logits and last
            status = llama_cpp.llama_decode(self._ctx, self._batch)
            if status != 0:
                raise RuntimeError(f"the head's decode at {self.n_past} ended with status {status}")
            self.n_past += n
        if not logits:
            return None
        return _view(llama_cpp.llama_get_logits(self._ctx), self._logits_type)

    def last_row(self) -> Rows:
        """The head's own hidden row of its last position, (1, n_embd), until the next decode."""
        last = self._batch.n_tokens - 1
        pointer = self._bindings.llama_get_embeddings_nextn_ith(self._ctx, last)
        return _view(pointer, self._row_type)[None]

    def rewind(self, n_past: int) -> None:
        """Drop the positions from ``n_past`` on.

        Raises:
            RuntimeError: llama.cpp refused.
        """
        if n_past >= self.n_past:
            return
        if not llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1):
            raise RuntimeError(f"the head's context could not be rewound to {n_past}")
        self.n_past = n_past

    def close(self) -> None:
        """Free the context, and let the target output no hidden rows any more."""
        self._bindings.llama_set_embeddings_nextn(self._target_ctx, False, False)
        self._batch.token = None
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._ctx)


def _view(pointer: Any, array_type: Any) -> Rows:
    """The floats that a pointer points to, as long as ``array_type``; not copied.

    Three times as fast as numpy's as_array, which counts with a small model.
    """
    return np.frombuffer(array_type.from_address(ctypes.addressof(pointer.contents)), np.float32)


@contextmanager
def _logged_buffer_sizes() -> Iterator[list[float]]:
    """Collects the buffer sizes, in MiB, that llama.cpp logs while a context is made."""
    sizes: list[float] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = re.search(r"buffer size\s*=\s*([\d.]+) MiB", record.getMessage())
            if found:
                sizes.append(float(found.group(1)))

    logger = logging.getLogger("bmoe.llama_cpp")
    handler, level, propagate = Collect(), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield sizes
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
