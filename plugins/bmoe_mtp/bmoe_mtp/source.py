"""The draft source: when the head catches up, and how far it drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, validators

from bmoe_core import Draft, SourceUnavailable, Target, hookimpl
from bmoe_mtp.nextn import N_UBATCH, HeadContext, Rows, load_bindings, n_heads

N_BUCKETS = 8
"""Buckets of the head's probability, of equal width: the evidence of a drafted token."""
N_KEPT = 16
"""Positions that the head still catches up on where it was not asked for long."""


@define(eq=False)
class MtpSource:
    """Drafts with the model's own multi-token-prediction head.

    The head keeps a context of its own. ``observe`` notes the confirmed tokens and the target's
    hidden rows; the head catches up on them at the next draft. Of the prompt it sees everything. Of
    the answer it misses what lies far back where it was not asked for a batch of tokens: to catch
    up on all of it would cost a percent of every token for drafts that nobody wants. A head whose
    positions may not jump misses nothing. It never sees a rejected token, and is rewound after
    drafting.

    The confidence in each drafted token is the head's probability for it, to two digits: the last
    bits of a logit depend on how many tokens the head catches up on. The evidence is the bucket,
    0 to 7, that it falls into.
    """

    p_min: float = field(
        default=0.0,
        validator=[validators.ge(0.0), validators.le(1.0)],
        metadata={"help": "stop drafting where the head's probability is below this, 0 to 1"},
    )
    _head: HeadContext | None = field(default=None, init=False)
    _tokens: list[int] = field(factory=list, init=False)
    """Confirmed tokens from position 0 on, or empty where the head is out of step."""
    _rows: Rows = field(factory=lambda: np.empty((0, 0), np.float32), init=False)
    """Room for hidden rows of the target, float32 of shape (rows, n_embd)."""
    _rows_address: int = field(default=0, init=False)
    _n_rows: int = field(default=0, init=False)
    """How many it holds: the row before each confirmed token that the head has not decoded, then
    that of the last confirmed token; 0: out of step."""
    _n_prompt: int = field(default=0, init=False)

    @hookimpl
    def prepare_model(self, model_params: Any) -> None:
        """Have the head's tensors loaded."""
        load_bindings()
        model_params.load_mtp = True

    @hookimpl
    def open(self, target: Target) -> None:
        """Make the head's context.

        Raises:
            SourceUnavailable: the model has no head, or several, or the bindings are missing.
        """
        load_bindings()
        heads = n_heads(target.model) if target.model is not None else 0
        if heads == 0:
            raise SourceUnavailable(
                "this model has no multi-token-prediction head (nextn block), so mtp cannot draft "
                "for it: use --draft-source ngram, which runs on any model"
            )
        if heads > 1:
            raise SourceUnavailable(
                f"this model has {heads} multi-token-prediction heads, and mtp drafts with one: "
                "use --draft-source ngram, which runs on any model"
            )
        self.close()
        self._head = HeadContext(target)
        self._rows = np.empty((N_UBATCH + target.n_batch, self._head.n_embd), np.float32)
        self._rows_address = self._rows.ctypes.data

    @hookimpl
    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """Start anew, or keep the positions that the target keeps where they are the same."""
        self._n_prompt = len(prompt)
        if 0 < n_past == len(self._tokens) and prompt[:n_past].tolist() == self._tokens:
            return
        self._forget()
        if n_past > 0:
            # The rows of those positions are gone: stay out of step until the next request.
            self._n_rows = 0

    def _forget(self) -> None:
        self._tokens = []
        if self._head is not None:
            self._head.rewind(0)
            # Before the first token there is nothing: the head was trained on a row of zeros.
            self._rows[0] = 0.0
            self._n_rows = 1

    @hookimpl
    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """Note the tokens and the target's hidden rows.

        When a batch has come together, catch up on it or, in an answer, forget the older ones.
        """
        head, n_rows = self._head, self._n_rows
        if head is None or not n_rows:
            return
        if n_past != len(self._tokens):
            self._n_rows = 0
            return
        head.copy_target_rows(len(tokens), self._rows_address + n_rows * head.row_bytes)
        self._n_rows += len(tokens)
        self._tokens.extend(tokens.tolist())
        if self._n_rows > N_UBATCH:
            if n_past >= self._n_prompt and head.may_jump:
                head.n_past = len(self._tokens) - N_KEPT
                self._keep_rows(N_KEPT + 1)
            else:
                head.decode(self._tokens[head.n_past :], self._rows, logits=False)
                self._keep_rows(1)

    def _keep_rows(self, n: int) -> None:
        """None of the rows is needed any more but the last ``n``."""
        self._rows[:n] = self._rows[self._n_rows - n : self._n_rows]
        self._n_rows = n

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Draft | None:
        """The head's greedy continuation, up to ``n_max`` tokens or to a doubtful one."""
        head = self._head
        if head is None or not self._n_rows or len(tokens) != len(self._tokens) + 1:
            return None
        n_confirmed = len(self._tokens)
        # One decode catches up and drafts the first token.
        todo = [*self._tokens[head.n_past :], int(tokens[-1])]
        rows = self._rows
        drafted: list[int] = []
        buckets: list[int] = []
        confidence: list[float] = []
        try:
            while True:
                logits = head.decode(todo, rows, logits=True)
                assert logits is not None
                token = int(logits.argmax())
                probability = _probability(logits, token)
                if probability < self.p_min:
                    break
                drafted.append(token)
                buckets.append(min(int(probability * N_BUCKETS), N_BUCKETS - 1))
                confidence.append(min(round(probability, 2), 1.0))
                if len(drafted) == n_max:
                    break
                todo, rows = [token], head.last_row()
        finally:
            if head.n_past > n_confirmed:
                self._keep_rows(1)
                head.rewind(n_confirmed)
        return Draft(drafted, tuple(buckets), tuple(confidence)) if drafted else None

    @hookimpl
    def report(self) -> list[str]:
        """What the head's context holds."""
        return [] if self._head is None else [f"draft context {self._head.mib:.1f} MiB"]

    @hookimpl
    def close(self) -> None:
        """Free the head's context."""
        if self._head is not None:
            self._head.close()
            self._head = None
        self._tokens = []
        self._n_rows = 0


def _probability(logits: Rows, token: int) -> float:
    """The softmax of the highest logit."""
    differences = logits - logits[token]
    return 1.0 / float(np.exp(differences, out=differences).sum())
