"""What the loop and the draft sources may ask of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Target(Protocol):
    """The model whose choice decides every token, with its memory of one sequence.

    ``model``, ``ctx`` and ``eval_callback`` are for sources that call llama.cpp themselves; a
    source that needs only tokens never touches them.
    """

    @property
    def model(self) -> Any:
        """The ``llama_model *`` handle, or None on a target without llama.cpp."""

    @property
    def ctx(self) -> Any:
        """The ``llama_context *`` handle, or None on a target without llama.cpp."""

    @property
    def eval_callback(self) -> Any:
        """The graph-evaluation callback that is set on the context, or None."""

    @property
    def n_ctx(self) -> int:
        """Positions the memory holds."""

    @property
    def n_vocab(self) -> int:
        """Token ids are below this."""

    @property
    def n_batch(self) -> int:
        """The most tokens that one :meth:`decode` takes."""

    @property
    def n_past(self) -> int:
        """Positions in the memory now: the next decoded token takes this position."""

    @property
    def n_pending(self) -> int:
        """Of those positions, the last ones that the next :meth:`decode` decodes again.

        A recurrent memory may be taken back further than asked for; 0 where none is.
        """

    @property
    def n_replayed(self) -> int:
        """Tokens that the last :meth:`decode` decoded again, ahead of those it was given.

        What a source reads of that decode itself, such as hidden rows, begins with theirs.
        """

    @property
    def max_rollback(self) -> int:
        """The longest draft whose rejection this target can take back; 0 where it cannot."""

    def decode(self, tokens: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """Decode ``tokens`` at the positions from ``n_past`` on.

        Args:
            tokens: 1 to ``n_batch`` token ids.
            n_rows: how many of the last tokens to return logits for; 0 to ``len(tokens)``.

        Returns:
            float32 array of shape (n_rows, n_vocab), row i for the i-th of those tokens. It may be
            overwritten by the next call.

        Raises:
            DecodeError: the decode failed.
        """

    def roll_back(self, n_past: int) -> None:
        """Drop every position from ``n_past`` on.

        Raises:
            RollbackError: the memory cannot be taken back that far; it is unchanged.
        """

    def clear(self) -> None:
        """Drop every position."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``; with ``special``, control tokens written in it are parsed."""

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The bytes of ``tokens``; the end may be an incomplete UTF-8 sequence."""

    def is_eog(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""
