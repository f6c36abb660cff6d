"""The loop on a fake target: exact counts, exact output, and a memory that agrees."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from attrs import define, field

from bmoe_core import (
    CostGate,
    DecodeError,
    Draft,
    EmptyPromptError,
    FinishReason,
    Generation,
    PromptTooLongError,
    Step,
    Tally,
    UsageError,
    generate,
)
from bmoe_core.policy import Outcome, Trial
from bmoe_core.steps import common_prefix
from bmoe_core.testing import FakeTarget, ScriptedSource, hashed

PROMPT = [1, 2, 3]


def count_up(tokens: Sequence[int]) -> int:
    """The next token is the last one plus one, modulo 16."""
    return (tokens[-1] + 1) % 16


def right(tokens: np.ndarray, n_max: int) -> list[int]:
    """What count_up is going to say."""
    return [(int(tokens[-1]) + 1 + i) % 16 for i in range(n_max)]


def run(target: FakeTarget, **arguments: Any) -> tuple[Generation, list[Step]]:
    generation = generate(target, arguments.pop("prompt", PROMPT), **arguments)
    return generation, list(generation)


def answer(generation: Generation) -> list[int]:
    return generation.tokens[generation.n_prompt :]


@pytest.mark.parametrize(
    ("tokens", "others", "n"),
    [
        ([], [], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 3, 2], 1),
        ([4], [5], 0),
    ],
)
def test_a_common_prefix_ends_at_the_first_difference(
    tokens: list[int], others: list[int], n: int
) -> None:
    """Or with the shorter one."""
    assert common_prefix(tokens, others) == n


class TestPlain:
    def test_a_step_is_one_token_and_one_row(self) -> None:
        """Without a source every decode after the prompt takes one token."""
        target = FakeTarget(rule=count_up)
        generation, steps = run(target, n_predict=5)
        assert answer(generation) == [4, 5, 6, 7, 8]
        assert target.n_decoded == [3, 1, 1, 1, 1, 1]
        assert [step.n_drafted for step in steps] == [0] * 5
        assert generation.finish_reason is FinishReason.LENGTH

    def test_a_declined_step_is_a_plain_decode(self) -> None:
        """A source that declines changes neither the decodes nor the answer."""
        plain, declined = FakeTarget(), FakeTarget()
        expected, _ = run(plain, n_predict=20)
        actual, _ = run(declined, n_predict=20, source=ScriptedSource())
        assert actual.tokens == expected.tokens
        assert declined.n_decoded == plain.n_decoded

    def test_a_long_prompt_is_decoded_in_chunks(self) -> None:
        """A prompt longer than n_batch takes several decodes, and logits of the last row only."""
        target = FakeTarget(rule=count_up, n_batch=4)
        source = ScriptedSource()
        generation, _ = run(target, prompt=list(range(10)), n_predict=2, source=source)
        assert target.n_decoded == [4, 4, 2, 1, 1]
        assert answer(generation) == [10, 11]
        assert source.observed[:3] == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 4), ([8, 9], 8)]

    def test_prefill_progress_counts_prompt_tokens(self) -> None:
        """on_prefill gets the tokens done and their total, chunk by chunk."""
        seen: list[tuple[int, int]] = []
        target = FakeTarget(n_batch=4)
        run(target, prompt=[1] * 9, n_predict=1, on_prefill=lambda *counts: seen.append(counts))
        assert seen == [(4, 9), (8, 9), (9, 9)]

    def test_nothing_to_predict_decodes_the_prompt_alone(self) -> None:
        """n_predict 0 ends after the prefill."""
        target = FakeTarget()
        generation, steps = run(target, n_predict=0)
        assert steps == []
        assert generation.finish_reason is FinishReason.LENGTH
        assert target.held == PROMPT


class TestVerify:
    def test_a_right_draft_is_accepted_whole(self) -> None:
        """A step confirms the settled token, its whole draft, and settles the next."""
        target = FakeTarget(rule=count_up)
        _, steps = run(target, n_predict=8, source=ScriptedSource(right), width=3)
        assert [step.tokens for step in steps] == [(4, 5, 6, 7), (8, 9, 10, 11)]
        assert target.n_decoded == [3, 4, 4]

    @pytest.mark.parametrize("n_right", range(9))
    @pytest.mark.parametrize("recurrent", [False, True])
    def test_every_rejection_depth(self, n_right: int, recurrent: bool) -> None:
        """The right part is accepted, the rest is taken back, at every depth of width 8."""

        def half_right(tokens: np.ndarray, n_max: int) -> list[int]:
            draft = right(tokens, 8)
            return draft[:n_right] + [(token + 5) % 16 for token in draft[n_right:]]

        target = FakeTarget(rule=count_up, recurrent=recurrent, max_rollback=8)
        generation = generate(target, PROMPT, source=ScriptedSource(half_right), width=8)
        step = next(iter(generation))
        assert step.tokens == tuple(range(4, 5 + n_right))
        assert (step.n_drafted, step.n_accepted) == (8, n_right)
        assert target.held == generation.tokens

    def test_only_confirmed_tokens_are_observed(self) -> None:
        """The rejected tail is never shown, and every decode is, at its own position."""
        source = ScriptedSource(lambda tokens, n_max: [*right(tokens, 1), 0, 0][:n_max])
        target = FakeTarget(rule=count_up)
        run(target, n_predict=6, source=source)
        assert source.observed == [([1, 2, 3], 0), ([4, 5], 3), ([6, 7], 5), ([8, 9], 7)]

    def test_observe_comes_before_the_rollback(self) -> None:
        """While a source observes, the target still holds the rows of the whole batch."""
        held: list[int] = []
        target = FakeTarget(rule=count_up)

        class Watching(ScriptedSource):
            def observe(self, tokens: np.ndarray, n_past: int) -> None:
                held.append(target.n_past)

        run(target, n_predict=1, width=3, source=Watching())
        source = Watching(lambda tokens, n_max: [0] * n_max)
        target.clear()
        held.clear()
        run(target, n_predict=2, width=3, source=source)
        assert held == [3, 3 + 1 + 1, 5]

    def test_the_evidence_is_on_the_step(self) -> None:
        """What the source says of its draft reaches the accounts."""
        source = ScriptedSource(lambda tokens, n_max: Draft(right(tokens, 2), evidence=7))
        _, steps = run(FakeTarget(rule=count_up), n_predict=3, source=source)
        assert steps[0].evidence == 7

    def test_pick_is_asked_once_a_position_in_order(self) -> None:
        """A choice that depends on its own past, as sampling does, is the same with drafts."""

        def alternating() -> Callable[[np.ndarray], int]:
            calls = iter(range(1000))
            return lambda row: (int(row.argmax()) + next(calls) % 2) % 16

        plain, _ = run(FakeTarget(), n_predict=40, pick=alternating())
        source = ScriptedSource(lambda tokens, n_max: plain.tokens[len(tokens) :][:n_max])
        speculated, steps = run(FakeTarget(), n_predict=40, pick=alternating(), source=source)
        assert speculated.tokens == plain.tokens
        assert sum(step.n_accepted for step in steps) > 20


@define(eq=False)
class FixedGate:
    """Asks for ``n_asked`` and verifies ``n_verified``; keeps what it was told."""

    n_asked: int = 3
    n_verified: int = 3
    widths: Sequence[int] = ()
    calls: list[str] = field(factory=list)
    trials: list[Trial] = field(factory=list)
    rooms: list[int] = field(factory=list)
    outcomes: list[Outcome] = field(factory=list)

    def begin(self) -> None:
        self.calls.append("begin")

    def calibration(self, most: int) -> Sequence[int]:
        return self.widths

    def calibrate(self, trials: Sequence[Trial]) -> None:
        self.calls.append("calibrate")
        self.trials += trials

    def ask(self, room: int) -> int:
        self.calls.append("ask")
        self.rooms.append(room)
        return min(self.n_asked, room)

    def choose(self, draft: Draft, draft_s: float) -> int:
        self.calls.append("choose")
        assert draft_s >= 0.0
        return min(self.n_verified, len(draft.tokens))

    def learn(self, outcome: Outcome) -> None:
        self.calls.append("learn")
        self.outcomes.append(outcome)


class TestGate:
    """The gate decides how many tokens are asked for, and how many verified."""

    def test_it_is_called_in_order_once_a_step(self) -> None:
        """Begin and calibrate around the prompt; ask, choose and learn around each decode."""
        gate = FixedGate()
        _, steps = run(FakeTarget(), n_predict=5, source=ScriptedSource(), gate=gate)
        assert gate.calls == ["begin", "calibrate", *["ask", "choose", "learn"] * len(steps)]

    def test_the_end_of_the_prompt_is_read_in_the_widths_it_wants_to_know(self) -> None:
        """Five tokens as two at once, then two and one that are timed; the source sees all.

        Before each of those it is asked for as many tokens to follow what comes next, and its time
        is told apart from the decode's; once before, so that it has nothing to catch up on."""
        gate, target = FixedGate(widths=(2, 1)), FakeTarget(rule=count_up)
        source = ScriptedSource(lambda tokens, n_max: [int(tokens[-1]) + 1] * n_max)
        _, steps = run(target, prompt=[1, 2, 3, 4, 5], n_predict=1, source=source, gate=gate)
        assert target.n_decoded[:3] == [2, 2, 1]
        assert source.observed[:3] == [([1, 2], 0), ([3, 4], 2), ([5], 4)]
        assert source.asked[:3] == [(3, 1), (3, 2), (5, 1)]
        assert [trial.n_positions for trial in gate.trials] == [2, 1]
        assert [list(trial.draft.tokens) for trial in gate.trials] == [[4, 4], [6]]
        assert [list(trial.followed) for trial in gate.trials] == [[4, 5], [6]]
        assert all(trial.decode_s > 0.0 and trial.draft_s > 0.0 for trial in gate.trials)
        assert steps[0].tokens == (6,)

    def test_it_is_told_what_the_target_would_have_said_there(self) -> None:
        """Where the prompt goes on otherwise, nothing beyond is known."""
        gate, target = FixedGate(widths=(2, 1)), FakeTarget(rule=count_up)
        source = ScriptedSource(lambda tokens, n_max: [int(tokens[-1]) + 1] * n_max)
        run(target, prompt=[1, 2, 3, 7, 8], n_predict=1, source=source, gate=gate)
        assert [list(trial.draft.tokens) for trial in gate.trials] == [[4, 4], [9]]
        assert [list(trial.followed) for trial in gate.trials] == [[4], [9]]

    def test_a_prompt_shorter_than_that_is_read_at_once(self) -> None:
        """And nothing is timed."""
        gate, target = FixedGate(widths=(3, 1)), FakeTarget(rule=count_up)
        run(target, n_predict=1, source=ScriptedSource(), gate=gate)
        assert target.n_decoded[0] == 3
        assert gate.trials == []

    def test_a_draft_is_cut_to_what_it_chooses(self) -> None:
        """Three tokens proposed, one of them verified, all in the step's count."""
        gate = FixedGate(n_verified=1)
        target = FakeTarget(rule=count_up)
        _, steps = run(target, n_predict=4, source=ScriptedSource(right), gate=gate)
        assert target.n_decoded == [3, 2, 2]
        assert [(step.n_proposed, step.n_drafted) for step in steps] == [(3, 1), (1, 1)]

    def test_a_declined_draft_is_a_plain_decode(self) -> None:
        """It goes along as a shadow: the gate is told what followed."""
        gate = FixedGate(n_verified=0)
        target = FakeTarget(rule=count_up)
        _, steps = run(target, n_predict=3, source=ScriptedSource(right), gate=gate)
        assert target.n_decoded == [3, 1, 1, 1]
        assert [step.n_proposed for step in steps] == [2, 1, 0]
        assert [list(outcome.followed) for outcome in gate.outcomes] == [[5], [6], [7]]

    def test_a_source_that_is_not_asked_still_observes(self) -> None:
        """That is how it stays in step."""
        source = ScriptedSource(right)
        run(FakeTarget(rule=count_up), n_predict=2, source=source, gate=FixedGate(n_asked=0))
        assert source.asked == []
        assert source.observed == [([1, 2, 3], 0), ([4], 3), ([5], 4)]

    def test_it_is_told_what_followed_the_settled_token(self) -> None:
        """The accepted tokens, then the next settled one."""
        gate = FixedGate()
        script = lambda tokens, n_max: [*right(tokens, 2), 0][:n_max]  # noqa: E731
        run(FakeTarget(rule=count_up), n_predict=4, source=ScriptedSource(script), gate=gate)
        assert list(gate.outcomes[0].followed) == [5, 6, 7]
        assert gate.outcomes[0].decode_s > 0.0
        assert gate.outcomes[0].rollback_s > 0.0

    def test_a_right_draft_is_rolled_back_in_no_time(self) -> None:
        """There was nothing to take back."""
        gate = FixedGate()
        run(FakeTarget(rule=count_up), n_predict=4, source=ScriptedSource(right), gate=gate)
        assert gate.outcomes[0].rollback_s == 0.0

    def test_room_is_what_width_and_prediction_leave(self) -> None:
        """A width of 20 is cut to the 11 that may follow the first of 12 tokens."""
        gate = FixedGate(n_asked=0)
        target = FakeTarget(max_rollback=64)
        run(target, n_predict=12, width=20, source=ScriptedSource(), gate=gate)
        assert gate.rooms == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]

    @pytest.mark.parametrize("recurrent", [False, True])
    def test_the_answer_is_the_plain_one(self, recurrent: bool) -> None:
        """With the real gate, whatever it makes of the times of this machine."""
        plain, _ = run(FakeTarget(n_ctx=400), n_predict=300)
        gate = CostGate()
        for _ in range(2):
            target = FakeTarget(n_ctx=400, max_rollback=64, n_batch=128, recurrent=recurrent)
            oracle = ScriptedSource(lambda tokens, n_max: plain.tokens[len(tokens) :][:n_max])
            gated, steps = run(target, n_predict=300, width=64, source=oracle, gate=gate)
            assert gated.tokens == plain.tokens
            assert gate.record.n_steps == len(steps)
            assert gate.record.n_verified == sum(step.n_drafted for step in steps)
            declined = sum(step.n_proposed > 0 and not step.drafted for step in steps)
            assert gate.record.n_declined == declined


