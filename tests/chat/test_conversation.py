"""Chats: the template, and turns that go on from each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bmoe_core import BmoeError, Generator, LlamaModel, ModelError, PromptTooLongError, UsageError
from bmoe_core.chat import ChatTemplate, Conversation, question
from bmoe_core.cli import main
from bmoe_core.testing import ScriptedSource
from bmoe_core.testing.models import END_OF_TEXT, write_chat_copy

KINDS = ["dense", "sliding-window", "hybrid-moe"]


@pytest.fixture(scope="module")
def chat_model(chat_paths: dict[str, Path]) -> Iterator[Callable[[str], LlamaModel]]:
    loaded: dict[str, LlamaModel] = {}

    def get(kind: str) -> LlamaModel:
        if kind not in loaded:
            loaded[kind] = LlamaModel(chat_paths[kind])
        return loaded[kind]

    yield get
    for model in loaded.values():
        model.close()


class TestTemplate:
    def test_it_is_the_model_s_own(self, chat_model: Callable[[str], LlamaModel]) -> None:
        """System, question, and the beginning of an answer."""
        template = ChatTemplate(chat_model("dense"))
        assert template.render(question("Hi", "Be brief")) == (
            "system: Be brief<|endoftext|>user: Hi<|endoftext|>assistant: "
        )

    def test_a_model_without_one_is_refused(self, load: Callable[[str], LlamaModel]) -> None:
        """With the remedy."""
        with pytest.raises(ModelError, match="has no chat template, so it is no chat model: leave"):
            ChatTemplate(load("dense"))

    def test_one_that_is_broken(self, model_paths: dict[str, Path], tmp_path: Path) -> None:
        """Refused when it is compiled, or when it refuses the messages."""
        path = tmp_path / "broken.gguf"
        write_chat_copy(model_paths["dense"], path, "{% for %}")
        with (
            LlamaModel(path) as model,
            pytest.raises(ModelError, match=r"cannot be used: Template"),
        ):
            ChatTemplate(model)
        write_chat_copy(model_paths["dense"], path, "{{ raise_exception('no system, please') }}")
        with LlamaModel(path) as model, pytest.raises(UsageError, match="no system, please"):
            ChatTemplate(model).render(question("Hi"))


def plain_answer(model: LlamaModel, prompt: str | list[int], n_predict: int) -> list[int]:
    """The plain answer of a context that has seen nothing before."""
    with Generator(model, n_ctx=512, n_threads=1) as plain:
        answer = plain.generate(prompt, n_predict=n_predict)
        list(answer)
        return answer.tokens


def plain_turn(model: LlamaModel, messages: list[dict[str, str]], n_predict: int) -> list[int]:
    return plain_answer(model, ChatTemplate(model).render(messages), n_predict)


def said(conversation: Conversation, text: str, n_predict: int = 20) -> tuple[list[int], int]:
    """A whole turn: its tokens, and how many prompt tokens were decoded for it."""
    answer = conversation.ask(text, n_predict=n_predict)
    list(answer)
    conversation.keep(answer)
    return answer.tokens, answer.n_prompt - answer.n_reused


class TestConversation:
    @pytest.mark.parametrize("kind", KINDS)
    def test_turns_go_on_from_each_other(
        self, chat_model: Callable[[str], LlamaModel], kind: str
    ) -> None:
        """Only what is new is decoded, and the source is told what is held."""
        model = chat_model(kind)
        source = ScriptedSource()
        with Generator(model, draft_source=source, n_ctx=512, n_threads=1) as made:
            conversation = Conversation(made, system="Be brief")
            said(conversation, "Who are you?")
            _, n_decoded = said(conversation, "And now?")
            held = source.begun[1][1]
            # The end of the answer, "user: And now?", the end again, and "assistant: ".
            assert n_decoded == 1 + 14 + 1 + 11
            assert held == source.begun[1][0].index(END_OF_TEXT, held) > 60

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_second_turn_drafts_from_the_first(
        self, chat_model: Callable[[str], LlamaModel], kind: str
    ) -> None:
        """What the source is asked about begins with the first turn, token for token."""
        model = chat_model(kind)
        options = {"min_match": 1}
        with Generator(
            model, draft_source="ngram", source_options=options, n_ctx=512, n_threads=1
        ) as made:
            conversation = Conversation(made)
            first, _ = said(conversation, "Say it", 30)
            answer = conversation.ask("Say it", n_predict=30)
            list(answer)
            assert answer.summary.n_drafted > 0
        asked = model.tokenize("user: Say it<|endoftext|>assistant: ")
        prompt = [*asked, *first, END_OF_TEXT, *asked]
        assert answer.tokens == plain_answer(model, prompt, 30)

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_edited_and_a_shorter_history(
        self, chat_model: Callable[[str], LlamaModel], kind: str
    ) -> None:
        """What differs is decoded anew, and the answer is that of a new context."""
        model = chat_model(kind)
        with Generator(model, draft_source="ngram", n_ctx=512, n_threads=1) as made:
            conversation = Conversation(made)
            said(conversation, "Who are you?")
            said(conversation, "And then?")
            conversation.messages[0]["content"] = "Who are they?"
            conversation.messages[1]["content"] = conversation.messages[3]["content"] = "Nobody"
            expected = plain_turn(model, [*conversation.messages, *question("Why?")], 20)
            assert said(conversation, "Why?")[0] == expected
            conversation.reset()
            assert said(conversation, "Why?")[0] == plain_turn(model, question("Why?"), 20)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_cancelled_turn(self, chat_model: Callable[[str], LlamaModel], kind: str) -> None:
        """What was said stays; before the first word, the question is forgotten."""
        model = chat_model(kind)
        with Generator(model, draft_source="ngram", n_ctx=512, n_threads=1) as made:
            conversation = Conversation(made)
            answer = conversation.ask("Who are you?", n_predict=50)
            next(answer)
            answer.close()
            conversation.keep(answer)
            assert conversation.messages[1] == {"role": "assistant", "content": answer.text}
            tokens = (
                model.tokenize(ChatTemplate(model).render(question("Who are you?"))) + answer.tokens
            )
            assert made.target.n_past == len(tokens)
            never = conversation.ask("Really?", n_predict=50)
            never.close()
            conversation.keep(never)
            assert len(conversation.messages) == 2
            follow = conversation.ask("Really?", n_predict=20)
            list(follow)
            asked = model.tokenize("<|endoftext|>user: Really?<|endoftext|>assistant: ")
            assert follow.tokens == plain_answer(model, tokens + asked, 20)

    def test_a_conversation_that_fills_the_context(
        self, chat_model: Callable[[str], LlamaModel]
    ) -> None:
        """The turn is refused, and the conversation is as before."""
        with Generator(chat_model("dense"), n_ctx=64, n_threads=1) as made:
            conversation = Conversation(made)
            with pytest.raises(PromptTooLongError):
                conversation.ask("x" * 64)
            assert conversation.messages == []


class TestSingleAnswers:
    def test_chat_applies_the_template(
        self, chat_paths: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The prompt's tokens are those of the rendered question."""
        given = ["-m", str(chat_paths["dense"]), "-t", "1", "-n", "4", "--json", "-", "-p", "Hi"]
        assert main([*given, "--chat", "--system", "Be brief"]) == 0
        record = json.loads(capsys.readouterr().out)
        # system: Be brief + end, user: Hi + end, assistant: and a space.
        assert record["n_prompt"] == 17 + 9 + 11
        assert main([*given, "--system", "Be brief"]) == 2
        assert "--system goes with --chat" in capsys.readouterr().err

    def test_errors_are_the_project_s(self, load: Callable[[str], LlamaModel]) -> None:
        """One base class for a caller to catch."""
        with pytest.raises(BmoeError):
            ChatTemplate(load("dense"))
