"""A GGUF file run by llama.cpp's low-level API: trunk rows, head rows and greedy text."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType

import llama_cpp.llama_cpp as lib
import llama_cpp.llama_cpp_ext as ext
import numpy as np

_quiet = lib.llama_log_callback(lambda level, text, data: None)


def _rows(pointer: ctypes._Pointer, n_rows: int, width: int) -> np.ndarray:
    """A copy: llama.cpp's buffer lives until the next decode only."""
    return np.ctypeslib.as_array(pointer, shape=(n_rows, width)).copy()


class Runner:
    """Model, target context and head context; every call starts from empty caches."""

    def __init__(self, path: Path, n_ctx: int = 1024, n_threads: int = 1) -> None:
        lib.llama_log_set(_quiet, ctypes.c_void_p())
        params = lib.llama_model_default_params()
        params.load_mtp = True
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"cannot load {path}")
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocab)
        self.n_embd = lib.llama_model_n_embd(self.model)
        self.n_ctx = n_ctx
        self.target = self._context(lib.LLAMA_CONTEXT_TYPE_DEFAULT, n_threads)
        self.head_ctx = self._context(lib.LLAMA_CONTEXT_TYPE_MTP, n_threads)
        ext.llama_set_embeddings_nextn(self.target, True, False)
        ext.llama_set_embeddings_nextn(self.head_ctx, True, True)

    def _context(self, kind: int, n_threads: int) -> lib.llama_context_p:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = self.n_ctx
        params.n_ubatch = min(self.n_ctx, 1024)
        params.n_threads = params.n_threads_batch = n_threads
        params.ctx_type = kind
        # f32 caches: what is compared is the graph, not the rounding of a cache.
        params.type_k = params.type_v = lib.GGML_TYPE_F32
        context = lib.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit("cannot open a context; does the file have an MTP head?")
        return context

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lib.llama_free(self.head_ctx)
        lib.llama_free(self.target)
        lib.llama_model_free(self.model)

    def _clear(self, context: lib.llama_context_p) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)

    def _decode(
        self,
        context: lib.llama_context_p,
        tokens: np.ndarray,
        start: int = 0,
        hidden: np.ndarray | None = None,
    ) -> None:
        """Decode tokens at start, start + 1, ..., with logits everywhere; optional hidden rows."""
        n_tokens = len(tokens)
        ids = (lib.llama_token * n_tokens)(*map(int, tokens))
        batch = lib.llama_batch_init(n_tokens, 0 if hidden is None else self.n_embd, 1)
        batch.n_tokens = n_tokens
        if hidden is None:
            ctypes.memmove(batch.token, ids, ctypes.sizeof(ids))
        else:
            # llama_batch_init allocates token ids OR embeddings; the head wants both.
            batch.token = ctypes.cast(ids, ctypes.POINTER(lib.llama_token))
            ctypes.memmove(batch.embd, np.ascontiguousarray(hidden).ctypes.data, hidden.nbytes)
        for i in range(n_tokens):
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        status = lib.llama_decode(context, batch)
        if hidden is not None:
            batch.token = ctypes.POINTER(lib.llama_token)()
        lib.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def trunk(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (T, n_vocab) and hidden rows (T, n_embd) of a text of at most n_ctx tokens."""
        self._clear(self.target)
        self._decode(self.target, tokens)
        logits = _rows(lib.llama_get_logits(self.target), len(tokens), self.n_vocab)
        hidden = _rows(ext.llama_get_embeddings_nextn(self.target), len(tokens), self.n_embd)
        return logits, hidden

    def head(self, tokens: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Depth 1: logits and the head's own rows; hidden (T, n_embd) is the trunk's, unshifted."""
        shifted = np.zeros_like(hidden)
        shifted[1:] = hidden[:-1]
        self._clear(self.head_ctx)
        self._decode(self.head_ctx, tokens, hidden=shifted)
        logits = _rows(lib.llama_get_logits(self.head_ctx), len(tokens), self.n_vocab)
        rows = _rows(ext.llama_get_embeddings_nextn(self.head_ctx), len(tokens), self.n_embd)
        return logits, rows

    def chained(self, tokens: np.ndarray, hidden: np.ndarray, position: int) -> np.ndarray:
        """Depth 2 at one position: its logits after depth 1 decoded everything before it."""
        _, rows = self.head(tokens[:position], hidden[:position])
        self._decode(self.head_ctx, tokens[position : position + 1], position, rows[-1:])
        return _rows(lib.llama_get_logits(self.head_ctx), 1, self.n_vocab)[0]

    def greedy(self, prompt: np.ndarray, n_tokens: int) -> list[int]:
        """The argmax continuation, ended early by an end of generation, which is not included."""
        self._clear(self.target)
        self._decode(self.target, prompt)
        output: list[int] = []
        row = len(prompt) - 1
        while len(output) < n_tokens:
            token = self._choice(row)
            if lib.llama_vocab_is_eog(self.vocab, token):
                break
            self._decode(self.target, np.array([token]), len(prompt) + len(output))
            output.append(token)
            row = 0
        return output

    def _choice(self, row: int) -> int:
        """The target's argmax in one row of its last decode."""
        logits = lib.llama_get_logits_ith(self.target, row)
        return int(np.ctypeslib.as_array(logits, shape=(self.n_vocab,)).argmax())

    def tokenize(self, text: str) -> np.ndarray:
        raw = text.encode()
        buffer = (lib.llama_token * (len(raw) + 8))()
        n = lib.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), False, False)
        if n < 0:
            raise RuntimeError("tokenization failed")
        return np.array(buffer[:n], dtype=np.int64)

    def detokenize(self, tokens: list[int]) -> str:
        raw = b""
        for token in tokens:
            buffer = ctypes.create_string_buffer(256)
            n = lib.llama_token_to_piece(self.vocab, int(token), buffer, 256, 0, True)
            raw += buffer.raw[:n]
        return raw.decode(errors="replace")
