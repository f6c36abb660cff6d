"""Generation: draft, verify, accept, observe, roll back.

The target's choice decides every token. A draft is verified in one decode together with the
settled token, which is decided but not yet in the target's memory; the longest prefix that equals
what the target would have chosen is accepted, and the row after it gives the next settled token.
Without a draft a step is a plain decode: one token, one row of logits, nothing to roll back.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from attrs import evolve

from bmoe_core.errors import (
    EmptyPromptError,
    PromptTooLongError,
    RunError,
    UsageError,
)
from bmoe_core.guard import Source, SourceGuard
from bmoe_core.meter import Meter
from bmoe_core.policy import Outcome, Policy, Trial, VerifyAll
from bmoe_core.steps import (
    NO_DRAFT,
    Draft,
    FinishReason,
    SourceFailure,
    Step,
    common_prefix,
)

if TYPE_CHECKING:
    from bmoe_core.target.protocol import Target

DEFAULT_WIDTH = 3
"""Draft tokens a verify decode, as in the n-gram decoding of BigMoeOnEdge."""
MAX_WIDTH = 8

_serving: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
"""Which generation each target serves now."""

Pick = Callable[[npt.NDArray[np.float32]], int]
"""Chooses a token from a row of logits, float32 of shape (n_vocab,)."""

Stop = Callable[[Sequence[int]], "int | None"]
"""Given the tokens that a step confirms: how many of all generated tokens stay, or None to go on.

