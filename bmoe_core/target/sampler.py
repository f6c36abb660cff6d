"""Choosing tokens with llama.cpp's own samplers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp

from bmoe_core.errors import DecodeError, UsageError
from bmoe_core.sampling import Sampling
from bmoe_core.target import log
from bmoe_core.target.model import LlamaModel

PENALTY_LAST_N = 64
"""Tokens that the repeat penalty looks back on, as many as in llama.cpp's own programs."""

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""``llama_token_data`` of llama.h."""


class Sampler:
    """Draws the tokens of one generation; its :meth:`pick` is the ``pick`` of ``generate``.

    The state moves on with every pick: the random numbers, the grammar, and what the penalty looks
    back on. A generation picks once a position and in order, with a draft or without, so equal
    seeds draw equal tokens.
    """

    def __init__(
        self, model: LlamaModel, sampling: Sampling, prompt: Sequence[int] | None = None
    ) -> None:
        """Make the samplers.

        Args:
            model: whose tokens are drawn.
            sampling: the settings; without a seed and with a temperature, some seed.
            prompt: what the repeat penalty sees before the first pick, as llama.cpp's own
                programs have it.

        Raises:
            UsageError: the grammar cannot be used.
        """
        model.check_open()
        sampling = sampling.seeded()
        self._grammar: Any = None
        self._chain: Any = None
        if sampling.grammar is not None:
            self._grammar = _make_grammar(model, sampling.grammar)
        self._chain = _make_chain(model, sampling)
        for token in (prompt or [])[-PENALTY_LAST_N:]:
            llama_cpp.llama_sampler_accept(self._chain, token)
        self._ids = np.arange(model.n_vocab, dtype=np.int32)
        self._candidates = np.zeros(model.n_vocab, CANDIDATE)
        self._array = llama_cpp.llama_token_data_array()
        self._data: Any = ctypes.cast(
            self._candidates.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data)
        )

    def pick(self, row: npt.NDArray[np.float32]) -> int:
        """Choose a token.

        Args:
            row: logits, float32 of shape (n_vocab,); they stay as they are.

        Raises:
            DecodeError: the grammar allows no token here.
        """
        # The samplers sort the candidates and cut them off.
        self._candidates["id"] = self._ids
        self._candidates["logit"] = row
        array = self._array
        array.data = self._data
        array.size, array.selected, array.sorted = len(row), -1, False
        if self._grammar is not None:
            llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(array))
            # llama.cpp ends the process where it is given a token that the grammar forbids.
            if not np.isfinite(self._candidates["logit"].max()):
                raise DecodeError(
                    "the grammar allows no token of this model here: it may want a character that "
                    "no token begins with"
                )
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        token = int(array.data[array.selected].id)
        if self._grammar is not None:
            llama_cpp.llama_sampler_accept(self._grammar, token)
        llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Free the samplers. May repeat."""
        for sampler in (self._grammar, self._chain):
            if sampler:
                llama_cpp.llama_sampler_free(sampler)
        self._grammar = self._chain = None

    def __del__(self) -> None:
        self.close()


def _make_chain(model: LlamaModel, sampling: Sampling) -> Any:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    samplers = []
    if sampling.repeat_penalty != 1:
        samplers.append(
            llama_cpp.llama_sampler_init_penalties(
                model.n_vocab, PENALTY_LAST_N, sampling.repeat_penalty, 0.0, 0.0
            )
        )
    if sampling.temp == 0:
        samplers.append(llama_cpp.llama_sampler_init_greedy())
    else:
        # min_keep 1: the likeliest token always stays.
        samplers += [
            llama_cpp.llama_sampler_init_top_k(sampling.top_k),
            llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1),
            llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1),
            llama_cpp.llama_sampler_init_temp(sampling.temp),
            llama_cpp.llama_sampler_init_dist(sampling.seed),
        ]
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    return chain


def _make_grammar(model: LlamaModel, grammar: str) -> Any:
    if "\0" in grammar or not grammar.strip():
        raise UsageError("the grammar holds no rules: it needs at least one called root")
    log.capture()
    vocab = llama_cpp.llama_model_get_vocab(model.handle)
    with _native_stderr() as said:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:
        raise UsageError(f"the grammar cannot be used: {_reason(said)}")
    return sampler


def _reason(said: list[str]) -> str:
    line = said[0] if said else log.first_error() or "llama.cpp gave no reason"
    return line.rpartition("error parsing grammar: ")[2]


@contextlib.contextmanager
def _native_stderr() -> Iterator[list[str]]:
    """Keeps what C code prints to stderr, where llama.cpp says what is wrong with a grammar."""
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            usual = os.dup(2)
        except OSError:
            yield lines
            return
        stack.callback(os.close, usual)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(usual, 2)
            file.seek(0)
            text = file.read().decode("utf-8", errors="replace")
            lines += [line for line in text.splitlines() if line.strip()]
