"""A GGUF model and its vocabulary, loaded by llama.cpp."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from llama_cpp import llama_cpp

from bmoe_core.closing import Closing
from bmoe_core.errors import ModelError, ModelFileError
from bmoe_core.target import log

GGUF_MAGIC = b"GGUF"

Prepare = Callable[[Any], None]
"""Sets fields of a llama.cpp parameter structure before it is used."""


class LlamaModel(Closing):
    """A loaded model: weights and vocabulary, which several targets may share.

    Attributes:
        path: the GGUF file.
        handle: the ``llama_model *``.
        n_vocab: token ids are below this.
        n_ctx_train: positions the model was trained on.
        is_recurrent: whether some or all of its layers keep a recurrent state.
        architecture: its architecture's name, such as ``qwen35moe``.
        n_layer: its layers, those of a multi-token-prediction head not among them.
        n_expert: routed experts a layer; 0 for a dense model.
        n_expert_used: of them, those that a token is routed to.
        streamed_by: what reads its experts as they are needed, and has to watch each of its
            decodes; None: they are in memory, or the kernel sees to it.
    """

    _closed = False
    streamed_by: Any = None

    def __init__(
        self,
        path: str | Path,
        *,
        prepare: Prepare | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Load a GGUF file.

        Args:
            path: the file; of a split model, its first part.
            prepare: called with the ``llama_model_params`` before the load.
            on_progress: called with the share loaded, 0 to 1.

        Raises:
            ModelFileError: the file is missing, unreadable, not GGUF, or llama.cpp refused it.
        """
        self.path = Path(path)
        _check_gguf(self.path)
        log.capture()
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        if b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info():
            # GCC 12's _tile_loadconfig declares 8 of the 64 bytes it reads, so the optimiser drops
            # the rest of ggml's tile configuration and the process dies of an illegal instruction
            # at the first batch. What the compiler was cannot be seen from here; without the extra
            # buffer types the AMX kernels are not chosen.
            params.use_extra_bufts = False
        with noticing_interrupts() as interrupted:
            progress = _Progress(on_progress, interrupted)
            params.progress_callback = progress.callback
            if prepare is not None:
                prepare(params)
            handle = llama_cpp.llama_model_load_from_file(os.fsencode(self.path), params)
            if handle and (progress.error is not None or interrupted()):
                llama_cpp.llama_model_free(handle)
        if progress.error is not None:
            raise progress.error
        if not handle:
            reason = log.first_error() or "llama.cpp gave no reason"
            raise ModelFileError(
                f"{self.path} cannot be loaded: {reason}. "
                "If the file was downloaded, check that it is complete"
            )
        refusal = _refusal(handle)
        if refusal is not None:
            llama_cpp.llama_model_free(handle)
            raise ModelFileError(f"{self.path} {refusal}")
        self.handle = handle
        self._targets: weakref.WeakSet[Any] = weakref.WeakSet()
        self._vocab = llama_cpp.llama_model_get_vocab(handle)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(handle)
        self.is_recurrent: bool = llama_cpp.llama_model_is_recurrent(
            handle
        ) or llama_cpp.llama_model_is_hybrid(handle)
        self.architecture = self.metadata("general.architecture") or ""
        self.n_layer: int = llama_cpp.llama_model_n_layer(handle)
        self.n_expert = int(self.metadata(f"{self.architecture}.expert_count") or 0)
        self.n_expert_used = int(self.metadata(f"{self.architecture}.expert_used_count") or 0)

    def check_open(self) -> None:
        """Raise where the model has been freed: llama.cpp would crash.

        Raises:
            ModelError: it has.
        """
        if self._closed:
            raise ModelError("the model has been closed")

    def attach(self, target: Any) -> None:
        """Note a target over this model, to be closed before it."""
        self._targets.add(target)

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text, at most 255 bytes of it, or None."""
        self.check_open()
        buffer = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return None if n < 0 else buffer.value.decode("utf-8", errors="replace")

    @property
    def description(self) -> str:
        """llama.cpp's short description, such as ``llama 135M Q4_1``."""
        self.check_open()
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace")

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of its chats, or None."""
        self.check_open()
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        return None if template is None else template.decode("utf-8", errors="replace")

    @property
    def adds_bos(self) -> bool:
        """Whether :meth:`tokenize` begins with the beginning-of-sequence token."""
        return bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))

    def token_text(self, kind: Literal["bos", "eos"]) -> str:
        """A special token as it is written in text, or nothing where the model has none."""
        token = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}[kind](
            self._vocab
        )
        if token < 0:
            return ""
        return str(llama_cpp.llama_vocab_get_text(self._vocab, token).decode(errors="replace"))

    def is_control(self, token: int) -> bool:
        """Whether ``token`` marks structure, such as the end of a turn, and is no text."""
        self.check_open()
        return bool(llama_cpp.llama_vocab_is_control(self._vocab, token))

    def tokenize(self, text: str, *, special: bool = True, begins: bool = True) -> list[int]:
        """Token ids of ``text``.

        Args:
            text: any text.
            special: parse control tokens that are written out in the text.
            begins: the text begins a sequence, so that the beginning-of-sequence token comes first
                where the model wants one.
        """
        self.check_open()
        data = text.encode()
        # A negative count says how many there would have been: ask again with that room.
        room = len(data) + 2
        while True:
            tokens = (llama_cpp.llama_token * room)()
            n = llama_cpp.llama_tokenize(
                self._vocab, data, len(data), tokens, room, begins, special
            )
            if n >= 0:
                return list(tokens[:n])
            room = -n

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The bytes of ``tokens``, control tokens left out; the end may cut a UTF-8 sequence.

        Raises:
            ValueError: a token is outside the vocabulary.
        """
        self.check_open()
        return b"".join(self._piece(token) for token in tokens)

    def _piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is outside the vocabulary of {self.n_vocab}")
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def is_eog(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""
        self.check_open()
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def close(self) -> None:
        """Close the targets over the model, and free it. May repeat."""
        if not self._closed:
            self._closed = True
            for target in list(self._targets):
                target.close()
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


@contextlib.contextmanager
def noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Signals that raise are noticed at once and handled in the end, for calls back into Python.

    Raised inside a callback, KeyboardInterrupt would be printed and lost.
    """
    noticed: list[int] = []
    usual: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signal_ in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(signal_)
            if callable(handler):
                usual[signal_] = handler
                signal.signal(signal_, lambda number, _frame: noticed.append(number))
    try:
        yield lambda: bool(noticed)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    if noticed:
        usual[noticed[0]](noticed[0], None)


class _Progress:
    """llama.cpp's progress callback, through which an exception cannot pass: it is kept."""

    def __init__(
        self, report: Callable[[float], None] | None, interrupted: Callable[[], bool]
    ) -> None:
        self.error: BaseException | None = None

        @llama_cpp.llama_progress_callback  # type: ignore[untyped-decorator]
        def callback(share: float, _user_data: Any) -> bool:
            try:
                if report is not None:
                    report(share)
            except BaseException as error:
                self.error = error
            return self.error is None and not interrupted()

        self.callback = callback


def _refusal(handle: Any) -> str | None:
    """Why a loaded model cannot generate text, or None."""
    vocab = llama_cpp.llama_model_get_vocab(handle)
    if llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
        return "has no tokenizer, so it cannot read a prompt: use a model that comes with one"
    if llama_cpp.llama_model_has_encoder(handle) or not llama_cpp.llama_model_has_decoder(handle):
        return (
            "is not a decoder-only model, and bmoe runs no others: use a model that generates text"
        )
    return None


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise ModelFileError(f"there is no model file {path}: check the path given to -m") from None
    except OSError as error:
        raise ModelFileError(f"the model file {path} cannot be read: {error.strerror}") from None
    if magic != GGUF_MAGIC:
        raise ModelFileError(
            f"{path} is not a GGUF file: give a model in GGUF format, as llama.cpp uses"
        )
