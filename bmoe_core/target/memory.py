"""How a context's memory is taken back to an earlier position.

Attention keeps one cell a position, so any tail can be dropped (:class:`AttentionMemory`). A
recurrent layer keeps one state that every token overwrites. There are two ways back: states that
llama.cpp kept while it decoded (:class:`SnapshotMemory`), or a state saved before the verify
decode and the accepted tokens decoded again, along with the next ones (:class:`CheckpointMemory`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from llama_cpp import llama_cpp

from bmoe_core.errors import RollbackError

SEQUENCE = 0
"""The one sequence that a target holds."""
MOST_PENDING = 16
"""Tokens that wait for the next decode; more are decoded again at once. Rejections in a row would
otherwise make every decode wider than the one before."""


class AttentionMemory:
    """The memory of a model whose layers all attend: cells of any tail can be dropped."""

    def __init__(self, ctx: Any, max_rollback: int) -> None:
        self._ctx = ctx
        self._memory = llama_cpp.llama_get_memory(ctx)
        self.max_rollback = max_rollback

    @property
    def saved_bytes(self) -> int:
        """Memory that serves rollback alone; known once something has been decoded."""
        return 0

    @property
    def intact(self) -> bool:
        """Whether no rollback was interrupted half-way."""
        return True

    @property
    def n_past(self) -> int:
        """Positions held, as llama.cpp counts them."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, SEQUENCE)) + 1

    @property
    def n_pending(self) -> int:
        """Tokens kept in a rollback that are still to be decoded again."""
        return 0

    def take_pending(self) -> list[int]:
        """Those tokens, which the caller decodes now, ahead of others."""
        return []

    def before_decode(self, tokens: Sequence[int], n_rows: int) -> None:
        """Make ready to drop all but the first of ``tokens`` where ``n_rows`` is above 1."""

    def after_decode(self, tokens: Sequence[int]) -> None:
        """Note that ``tokens`` were decoded."""

    def roll_back(self, n_past: int) -> None:
        """Drop the positions from ``n_past`` on.

        Raises:
            RollbackError: that cannot be done; the memory is as before.
        """
        self._drop(n_past)

    def _drop(self, n_past: int) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1):
            raise RollbackError(
                f"llama.cpp refused to drop the positions from {n_past} on of {self.n_past}"
            )

    def clear(self) -> None:
        """Drop every position."""
        llama_cpp.llama_memory_clear(self._memory, False)


class SnapshotMemory(AttentionMemory):
    """Recurrent memory with ``n_rs_seq`` earlier states kept by llama.cpp.

    llama.cpp answers true also where the state it goes back to is not the right one: only the
    states of the last decode are in place, and only for the first rollback after it. So the depth
    is bounded here.
    """

    def __init__(self, ctx: Any, max_rollback: int) -> None:
        n_snapshots = int(llama_cpp.llama_n_rs_seq(ctx))
        super().__init__(ctx, min(max_rollback, n_snapshots))
        self._n_snapshots = n_snapshots
        self._depth = 0

    @property
    def saved_bytes(self) -> int:
        """The snapshots, each as large as the recurrent state."""
        return self._n_snapshots * _state_size(self._ctx)

    def before_decode(self, tokens: Sequence[int], n_rows: int) -> None:
        """Forget the last decode's states: this one overwrites them."""
        self._depth = 0

    def after_decode(self, tokens: Sequence[int]) -> None:
        """Note how many of the states kept belong to this decode."""
        self._depth = min(self._n_snapshots, len(tokens) - 1)

    def roll_back(self, n_past: int) -> None:
        """Drop the positions from ``n_past`` on; see the class for how many can be."""
        depth = self.n_past - n_past
        if depth > self._depth:
            raise RollbackError(
                f"the recurrent state can be taken back {self._depth} positions here, not {depth}"
            )
        self._depth = 0
        self._drop(n_past)

    def clear(self) -> None:
        """Drop every position and state."""
        super().clear()
        self._depth = 0


class CheckpointMemory(AttentionMemory):
    """Recurrent memory whose state is saved before a verify decode and restored after a rejection.

    Nothing is added to a plain decode. What is to stay of a rejected decode is decoded again along
    with the tokens of the next one, which makes that one wider: on most machines much cheaper than
    a decode of its own. The saved state stays good until a decode is not taken back.
    """

    def __init__(
        self, ctx: Any, max_rollback: int, replay: Callable[[Sequence[int]], None]
    ) -> None:
        super().__init__(ctx, max_rollback)
        self._replay = replay
        self._saved: ctypes.Array[ctypes.c_uint8] | None = None
        self._saved_size = 0
        self._saved_n_past = 0
        self._is_at_saved = False
        self._decoded: list[int] = []
        self._pending: list[int] = []
        self._restoring = False

    @property
    def intact(self) -> bool:
        """False while the state is being restored."""
        return not self._restoring

    @property
    def saved_bytes(self) -> int:
        """The buffer of the saved state."""
        return 0 if self._saved is None else len(self._saved)

    @property
    def n_pending(self) -> int:
        """Tokens kept in a rollback that are still to be decoded again."""
        return len(self._pending)

    def take_pending(self) -> list[int]:
        """Those tokens, which the caller decodes now, ahead of others."""
        pending, self._pending = self._pending, []
        return pending

    def before_decode(self, tokens: Sequence[int], n_rows: int) -> None:
        """Save the recurrent state where a tail of ``tokens`` may have to be dropped."""
        self._decoded = []
        if n_rows > 1:
            if not self._is_at_saved:
                self._save()
            self._decoded = list(tokens)
        self._is_at_saved = False

    def _save(self) -> None:
        size = _state_size(self._ctx)
        if self._saved is None or len(self._saved) < size:
            self._saved = (ctypes.c_uint8 * size)()
        self._saved_size = llama_cpp.llama_state_seq_get_data_ext(
            self._ctx,
            self._saved,
            size,
            SEQUENCE,
            llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY,
        )
        self._saved_n_past = self.n_past

    def roll_back(self, n_past: int) -> None:
        """Restore the saved state; what stays of the last decode is pending from now on."""
        n_beyond = n_past - self.n_past
        if self.intact and 0 <= n_beyond <= len(self._pending):
            del self._pending[n_beyond:]
            return
        n_kept = n_past - self._saved_n_past
        if self._restoring or not self._decoded or n_kept < 0:
            raise RollbackError(f"no state was saved at or before position {n_past} to go back to")
        kept = self._decoded[:n_kept]
        self._decoded = []
        self._restoring = True
        restored = llama_cpp.llama_state_seq_set_data_ext(
            self._ctx,
            self._saved,
            self._saved_size,
            SEQUENCE,
            llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY,
        )
        if restored != self._saved_size or not restored:
            raise RollbackError("llama.cpp could not restore the recurrent state it had saved")
        self._drop(self._saved_n_past)
        if len(kept) > MOST_PENDING:
            self._replay(kept)
        else:
            self._pending = kept
            self._is_at_saved = True
        self._restoring = False

    def clear(self) -> None:
        """Drop every position and the saved state."""
        super().clear()
        self._decoded = []
        self._pending = []
        self._is_at_saved = False
        self._restoring = False


def _state_size(ctx: Any) -> int:
    """Bytes of the part of the memory that cannot be cut at a position."""
    return int(
        llama_cpp.llama_state_seq_get_size_ext(
            ctx, SEQUENCE, llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        )
    )
