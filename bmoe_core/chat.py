"""Chats: a model's own template over the messages, and a conversation that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from bmoe_core.answer import Answer
from bmoe_core.errors import ModelError, UsageError, summarize
from bmoe_core.generator import Generator
from bmoe_core.target.model import LlamaModel

Message = dict[str, str]
"""A message of a chat: its ``role`` (system, user or assistant) and its ``content``."""


def question(text: str, system: str | None = None) -> list[Message]:
    """A chat that begins with ``text``, and before it what the model is told, if anything."""
    told: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*told, {"role": "user", "content": text}]


class ChatTemplate:
    """The Jinja template that a model's file brings, rendered by llama-cpp-python."""

    def __init__(self, model: LlamaModel) -> None:
        """Compile the template.

        Raises:
            ModelError: the model has none, or one that cannot be compiled.
        """
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = model.chat_template
        if template is None:
            raise ModelError(
                f"{model.path.name} has no chat template, so it is no chat model: leave --chat "
                "away, or use a model that was trained to chat"
            )
        try:
            # Where the tokenizer adds the beginning-of-sequence token, the text must not.
            self._formatter = Jinja2ChatFormatter(
                template,
                eos_token=model.token_text("eos"),
                bos_token="" if model.adds_bos else model.token_text("bos"),
            )
        except Exception as error:
            raise ModelError(
                f"the chat template of {model.path.name} cannot be used: {summarize(error)}"
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks for the assistant's next message.

        Raises:
            UsageError: the template refuses these messages, as some do a system message.
        """
        given: Any = [dict(message) for message in messages]
        try:
            return str(self._formatter(messages=given).prompt)
        except Exception as error:
            raise UsageError(
                f"the model's chat template refuses these messages: {summarize(error)}"
            ) from error


@define(eq=False)
class Conversation:
    """A chat whose turns go on from what the context holds of the turns before.

    Attributes:
        generator: answers.
        system: what the model is told first, or None.
        messages: questions and answers so far; may be edited between turns.
    """

    generator: Generator
    system: str | None = None
    messages: list[Message] = field(factory=list, init=False)
    _template: ChatTemplate = field(init=False)
    _rendered: str = field(default="", init=False)
    """The prompt of the last turn and its answer, as text and as tokens."""
    _tokens: list[int] = field(factory=list, init=False)
    _asked: tuple[Message, str, list[int]] | None = field(default=None, init=False)
    """The turn that is being answered: its question, and the prompt as text and as tokens."""

    def __attrs_post_init__(self) -> None:
        self._template = ChatTemplate(self.generator.model)

    def move_to(self, generator: Generator) -> None:
        """Go on with another generator over the same model file."""
        self.generator = generator

    def ask(self, text: str, **settings: Any) -> Answer:
        """Begin the next turn; hand the answer to :meth:`keep` when it has ended.

        Args:
            text: what the user says.
            settings: for :meth:`Generator.generate`.

        Raises:
            UsageError: the template refuses the messages.
            PromptTooLongError: the conversation fills the context.
        """
        *system, asked = question(text, self.system)
        rendered = self._template.render([*system, *self.messages, asked])
        tokens = self._tokens_of(rendered)
        answer = self.generator.generate(tokens, **settings)
        self._asked = (asked, rendered, tokens)
        return answer

    def keep(self, answer: Answer) -> None:
        """Take a turn that has ended into the conversation; one without an answer is forgotten."""
        if self._asked is None or not answer.text:
            return
        asked, rendered, tokens = self._asked
        self.messages += [asked, {"role": "assistant", "content": answer.text}]
        self._rendered = rendered + answer.text
        self._tokens = tokens + answer.tokens

    def reset(self) -> None:
        """Forget every turn."""
        self.messages.clear()

    def _tokens_of(self, rendered: str) -> list[int]:
        """The tokens of a prompt, the last turn's own where it goes on from that.

        Text made of tokens is not always cut into the same tokens again, and a recurrent memory
        cannot go back to where they differ.
        """
        model = self.generator.model
        if self._tokens and rendered.startswith(self._rendered):
            added = model.tokenize(rendered[len(self._rendered) :], begins=False)
            # Ordinary text would be cut differently after the answer's last token.
            if added and model.is_control(added[0]):
                return self._tokens + added
        return model.tokenize(rendered)
