"""The interface for programs: pieces, figures, what one answer leaves for the next, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bmoe_core import (
    EmptyPromptError,
    FinishReason,
    Generator,
    LlamaModel,
    PromptTooLongError,
    Sampling,
    SourceUnavailable,
    UnknownSourceError,
    UsageError,
)
from bmoe_core.testing import ScriptedSource

Load = Callable[[str], LlamaModel]

PROMPT = "one two three one two three one two"


@pytest.fixture
def generator(load: Load) -> Iterator[Generator]:
    with Generator(
        load("dense"),
        draft_source="ngram",
        source_options={"min_match": 1},
        n_ctx=256,
        n_threads=1,
    ) as made:
        yield made


def fresh(model: LlamaModel, prompt: str, n_predict: int = 20) -> str:
    """The plain answer of a context of its own."""
    with Generator(model, n_ctx=256, n_threads=1) as plain:
        return "".join(plain.generate(prompt, n_predict=n_predict))


class TestAnswers:
    def test_pieces_text_tokens_and_figures_agree(self, generator: Generator) -> None:
        """And the answer is the plain one."""
        answer = generator.generate(PROMPT, n_predict=30)
        assert answer.finish_reason is FinishReason.INTERRUPTED
        pieces = list(answer)
        assert "".join(pieces) == answer.text == fresh(generator.model, PROMPT, 30)
        assert answer.n_prompt == len(PROMPT)
        assert len(answer.tokens) == answer.summary.n_generated == 30
        assert answer.finish_reason is FinishReason.LENGTH
        assert answer.summary.n_accepted > 0
        assert answer.wall_s > 0
        assert answer.warnings == []
        assert answer.report()[0].startswith("ngram: ")

    def test_a_model_from_a_path_is_closed_with_the_generator(
        self, model_paths: dict[str, Path]
    ) -> None:
        """One that was given stays open."""
        with Generator(model_paths["dense"], n_threads=1) as made:
            model = made.model
        with pytest.raises(Exception, match="closed"):
            model.tokenize("x")
        with LlamaModel(model_paths["dense"]) as given:
            Generator(given, n_threads=1).close()
            assert given.tokenize("x") == [120]

    def test_a_stop_string_trims_everything_together(self, generator: Generator) -> None:
        """The text ends before it, and the tokens begin before it."""
        whole = generator.generate(PROMPT, n_predict=30)
        list(whole)
        stop = generator.model.detokenize(whole.tokens[10:13]).decode(errors="replace")
        stop = max(stop.split("\ufffd"), key=len) or whole.text[5]
        answer = generator.generate(PROMPT, n_predict=30, stop=stop)
        text = "".join(answer)
        assert answer.finish_reason is FinishReason.STOP
        assert text == answer.text == whole.text[: whole.text.index(stop)]
        assert answer.tokens == whole.tokens[: len(answer.tokens)]
        assert answer.summary.n_generated == len(answer.tokens)

    def test_sampling_is_reproducible(self, generator: Generator) -> None:
        """The seed that was taken is told, and draws the same answer again."""
        first = generator.generate(PROMPT, n_predict=20, sampling=Sampling(temp=1.0))
        list(first)
        assert first.sampling.seed is not None
        again = generator.generate(PROMPT, n_predict=20, sampling=first.sampling)
        list(again)
        assert again.tokens == first.tokens

    def test_steps_are_handed_on(self, generator: Generator) -> None:
        """Each with the time since the prefill; they add up to the answer."""
        seen: list[tuple[int, ...]] = []
        times: list[float] = []
        answer = generator.generate(
            PROMPT,
            n_predict=10,
            on_step=lambda step, wall_s: (seen.append(step.tokens), times.append(wall_s)),
        )
        list(answer)
        assert [token for tokens in seen for token in tokens] == answer.tokens
        assert times == sorted(times)

    def test_refusals(self, generator: Generator) -> None:
        """No text, too much text, no such source, a source that cannot."""
        with pytest.raises(EmptyPromptError):
            generator.generate("")
        with pytest.raises(PromptTooLongError):
            generator.generate("x" * 256)
        with pytest.raises(UsageError, match="stop string is empty"):
            generator.generate("x", stop="")
        with pytest.raises(UnknownSourceError):
            Generator(generator.model, draft_source="ngarm")
        with pytest.raises(SourceUnavailable):
            Generator(generator.model, draft_source="mtp", n_threads=1)
        generator.close()
        with pytest.raises(UsageError, match="has been closed"):
            generator.generate("x")

    def test_a_failing_source_is_a_warning(self, load: Load) -> None:
        """The answer is whole."""
        broken = ScriptedSource(lambda tokens, n_max: ["no token"])
        with Generator(load("dense"), draft_source=broken, n_ctx=256, n_threads=1) as made:
            answer = made.generate(PROMPT, n_predict=10)
            text = "".join(answer)
        assert text == fresh(load("dense"), PROMPT, 10)
        assert "the source was switched off" in answer.warnings[0]


class TestNextAnswers:
    @pytest.mark.parametrize("kind", ["dense", "moe", "sliding-window", "hybrid-moe"])
    def test_what_is_held_is_not_decoded_again(self, load: Load, kind: str) -> None:
        """A prompt that goes on, a shorter one, another one: each as in a context of its own."""
        model = load(kind)
        with Generator(model, draft_source="ngram", n_ctx=256, n_threads=1) as made:
            first = made.generate(PROMPT, n_predict=20)
            list(first)
            held = model.tokenize(PROMPT) + first.tokens
            goes_on = held + model.tokenize(" and three")
            prompts = [goes_on, goes_on[: len(PROMPT) + 5], model.tokenize("one twin"), held[:3]]
            reused = []
            for prompt in prompts:
                answer = made.generate(prompt, n_predict=20)
                list(answer)
                reused.append(answer.n_reused)
                with Generator(model, n_ctx=256, n_threads=1) as plain:
                    expected = plain.generate(prompt, n_predict=20)
                    list(expected)
                assert answer.tokens == expected.tokens
                assert made.target.n_past == len(prompt) + len(answer.tokens)
        # A recurrent memory goes on, and cannot go back.
        earlier = [0, 0, 0] if kind == "hybrid-moe" else [len(PROMPT) + 4, 6, 2]
        assert reused == [len(held), *earlier]

    @pytest.mark.parametrize("kind", ["dense", "hybrid-moe"])
    def test_an_answer_that_is_left_is_ended(self, load: Load, kind: str) -> None:
        """By the next one, in which its tokens are still held."""
        model = load(kind)
        with Generator(model, draft_source="ngram", n_ctx=256, n_threads=1) as made:
            left = made.generate(PROMPT, n_predict=50)
            for _ in range(3):
                next(left)
            prompt = model.tokenize(PROMPT) + left.tokens + model.tokenize(" three")
            answer = made.generate(prompt, n_predict=20)
            assert left.finish_reason is FinishReason.INTERRUPTED
            assert list(left) == []
            list(answer)
            assert answer.n_reused >= len(PROMPT) + 3
            with Generator(model, n_ctx=256, n_threads=1) as plain:
                expected = plain.generate(prompt, n_predict=20)
                list(expected)
            assert answer.tokens == expected.tokens

    def test_an_answer_that_was_never_begun(self, generator: Generator) -> None:
        """Leaves what is held as it was."""
        list(generator.generate(PROMPT, n_predict=5))
        generator.generate("something else")
        answer = generator.generate(PROMPT, n_predict=5)
        assert "".join(answer) == fresh(generator.model, PROMPT, 5)

    def test_the_text_of_a_closed_answer_is_whole(self, generator: Generator) -> None:
        """What was held back for a stop string is in it."""
        whole = "".join(generator.generate(PROMPT, n_predict=30))
        answer = generator.generate(PROMPT, n_predict=30, stop=whole[:3] + "\0")
        next(answer)
        answer.close()
        assert whole.startswith(answer.text)
        assert generator.model.detokenize(answer.tokens).decode(errors="replace") == answer.text


class TestThreads:
    def test_a_second_thread_is_refused(self, load: Load) -> None:
        """While the first is at work, with the remedy; afterwards it may."""
        inside, go_on = threading.Event(), threading.Event()

        def wait(tokens: object, n_max: int) -> None:
            inside.set()
            go_on.wait(10)

        with Generator(
            load("dense"), draft_source=ScriptedSource(wait), n_ctx=256, n_threads=1
        ) as made:
            answer = made.generate(PROMPT, n_predict=3)
            thread = threading.Thread(target=lambda: list(answer))
            thread.start()
            assert inside.wait(10)
            for call in (lambda: next(answer), answer.close, lambda: made.generate("x")):
                with pytest.raises(UsageError, match="one thread at a time"):
                    call()
            go_on.set()
            thread.join(10)
            assert len(answer.tokens) == 3
            assert "".join(made.generate("x", n_predict=1)) != ""

    def test_generators_that_share_a_model(self, load: Load) -> None:
        """Each in its thread: the answers are those of one thread alone."""
        model = load("dense")
        prompts = [PROMPT, "three two one three two", "aaaa", "x = 1\nx = 2\nx ="]
        expected = [fresh(model, prompt) for prompt in prompts]
        texts: dict[str, str] = {}

        def answer(prompt: str) -> None:
            with Generator(model, draft_source="ngram", n_ctx=256, n_threads=1) as made:
                texts[prompt] = "".join(made.generate(prompt, n_predict=20))

        threads = [threading.Thread(target=answer, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [texts[prompt] for prompt in prompts] == expected