It is asked once a step, before the rollback. What it cuts off may begin in an earlier step.
"""


def argmax(row: npt.NDArray[np.float32]) -> int:
    """The token of the highest logit; of equal ones, the lowest id."""
    return int(row.argmax())


def generate(
    target: Target,
    prompt: Sequence[int],
    *,
    source: Source | None = None,
    n_predict: int = 256,
    width: int = DEFAULT_WIDTH,
    gate: Policy | None = None,
    n_past: int = 0,
    pick: Pick = argmax,
    stop: Stop | None = None,
    strict: bool = False,
    on_prefill: Callable[[int, int], None] | None = None,
) -> Generation:
    """Generate up to ``n_predict`` tokens after ``prompt``.

    Args:
        target: the model that decides.
        prompt: token ids, at least one.
        source: an opened draft source, or None for plain decoding.
        n_predict: the most tokens to generate.
        width: the most draft tokens a verify decode; bounded by what the target can roll back.
        gate: decides whether, and how wide up to ``width``, to draft, such as a
            :class:`bmoe_core.CostGate`; it learns from this generation, and may serve the next one
            of the same target and source. None: every draft is verified, as wide as it is.
        n_past: how many tokens of ``prompt`` the target already holds, in the same order; at least
            the last one is decoded anew. What it holds beyond them is dropped. A target that
            cannot be taken back so far is cleared, and the whole prompt is decoded.
        pick: chooses a token from a row of logits; called once a position, in order.
        stop: ends the generation by what it has said; None: nothing does.
        strict: raise where the source fails instead of going on without it.
        on_prefill: called with the prompt tokens decoded and their total, after each chunk.

    Returns:
        The generation, which runs as it is iterated over.

    Raises:
        EmptyPromptError: no tokens.
        PromptTooLongError: the prompt fills the context.
        UsageError: ``n_past`` is more than the target holds, a number is negative, or the source
            was not opened or the target not made for drafts.
    """
    if not len(prompt):
        raise EmptyPromptError("the prompt is empty: give some text to go on from")
    if len(prompt) >= target.n_ctx:
        raise PromptTooLongError(len(prompt), target.n_ctx)
    if not 0 <= n_past <= target.n_past:
        raise UsageError(f"n_past is {n_past}, and the target holds {target.n_past} positions")
    if n_predict < 0 or width < 0:
        raise UsageError(f"n_predict ({n_predict}) and width ({width}) may not be negative")
    if source is not None:
        if not all(hasattr(source, name) for name in ("name", "begin", "observe", "draft")):
            raise UsageError(
                f"{type(source).__name__} is not an opened source: give open_source(...)"
            )
        if width > 0 and target.max_rollback == 0:
            raise UsageError(
                "this target cannot take a draft back: make it with LlamaTarget(model, max_draft=N)"
            )
    return Generation(
        target=target,
        prompt=prompt,
        guard=SourceGuard(source, n_vocab=target.n_vocab, strict=strict),
        n_predict=n_predict,
        width=min(width, target.max_rollback, target.n_batch - 1),
        policy=VerifyAll() if gate is None else gate,
        n_past=min(n_past, len(prompt) - 1),
        pick=pick,
        stop=stop,
        on_prefill=on_prefill,
    )


class Generation:
    """A generation that runs as it is iterated over: one :class:`Step` a target decode.

    However it ends, by itself, by :meth:`close`, by an exception or by an interrupt, the target
    then holds the first ``n_past`` of ``tokens``, which is all of them unless a rollback was
    impossible. One that never began has left the target alone. A target serves one generation at a
    time: where another has begun on it, an older one cannot go on, and ends without touching it.

    Attributes:
        tokens: the prompt and every confirmed token.
        n_prompt: tokens of the prompt.
        n_reused: of them, those that the target held already; known once the generation began.
        n_past: tokens of ``tokens`` that the target holds; valid between steps and at the end.
        finish_reason: why it ended; ``INTERRUPTED`` until it has.
        prefill_s: seconds from the beginning to the first settled token.
        wall_s: seconds from the end of the prefill to now, or to the end.
    """

    def __init__(
        self,
        *,
        target: Target,
        prompt: Sequence[int],
        guard: SourceGuard,
        n_predict: int,
        width: int,
        policy: Policy,
        n_past: int,
        pick: Pick,
        stop: Stop | None,
        on_prefill: Callable[[int, int], None] | None,
    ) -> None:
        self.tokens = [int(token) for token in prompt]
        self.n_prompt = len(self.tokens)
        self.n_reused = 0
        self.n_past = n_past
        self.finish_reason = FinishReason.INTERRUPTED
        self.prefill_s = 0.0
        self._target = target
        self._guard = guard
        self._n_predict = n_predict
        self._width = width
        self._policy = policy
        self._pick = pick
        self._stop = stop
        self._stopped = False
        self._on_prefill = on_prefill
        # What a source is lent is a copy: whatever it does to it, the answer is not touched.
        self._lent = np.empty(target.n_ctx + 1, np.int32)
        self._lent[: self.n_prompt] = self.tokens
        self._prefilled_at: float | None = None
        self._ended_at: float | None = None
        self._ticket = object()
        self._steps = self._run()

    @property
    def n_generated(self) -> int:
        """Confirmed tokens after the prompt."""
        return len(self.tokens) - self.n_prompt

    @property
    def source_failure(self) -> SourceFailure | None:
        """Why the source was switched off, or where it hung until an interrupt; else None."""
        return self._guard.failure

    @property
    def wall_s(self) -> float:
        """Seconds since the end of the prefill, the consumer's own time included."""
        if self._prefilled_at is None:
            return 0.0
        return (self._ended_at or time.perf_counter()) - self._prefilled_at

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def close(self) -> None:
        """End the generation where it stands."""
        self._steps.close()

    def _run(self) -> Generator[Step, None, None]:
        target, guard, policy, meter = self._target, self._guard, self._policy, Meter()
        _serving[target] = self._ticket
        try:
            policy.begin()
            settled = int(self._pick(self._prefill()))
            while not self._ends_before(settled):
                began = time.perf_counter()
                self._lent[len(self.tokens)] = settled
                n_asked = policy.ask(self._room())
                asked_at = time.perf_counter()
                draft = NO_DRAFT
                if n_asked:
                    draft = guard.draft(self._history(len(self.tokens) + 1), n_asked)
                drafted_at = time.perf_counter()
                drafted = list(draft.tokens[: policy.choose(draft, guard.seconds)])
                policy_s = time.perf_counter() - drafted_at + asked_at - began

                meter.start()
                rows = target.decode([settled, *drafted], n_rows=1 + len(drafted))
                n_accepted, next_settled = self._accept(rows, drafted)
                meter.stop()

                confirmed = [settled, *drafted[:n_accepted]]
                if target.is_eog(confirmed[-1]):
                    confirmed.pop()
                confirmed, n_taken_back = self._cut_at_stop(confirmed)
                decode = meter.take()
                if confirmed:
                    guard.observe(confirmed, len(self.tokens))
                    if target.n_past != len(self.tokens) + len(confirmed):
                        meter.start()
                        target.roll_back(len(self.tokens) + len(confirmed))
                        meter.stop()
                    self._confirm(confirmed)
                else:
                    self._take_back(n_taken_back)

                rollback, draft_s = meter.take(), guard.take_seconds()
                followed = (*drafted[:n_accepted], next_settled)
                policy.learn(
                    Outcome(followed, decode.wall_s, rollback.wall_s, target.n_pending, policy_s)
                )
                decode += rollback
                yield Step(
                    tokens=tuple(confirmed),
                    n_proposed=len(draft.tokens),
                    n_drafted=len(drafted),
                    n_accepted=n_accepted,
                    decode=decode,
                    draft_s=draft_s,
                    loop_s=time.perf_counter() - began - decode.wall_s - draft_s,
                    evidence=draft.evidence,
                    n_taken_back=n_taken_back,
                )
                if not self._is_served():
                    raise UsageError(
                        "another generation has begun on the target of this one, which cannot go on"
                    )
                settled = next_settled
        except Exception:
            self.finish_reason = FinishReason.FAILED
            raise
        finally:
            self._ended_at = time.perf_counter()
            if self._is_served():
                self._reconcile()

    def _is_served(self) -> bool:
        return _serving.get(self._target) is self._ticket

    def _prefill(self) -> npt.NDArray[np.float32]:
        """Decode what the target does not hold of the prompt; its last row of logits."""
        target, started = self._target, time.perf_counter()
        self._rewind_to_prefix()
        self.n_reused = self.n_past
        self._guard.begin(self._history(self.n_prompt), self.n_past)
        calibration = self._policy.calibration(1 + self._width)
        end = self.n_prompt - sum(calibration)
        if self.n_past > end:
            calibration, end = (), self.n_prompt
        while self.n_past < end:
            n = min(target.n_batch, end - self.n_past)
            rows = self._read_prompt(n, n_rows=int(self.n_past + n == self.n_prompt))
        trials: list[Trial] = []
        choices: list[int] = []
        self._guard.take_seconds()
        for n in calibration:
            # Asked once before, so that the trial does not count what the source catches up on.
            self._rehearse_draft(1)
            self._guard.take_seconds()
            draft = self._rehearse_draft(n)
            draft_s, began = self._guard.take_seconds(), time.perf_counter()
            rows = self._read_prompt(n, n_rows=n)
            decode_s = time.perf_counter() - began - self._guard.take_seconds()
            choices.extend(argmax(row) for row in rows)
            trials.append(Trial(n, decode_s, draft_s, draft))
        self._policy.calibrate(self._with_outcomes(trials, choices))
        self._prefilled_at = time.perf_counter()
        self.prefill_s = self._prefilled_at - started
        last: npt.NDArray[np.float32] = rows[-1]
        return last

    def _with_outcomes(self, trials: Sequence[Trial], choices: Sequence[int]) -> list[Trial]:
        """The trials with what the target would have said in the place of their drafts.

        That is known up to the first token that the prompt has otherwise.

        Args:
            trials: the last ones before the prompt's end.
            choices: the target's, after each of their positions.
        """
        coming = self.tokens[self.n_prompt - len(choices) + 1 :]
        told, first = [], 0
        for trial in trials:
            followed = choices[first : first + len(trial.draft.tokens)]
            n_as_said = common_prefix(followed, coming[first:])
            told.append(evolve(trial, followed=followed[: n_as_said + 1]))
            first += trial.n_positions
        return told

    def _rehearse_draft(self, n: int) -> Draft:
        """Ask the source for ``n`` tokens after the next one of the prompt."""
        if not self.n_past:
            return NO_DRAFT
        return self._guard.draft(self._history(self.n_past + 1), n)

    def _read_prompt(self, n: int, n_rows: int) -> npt.NDArray[np.float32]:
        """Decode the next ``n`` tokens of the prompt; the last ``n_rows`` rows of logits."""
        chunk = self.tokens[self.n_past : self.n_past + n]
        rows = self._target.decode(chunk, n_rows)
        self._guard.observe(chunk, self.n_past)
        self.n_past += n
        if self._on_prefill is not None:
            self._on_prefill(self.n_past, self.n_prompt)
        return rows

    def _rewind_to_prefix(self) -> None:
        try:
            self._target.roll_back(self.n_past)
        except RunError:
            self._target.clear()
            self.n_past = 0

    def _ends_before(self, settled: int) -> bool:
        """Whether the generation ends without emitting ``settled``; sets the reason."""
        if self._stopped:
            self.finish_reason = FinishReason.STOP
        elif self._target.is_eog(settled):
            self.finish_reason = FinishReason.EOG
        elif self.n_generated >= self._n_predict:
            self.finish_reason = FinishReason.LENGTH
        elif len(self.tokens) >= self._target.n_ctx:
            self.finish_reason = FinishReason.CONTEXT
        else:
            return False
        return True

    def _room(self) -> int:
        """Draft tokens that may follow the settled token in this step."""
        return min(
            self._width,
            self._n_predict - self.n_generated - 1,
            self._target.n_ctx - len(self.tokens) - 1,
        )

    def _accept(self, rows: npt.NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, int]:
        """How many draft tokens are the target's own choice, and the next settled token.

        That is the choice after those, or the end-of-generation token that was accepted last.
        """
        choice = int(self._pick(rows[0]))
        for i, token in enumerate(drafted):
            if token != choice:
                return i, choice
            if self._target.is_eog(token):
                return i + 1, token
            choice = int(self._pick(rows[i + 1]))
        return len(drafted), choice

    def _cut_at_stop(self, confirmed: list[int]) -> tuple[list[int], int]:
        """What stays of a step's tokens, and how many of earlier steps' tokens do not."""
        n_stay = None if self._stop is None else self._stop(confirmed)
        if n_stay is None:
            return confirmed, 0
        self._stopped = True
        n_kept = n_stay - self.n_generated
        return confirmed[: max(n_kept, 0)], max(-n_kept, 0)

    def _take_back(self, n_tokens: int) -> None:
        """Drop the last ``n_tokens`` confirmed ones, and all of the last decode, from the target.

        A recurrent memory cannot be taken back so far: it is cleared.
        """
        del self.tokens[len(self.tokens) - n_tokens :]
        self._reconcile()

    def _confirm(self, confirmed: Sequence[int]) -> None:
        """Count what was confirmed, which the target holds."""
        end = len(self.tokens) + len(confirmed)
        self._lent[len(self.tokens) : end] = confirmed
        self.tokens.extend(confirmed)
        self.n_past = end

    def _history(self, n: int) -> npt.NDArray[np.int32]:
        view = self._lent[:n]
        view.flags.writeable = False
        return view

    def _reconcile(self) -> None:
        """After an interruption in mid-step: drop from the target what was never confirmed."""
        self.n_past = min(self.n_past, len(self.tokens))
        try:
            self._target.roll_back(self.n_past)
        except RunError:
            self._target.clear()
            self.n_past = 0