class TestRoom:
    @pytest.mark.parametrize("n_predict", range(1, 12))
    def test_n_predict_is_exact(self, n_predict: int) -> None:
        """An accepted group never runs past n_predict."""
        target = FakeTarget(rule=count_up)
        generation, steps = run(target, n_predict=n_predict, source=ScriptedSource(right))
        assert len(answer(generation)) == n_predict
        assert sum(len(step.tokens) for step in steps) == n_predict
        assert target.held == generation.tokens

    @pytest.mark.parametrize("n_ctx", range(4, 14))
    def test_the_context_is_used_to_its_last_cell(self, n_ctx: int) -> None:
        """Generation fills the context exactly, drafting or not."""
        target = FakeTarget(rule=count_up, n_ctx=n_ctx)
        generation, _ = run(target, source=ScriptedSource(right), width=4)
        assert generation.finish_reason is FinishReason.CONTEXT
        assert target.held == generation.tokens
        assert len(generation.tokens) == n_ctx

    def test_with_no_room_the_source_is_not_asked(self) -> None:
        """The last token of n_predict leaves nothing to draft."""
        source = ScriptedSource(right)
        run(FakeTarget(rule=count_up), n_predict=1, source=source)
        assert source.asked == []

    @pytest.mark.parametrize(
        ("width", "max_rollback", "n_batch", "room"),
        [(8, 8, 32, 8), (8, 2, 32, 2), (8, 8, 5, 4), (0, 8, 32, None)],
    )
    def test_width_rollback_and_batch_bound_the_draft(
        self, width: int, max_rollback: int, n_batch: int, room: int | None
    ) -> None:
        """A draft is never wider than asked, than can be taken back, or than a batch holds."""
        source = ScriptedSource()
        target = FakeTarget(max_rollback=max_rollback, n_batch=n_batch)
        run(target, n_predict=20, source=source, width=width)
        assert (source.asked[0][1] if source.asked else None) == room


