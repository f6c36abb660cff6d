"""The head stays in step with the target, whatever is drafted, rejected, kept or cancelled."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bmoe_mtp import MtpSource, nextn
from bmoe_mtp.source import N_KEPT

from bmoe_core import (
    Draft,
    Generation,
    LlamaModel,
    LlamaTarget,
    OpenSource,
    SourceOptionError,
    SourceUnavailable,
    Tally,
    generate,
    hookimpl,
    open_source,
)
from bmoe_core.cli import main
from bmoe_core.policy import VerifyAll
from bmoe_core.testing import FakeTarget
from bmoe_core.testing.models import f32_cache

N_CTX = 256
PROMPT = list(b"def main():\n    pass\n")
LONG = PROMPT * 2


@contextmanager
def opened(
    model: LlamaModel, source: OpenSource, *, max_draft: int = 8, n_ctx: int = N_CTX
) -> Iterator[LlamaTarget]:
    """A target that the source has taken."""
    with LlamaTarget(
        model, n_ctx=n_ctx, max_draft=max_draft, n_threads=1, prepare=f32_cache
    ) as target:
        source.open(target)
        yield target
        source.close()


def plain(
    model: LlamaModel, prompt: Sequence[int], n_predict: int, n_ctx: int = N_CTX
) -> list[int]:
    with LlamaTarget(model, n_ctx=n_ctx, n_threads=1, prepare=f32_cache) as target:
        generation = generate(target, prompt, n_predict=n_predict)
        list(generation)
        return generation.tokens


def run(
    target: LlamaTarget, source: OpenSource, prompt: Sequence[int] = PROMPT, **arguments: Any
) -> tuple[Generation, Tally]:
    generation = generate(target, prompt, source=source, strict=True, **arguments)
    tally = Tally()
    for step in generation:
        tally.add(step)
    return generation, tally


def fresh_draft(model: LlamaModel, history: Sequence[int], n_max: int) -> list[int]:
    """What a head drafts that has seen the history once, from the start."""
    source = open_source("mtp")
    with opened(model, source) as target:
        confirmed = np.array(history[:-1], np.int32)
        source.begin(confirmed, 0)
        target.decode(confirmed.tolist(), 1)
        source.observe(confirmed, 0)
        draft = source.draft(np.array(history, np.int32), n_max)
        return list(draft.tokens)


class Steered(MtpSource):
    """Asks the head, keeps its answer, and drafts something else."""

    def __init__(self, steer: Callable[[list[int], int], list[int]]) -> None:
        super().__init__()
        self.steer = steer
        self.asked: list[tuple[list[int], list[int]]] = []

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Draft | None:
        own = super().draft(tokens, n_max)
        self.asked.append((tokens.tolist(), list(own.tokens) if own else []))
        return Draft(self.steer(tokens.tolist(), n_max))


class TestTheAnswer:
    @pytest.mark.parametrize("width", range(1, 9))
    def test_equals_plain(self, model: LlamaModel, width: int) -> None:
        """At every width, token for token."""
        source = open_source("mtp")
        with opened(model, source) as target:
            generation, tally = run(target, source, n_predict=60, width=width)
        assert generation.tokens == plain(model, PROMPT, 60)
        assert tally.summary.coverage is not None
        assert tally.summary.coverage > 0.9

    def test_to_the_last_cell_of_the_context(self, model: LlamaModel) -> None:
        """The head's context is as long as the target's."""
        source = open_source("mtp")
        with opened(model, source, n_ctx=48) as target:
            generation, _ = run(target, source, n_predict=1000, width=8)
        assert generation.tokens == plain(model, PROMPT, 1000, n_ctx=48)
        assert len(generation.tokens) == 48

    def test_a_prompt_of_several_batches(self, model: LlamaModel) -> None:
        """Hidden rows come with every chunk, also those without logits."""
        prompt = [(7 * i) % 256 for i in range(600)]
        source = open_source("mtp")
        with opened(model, source, n_ctx=1000) as target:
            assert len(prompt) > target.n_batch
            generation, _ = run(target, source, prompt, n_predict=20, width=3)
            history = [*generation.tokens, 5]
            own = source.draft(np.array(history, np.int32), 3)
        assert generation.tokens == plain(model, prompt, 20, n_ctx=1000)
        reference = open_source("mtp")
        with opened(model, reference, n_ctx=1000) as target:
            reference.begin(np.array(prompt, np.int32), 0)
            for start in range(0, len(history) - 1, 100):
                chunk = np.array(history[start : min(start + 100, len(history) - 1)], np.int32)
                target.decode(chunk.tolist(), 1)
                reference.observe(chunk, start)
            assert reference.draft(np.array(history, np.int32), 3) == own


class TestInStep:
    @pytest.mark.parametrize("n_right", range(9))
    def test_after_every_rejection_depth(self, model: LlamaModel, n_right: int) -> None:
        """Whatever part of eight drafts is accepted, the head drafts as if it had seen the rest."""
        expected = plain(model, PROMPT, 60)

        def steer(history: list[int], n_max: int) -> list[int]:
            coming = expected[len(history) :][:n_max]
            return coming[:n_right] + [(token + 1) % 256 for token in coming[n_right:]]

        plugin = Steered(steer)
        source = open_source(plugin, name="mtp")
        with opened(model, source) as target:
            generation, _ = run(target, source, n_predict=40, width=8)
        assert generation.tokens == expected[: len(generation.tokens)]
        assert len(plugin.asked) > 3
        for history, own in plugin.asked[1:5]:
            assert own == fresh_draft(model, history, len(own))

    def test_where_positions_may_not_jump_it_misses_nothing(
        self, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Many observed tokens later, it drafts as a head that saw them once."""
        monkeypatch.setattr(nextn, "JUMPING_ROPES", ())
        source = open_source("mtp")
        with opened(model, source) as target:
            # No room to draft: the source observes and is never asked.
            generation, _ = run(target, source, n_predict=100, width=0)
            history = np.array([*generation.tokens, 9], np.int32)
            own = source.draft(history, 5)
        assert list(own.tokens) == fresh_draft(model, history.tolist(), 5)

    def test_while_it_is_not_asked_the_head_rests(
        self, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It decodes the prompt's batches, and of the answer one batch when it is asked."""
        decoded: list[int] = []
        decode = nextn.HeadContext.decode

        def counted(head: Any, tokens: Sequence[int], rows: Any, *, logits: bool) -> Any:
            decoded.append(len(tokens))
            return decode(head, tokens, rows, logits=logits)

        monkeypatch.setattr(nextn.HeadContext, "decode", counted)
        source = open_source("mtp")
        with opened(model, source) as target:
            generation, _ = run(target, source, LONG, n_predict=100, width=0)
            assert decoded == [len(LONG)]
            source.draft(np.array([*generation.tokens, 9], np.int32), 1)
        assert len(decoded) == 2
        assert N_KEPT < decoded[1] <= nextn.N_UBATCH + 1

    def test_after_a_rest_it_drafts_as_a_head_that_saw_prompt_and_end(
        self, model: LlamaModel
    ) -> None:
        """It lacks what lies between, and nothing else; asked again it answers the same."""
        source, reference = open_source("mtp"), open_source("mtp")
        with opened(model, source) as target:
            generation, _ = run(target, source, LONG, n_predict=100, width=0)
            confirmed = np.array(generation.tokens, np.int32)
            history = np.append(confirmed, np.int32(9))
            n_kept = len(confirmed) - source.plugin._head.n_past
            own = source.draft(history, 4)
            assert source.draft(history, 4) == own
        assert N_KEPT <= n_kept <= nextn.N_UBATCH
        with opened(model, reference) as target:
            reference.begin(np.array(LONG, np.int32), 0)
            # Of what comes at once beyond the prompt, the last N_KEPT are kept.
            cuts = (0, len(LONG), len(confirmed) - (n_kept - N_KEPT), len(confirmed))
            for start, end in itertools.pairwise(cuts):
                target.decode(confirmed[start:end].tolist(), 1)
                reference.observe(confirmed[start:end], start)
            assert reference.draft(history, 4) == own

    def test_after_a_rest_it_is_in_step_again(self, model: LlamaModel) -> None:
        """It drafts at every step from then on, and the answer is the same."""

        class RestsFirst(VerifyAll):
            n_steps = 0

            def ask(self, room: int) -> int:
                self.n_steps += 1
                return room if self.n_steps > 60 else 0

        source = open_source("mtp")
        with opened(model, source) as target:
            generation, tally = run(target, source, LONG, n_predict=120, width=3, gate=RestsFirst())
        assert generation.tokens == plain(model, LONG, 120)
        n_left = tally.summary.n_generated - 60
        assert tally.summary.n_drafted_steps >= n_left / 4 > 5
        assert tally.summary.n_decodes == 60 + tally.summary.n_drafted_steps

    def test_asked_twice_it_answers_the_same(self, model: LlamaModel) -> None:
        """Drafting leaves no trace, at whatever length it was asked for first."""
        source = open_source("mtp")
        with opened(model, source) as target:
            generation, _ = run(target, source, n_predict=10, width=3)
            history = np.array([*generation.tokens, 9], np.int32)
            first = source.draft(history, 2)
            longer = source.draft(history, 6)
            assert source.draft(history, 2) == first
            assert list(longer.tokens[:2]) == list(first.tokens)

    def test_three_generations_on_one_target(self, model: LlamaModel) -> None:
        """A long prompt, a shorter one, a longer one: each as if it were the first."""
        source = open_source("mtp")
        with opened(model, source) as target:
            for prompt in (PROMPT * 3, PROMPT[:4], PROMPT * 4):
                generation, tally = run(target, source, prompt, n_predict=40, width=3)
                assert generation.tokens == plain(model, prompt, 40)
                assert tally.summary.n_drafted > 0

    def test_after_a_cancelled_run(self, model: LlamaModel) -> None:
        """The next request starts clean."""
        source = open_source("mtp")
        with opened(model, source) as target:
            cancelled = generate(target, PROMPT, source=source, n_predict=100)
            for _, _step in zip(range(4), cancelled, strict=False):
                pass
            cancelled.close()
            generation, _ = run(target, source, PROMPT[:6], n_predict=30)
        assert generation.tokens == plain(model, PROMPT[:6], 30)

    def test_kept_positions_are_kept(self, model: LlamaModel) -> None:
        """A second turn that extends the first drafts at once, as a head that saw both."""
        source = open_source("mtp")
        with opened(model, source) as target:
            first, _ = run(target, source, n_predict=20)
            prompt = first.tokens + PROMPT
            second, tally = run(target, source, prompt, n_past=first.n_past, n_predict=20)
            history = np.array([*second.tokens, 9], np.int32)
            own = source.draft(history, 4)
        assert tally.summary.n_drafted > 0
        assert second.tokens == plain(model, prompt, 20)
        assert list(own.tokens) == fresh_draft(model, history.tolist(), 4)

    def test_without_their_rows_it_declines(self, model: LlamaModel) -> None:
        """Positions kept by the target that this head never saw: no draft, no wrong one."""
        source = open_source("mtp")
        with opened(model, source) as target:
            first = generate(target, PROMPT, n_predict=20)
            list(first)
            prompt = first.tokens + PROMPT
            second, tally = run(target, source, prompt, n_past=first.n_past, n_predict=20)
            assert tally.summary.n_drafted == 0
            assert second.tokens == plain(model, prompt, 20)
            _, tally = run(target, source, n_predict=20)
            assert tally.summary.n_drafted > 0


class TestDoubt:
    def test_p_min_0_never_stops(self, model: LlamaModel) -> None:
        """Every step with room drafts to its width."""
        source = open_source("mtp", {"p_min": 0.0})
        with opened(model, source) as target:
            _, tally = run(target, source, n_predict=33, width=2)
        summary = tally.summary
        assert summary.n_drafted_steps >= summary.n_decodes - 1

    def test_p_min_stops_at_the_first_doubtful_token(self, model: LlamaModel) -> None:
        """Drafts are those of p_min 0, cut where the head's probability falls below it."""
        loose, strict = open_source("mtp"), open_source("mtp", {"p_min": 0.5})
        history = np.array([*PROMPT, 9], np.int32)
        drafts = []
        for source in (loose, strict):
            with opened(model, source) as target:
                source.begin(history[:-1], 0)
                target.decode(history[:-1].tolist(), 1)
                source.observe(history[:-1], 0)
                drafts.append(source.draft(history, 8))
        sure = 0
        while sure < 8 and drafts[0].evidence[sure] >= 4:
            sure += 1
        assert list(drafts[1].tokens if drafts[1] else []) == list(drafts[0].tokens[:sure])

    def test_p_min_1_declines_and_costs_no_wider_decode(self, model: LlamaModel) -> None:
        """Stopping at the first token is declining: every decode is a plain one."""
        source = open_source("mtp", {"p_min": 1.0})
        with opened(model, source) as target:
            generation, tally = run(target, source, n_predict=30)
        assert tally.summary.n_drafted == 0
        assert generation.tokens == plain(model, PROMPT, 30)

    @pytest.mark.parametrize("p_min", [-0.1, 1.1])
    def test_p_min_is_a_probability(self, p_min: float) -> None:
        """Anything else is refused."""
        with pytest.raises(SourceOptionError, match="p_min"):
            open_source("mtp", {"p_min": p_min})

    def test_the_evidence_is_a_bucket_a_token(self, model: LlamaModel) -> None:
        """Eight of them, so a gate can learn each."""
        history = [*PROMPT, 9]
        source = open_source("mtp")
        with opened(model, source) as target:
            source.begin(np.array(PROMPT, np.int32), 0)
            target.decode(PROMPT, 1)
            source.observe(np.array(PROMPT, np.int32), 0)
            draft = source.draft(np.array(history, np.int32), 6)
        assert len(draft.evidence) == 6
        assert set(draft.evidence) <= set(range(8))


class TestRefusals:
    def test_a_model_without_a_head(
        self, headless_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One sentence with the way out, exit status 2, nothing decoded."""
        status = main(["--mtp", "-m", str(headless_path), "-t", "1", "-p", "x"])
        captured = capsys.readouterr()
        assert (status, captured.out) == (2, "")
        assert "no multi-token-prediction head (nextn block)" in captured.err
        assert "use --draft-source ngram, which runs on any model" in captured.err
        assert len(captured.err.splitlines()) == 1

    def test_a_model_with_several_heads(
        self, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never a wrong silent draft."""
        monkeypatch.setattr("bmoe_mtp.source.n_heads", lambda model: 3)
        with (
            LlamaTarget(model, n_ctx=64, n_threads=1, prepare=f32_cache) as target,
            pytest.raises(SourceUnavailable, match="has 3 multi-token-prediction heads"),
        ):
            open_source("mtp").open(target)

    def test_a_target_without_llama_cpp(self) -> None:
        """A fake has no model, and so no head."""
        with pytest.raises(SourceUnavailable, match="no multi-token-prediction head"):
            open_source("mtp").open(FakeTarget())

    @pytest.mark.parametrize("missing", ["module", "symbol"])
    def test_missing_bindings(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        """The version that has them is named, before the model loads."""
        import sys

        if missing == "module":
            monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp_ext", None)
        else:
            from llama_cpp import llama_cpp_ext

            monkeypatch.delattr(llama_cpp_ext, "llama_get_embeddings_nextn_ith")
        with pytest.raises(SourceUnavailable, match=r"install llama-cpp-python 0\.3\.36"):
            open_source("mtp").prepare_model(None)

    def test_a_context_that_cannot_be_made(
        self, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Said in a sentence, and nothing is left behind."""
        with LlamaTarget(model, n_ctx=64, n_threads=1, prepare=f32_cache) as target:
            monkeypatch.setattr(
                nextn.llama_cpp, "llama_init_from_model", lambda model, params: None
            )
            with pytest.raises(SourceUnavailable, match="could not make a context"):
                open_source("mtp").open(target)

    def test_ngram_and_mtp_exclude_each_other(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Before any model is looked at."""
        assert main(["--ngram", "--mtp", "-m", "/no/such/model", "-p", "x"]) == 2
        assert "ngram and mtp were asked for" in capsys.readouterr().err


class TestClosing:
    def test_sources_can_be_switched_on_one_target(self, model: LlamaModel) -> None:
        """mtp, then ngram, then none, then mtp again; a closed source drafts nothing."""
        expected = plain(model, PROMPT, 40)
        with LlamaTarget(model, n_ctx=N_CTX, max_draft=3, n_threads=1, prepare=f32_cache) as target:
            for name in ("mtp", "ngram", None, "mtp"):
                target.clear()
                source = open_source(name) if name else None
                if source:
                    source.open(target)
                generation = generate(target, PROMPT, source=source, n_predict=40, strict=True)
                list(generation)
                assert generation.tokens == expected
                if source:
                    source.close()
                    source.close()
                    assert source.draft(np.array(PROMPT, np.int32), 3) is None

    def test_opening_again_replaces_the_context(self, model: LlamaModel) -> None:
        """open may come twice."""
        source = open_source("mtp")
        with opened(model, source) as target:
            source.open(target)
            generation, _ = run(target, source, n_predict=10)
        assert generation.tokens == plain(model, PROMPT, 10)

    def test_memory_is_given_back(self, model: LlamaModel) -> None:
        """Fifty contexts, one after the other, do not add up."""
        import psutil

        process = psutil.Process()
        sizes = []
        for _ in range(50):
            source = open_source("mtp")
            with opened(model, source) as target:
                run(target, source, n_predict=3)
            gc.collect()
            sizes.append(process.memory_info().rss / 2**20)
        assert sizes[-1] - sizes[10] < 10

    def test_the_report_says_what_the_context_holds(self, model: LlamaModel) -> None:
        """As llama.cpp logged it."""
        source = open_source("mtp")
        with opened(model, source):
            (line,) = source.report()
        assert line.startswith("mtp: draft context ")
        assert float(line.split()[3]) > 0