class TestEndOfGeneration:
    def test_it_is_neither_emitted_nor_held(self) -> None:
        """A settled end-of-generation token ends the run before it is decoded."""
        target = FakeTarget(rule=count_up, eog=frozenset({6}))
        generation, _ = run(target)
        assert answer(generation) == [4, 5]
        assert generation.finish_reason is FinishReason.EOG
        assert target.held == generation.tokens

    @pytest.mark.parametrize("eog", range(4, 12))
    @pytest.mark.parametrize("recurrent", [False, True])
    def test_inside_an_accepted_draft(self, eog: int, recurrent: bool) -> None:
        """Accepted at any place of a draft it is counted, not emitted, and nothing follows it."""
        target = FakeTarget(rule=count_up, eog=frozenset({eog}), recurrent=recurrent)
        generation, steps = run(target, source=ScriptedSource(right), width=3)
        assert answer(generation) == list(range(4, eog))
        assert generation.finish_reason is FinishReason.EOG
        assert target.held == generation.tokens
        counted = sum(1 + step.n_accepted for step in steps)
        assert counted - len(answer(generation)) in (0, 1)

    def test_as_the_first_token(self) -> None:
        """A prompt that is answered with nothing yields no step."""
        generation, steps = run(FakeTarget(rule=count_up, eog=frozenset({4})))
        assert steps == []
        assert generation.finish_reason is FinishReason.EOG

    def test_a_rejected_one_ends_nothing(self) -> None:
        """An end-of-generation token that the target did not choose is a wrong draft."""
        target = FakeTarget(rule=count_up, eog=frozenset({0}))
        generation, _ = run(
            target, n_predict=4, source=ScriptedSource(lambda tokens, n_max: [0] * n_max)
        )
        assert answer(generation) == [4, 5, 6, 7]


class TestKeptState:
    def test_the_next_generation_goes_on_from_the_kept_state(self) -> None:
        """Generating again from what the target holds equals one long plain run."""
        plain, _ = run(FakeTarget(), n_predict=40)
        target = FakeTarget()
        oracle = ScriptedSource(lambda tokens, n_max: plain.tokens[len(tokens) :][:n_max])
        first, _ = run(target, n_predict=17, source=oracle)
        second, _ = run(
            target, prompt=first.tokens, n_past=len(first.tokens), n_predict=23, source=oracle
        )
        assert second.tokens == plain.tokens
        # The last token alone is decoded anew, for its row of logits.
        assert oracle.begun[1] == (first.tokens, len(first.tokens) - 1)

    def test_what_lies_beyond_the_prefix_is_dropped(self) -> None:
        """A shorter follow-up keeps the common prefix and forgets the rest."""
        target = FakeTarget()
        run(target, n_predict=20)
        generation, _ = run(target, prompt=[1, 2, 3, 9, 9], n_past=3, n_predict=5)
        expected, _ = run(FakeTarget(), prompt=[1, 2, 3, 9, 9], n_predict=5)
        assert generation.tokens == expected.tokens

    def test_a_memory_that_cannot_go_back_is_filled_anew(self) -> None:
        """A recurrent target is cleared, and the source is told that nothing is held."""
        target = FakeTarget(recurrent=True)
        run(target, n_predict=20)
        source = ScriptedSource()
        generation, _ = run(target, prompt=[1, 2, 3, 9, 9], n_past=3, n_predict=5, source=source)
        expected, _ = run(FakeTarget(), prompt=[1, 2, 3, 9, 9], n_predict=5)
        assert generation.tokens == expected.tokens
        assert source.begun == [([1, 2, 3, 9, 9], 0)]

    @pytest.mark.parametrize("n_steps", range(1, 6))
    def test_a_consumer_that_stops_early(self, n_steps: int) -> None:
        """After any step the target holds the confirmed tokens and no others."""
        target = FakeTarget(rule=count_up)
        generation = generate(target, PROMPT, source=ScriptedSource(right), n_predict=30)
        steps = [step for _, step in zip(range(n_steps), generation, strict=False)]
        generation.close()
        assert generation.finish_reason is FinishReason.INTERRUPTED
        assert generation.n_generated == sum(len(step.tokens) for step in steps) == 4 * n_steps
        assert target.held == generation.tokens

    @pytest.mark.parametrize("recurrent", [False, True])
    @pytest.mark.parametrize("where", ["draft", "observe", "pick"])
    def test_an_interrupt_in_mid_step(self, where: str, recurrent: bool) -> None:
        """Wherever Ctrl-C strikes, the target holds a prefix of the tokens, and says how long."""
        calls = 0

        def strike(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt

        class Struck(ScriptedSource):
            def draft(self, tokens: np.ndarray, n_max: int) -> Any:
                if where == "draft":
                    strike()
                return right(tokens, n_max)

            def observe(self, tokens: np.ndarray, n_past: int) -> None:
                if where == "observe":
                    strike()

        def pick(row: np.ndarray) -> int:
            if where == "pick":
                strike()
            return int(row.argmax())

        target = FakeTarget(rule=count_up, recurrent=recurrent)
        generation = generate(target, PROMPT, source=Struck(), n_predict=30, pick=pick)
        with pytest.raises(KeyboardInterrupt):
            list(generation)
        assert target.held == generation.tokens[: generation.n_past]
        if not recurrent:
            assert generation.n_past == len(generation.tokens)

    def test_a_failed_decode_is_raised_and_leaves_a_clean_state(self) -> None:
        """An error of the target ends the run; what was confirmed is still there."""

        class Failing(FakeTarget):
            def decode(self, tokens: Sequence[int], n_rows: int) -> np.ndarray:
                if self.n_past > 8:
                    raise DecodeError("out of order")
                return super().decode(tokens, n_rows)

        target = Failing(rule=count_up)
        generation = generate(target, PROMPT, source=ScriptedSource(right))
        with pytest.raises(DecodeError, match="out of order"):
            list(generation)
        assert target.held == generation.tokens


class TestOneGenerationATime:
    """A target serves the generation that began last."""

    def test_a_forgotten_generation_leaves_the_target_alone(self) -> None:
        """Collected late, it does not take back what another has confirmed."""
        target = FakeTarget()
        expected, _ = run(FakeTarget(), prompt=[9, 8, 7, 6], n_predict=20)
        old = generate(target, PROMPT, n_predict=30)
        next(iter(old))
        target.clear()
        new = generate(target, [9, 8, 7, 6], n_predict=20)
        steps = iter(new)
        for _ in range(5):
            next(steps)
        del old
        gc.collect()
        list(steps)
        assert new.tokens == expected.tokens

    def test_an_older_one_cannot_go_on(self) -> None:
        """It says so, and the newer one is not disturbed."""
        target = FakeTarget()
        old = generate(target, PROMPT, n_predict=30)
        next(iter(old))
        target.clear()
        new = generate(target, PROMPT, n_predict=30)
        next(iter(new))
        held = list(target.held)
        with pytest.raises(UsageError, match="another generation has begun"):
            next(iter(old))
        assert target.held == held
        assert old.finish_reason is FinishReason.FAILED


class TestRefusals:
    def test_an_empty_prompt(self) -> None:
        """There is nothing to go on from."""
        with pytest.raises(EmptyPromptError):
            generate(FakeTarget(), [])

    @pytest.mark.parametrize("n_prompt", [8, 9])
    def test_a_prompt_that_fills_the_context(self, n_prompt: int) -> None:
        """Both numbers are named."""
        with pytest.raises(PromptTooLongError, match=f"{n_prompt} tokens .* holds 8"):
            generate(FakeTarget(n_ctx=8), [1] * n_prompt)

    def test_a_source_that_was_not_opened(self) -> None:
        """open_source is what makes hooks callable."""
        with pytest.raises(UsageError, match="object is not an opened source"):
            generate(FakeTarget(), PROMPT, source=object())  # type: ignore[arg-type]

    def test_a_target_that_was_not_made_for_drafts(self) -> None:
        """A source that would never be asked is a mistake, not a slow run."""
        with pytest.raises(UsageError, match="max_draft=N"):
            generate(FakeTarget(max_rollback=0), PROMPT, source=ScriptedSource())

    def test_what_pick_returns_becomes_a_plain_number(self) -> None:
        """numpy's integers are no JSON."""
        generation, _ = run(FakeTarget(), n_predict=5, pick=lambda row: row.argmax())
        assert all(type(token) is int for token in generation.tokens)

    def test_more_kept_positions_than_are_held(self) -> None:
        """n_past is checked against the target."""
        with pytest.raises(ValueError, match="n_past is 3, and the target holds 0"):
            generate(FakeTarget(), PROMPT, n_past=3)


EOG = 15
KINDS = ("decline", "random", "right", "half-right", "repeated", "eog", "long-right")


def adversary(seed: int, future: Callable[[Sequence[int]], int]) -> ScriptedSource:
    """Drafts something else every time: right, wrong, in part, repeated, or an end of text."""
    random_ = random.Random(seed)

    def script(tokens: np.ndarray, n_max: int) -> list[int]:
        kind = random_.choice(KINDS)
        history = tokens.tolist()
        while len(history) < len(tokens) + n_max:
            history.append(future(history))
        coming = history[len(tokens) :]
        n = random_.randint(1, n_max)
        return {
            "decline": [],
            "random": [random_.randrange(16) for _ in range(n)],
            "right": coming[:n],
            "half-right": [
                token if i < n // 2 else random_.randrange(16) for i, token in enumerate(coming)
            ],
            "repeated": [int(tokens[-1])] * n,
            "eog": [*coming[: n - 1], EOG],
            "long-right": coming,
        }[kind]

    return ScriptedSource(script)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("seed", range(20))
def test_any_source_gives_the_plain_answer(seed: int, width: int, recurrent: bool) -> None:
    """320 runs: whatever is drafted, tokens, counts and memory are those of the plain run."""
    rule = hashed(order=2, seed=seed)
    eog = frozenset({EOG}) if seed % 2 else frozenset()
    plain, _ = run(FakeTarget(rule=rule, eog=eog), n_predict=60)
    target = FakeTarget(rule=rule, eog=eog, recurrent=recurrent)
    source = adversary(seed * 8 + width, rule)
    generation, steps = run(target, n_predict=60, source=source, width=width, strict=True)
    assert generation.tokens == plain.tokens
    assert generation.finish_reason is plain.finish_reason
    assert target.held == generation.tokens
    tally = Tally()
    for step in steps:
        tally.add(step)
    summary = tally.summary
    trimmed = summary.n_decodes + summary.n_accepted - summary.n_generated
    assert trimmed in (0, 1)
    assert trimmed == 0 or generation.finish_reason is FinishReason.EOG
    assert summary.n_generated == len(answer(generation))
