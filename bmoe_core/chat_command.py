"""``bmoe chat``: a conversation on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define, field

from bmoe_core.answer_options import sampling_of
from bmoe_core.arguments import GATE_COST, Arguments
from bmoe_core.console import Progress, TextStream, say
from bmoe_core.errors import BmoeError, PromptTooLongError, UsageError
from bmoe_core.gate import CostGate
from bmoe_core.interrupts import TerminationRequest
from bmoe_core.sampling import Sampling
from bmoe_core.sources import NO_SOURCE, installed_sources, open_source
from bmoe_core.steps import FinishReason

if TYPE_CHECKING:
    from bmoe_core.answer import Answer
    from bmoe_core.chat import Conversation
    from bmoe_core.generator import Generator

PROMPT = "> "
HELP = """\
/source NAME  draft with this source from now on; none: plain decoding
/source       which source drafts, and which there are
/stats        what the last answer and the whole chat gained and cost
/reset        forget the conversation
/help         this list
/exit         leave, as Ctrl-D does
Ctrl-C ends an answer; what it said until then stays in the conversation."""

_CUTS = {
    FinishReason.LENGTH: "(cut off after {} tokens: -n makes answers longer)",
    FinishReason.CONTEXT: "(cut off where the context is full: /reset, or a larger -c)",
}
_NOT_IN_A_CHAT = {"prompt": "-p", "file": "-f", "json": "--json", "csv": "--csv"}
_OF_ONE_ANSWER = {"routing": "--routing", "cache_mb": "--cache-mb", "moe_stream": "--moe-stream"}


def chat(arguments: Arguments, model: str) -> int:
    """Talk until the user leaves; returns the exit status.

    Args:
        arguments: the command line after ``chat``.
        model: the GGUF file.

    Raises:
        BmoeError: the model, the source or an option cannot be used.
    """
    refuse_what_chat_does_not_take(arguments.options)
    return _Chat(arguments, model, sampling_of(arguments.options)).run()


def refuse_what_chat_does_not_take(options: argparse.Namespace) -> None:
    """Raise where an option belongs to a single answer.

    Raises:
        UsageError: one does.
    """
    for name, flag in _NOT_IN_A_CHAT.items():
        if getattr(options, name) is not None:
            raise UsageError(f"bmoe chat takes no {flag}: it asks for each question itself")
    for name, flag in _OF_ONE_ANSWER.items():
        if getattr(options, name):
            raise UsageError(f"bmoe chat takes no {flag}: leave it out, or use bmoe --chat -p TEXT")


@define(eq=False)
class _Chat:
    """One session."""

    arguments: Arguments
    model: str
    sampling: Sampling
    conversation: Conversation = field(init=False)
    progress: Progress = field(init=False)
    last: list[str] = field(factory=list, init=False)
    n_generated: int = field(default=0, init=False)
    n_decodes: int = field(default=0, init=False)
    ended: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.progress = Progress(sys.stderr, enabled=not self.arguments.options.quiet)

    def run(self) -> int:
        from bmoe_core.chat import Conversation

        arguments = self.arguments
        source = arguments.source and open_source(arguments.source, arguments.source_options)
        generator = self._load(source or None)
        try:
            self.conversation = Conversation(generator, system=arguments.options.system)
            self._greet()
            while not self.ended:
                line = self._read()
                if line is None:
                    break
                self._obey(line)
        finally:
            with contextlib.suppress(AttributeError):
                generator = self.conversation.generator
            generator.close()
        return 0

    def _load(self, source: object | None) -> Generator:
        from bmoe_core.generator import Generator

        options = self.arguments.options
        self.progress.show("loading the model")
        try:
            generator = Generator(
                self.model,
                draft_source=source,
                draft=options.draft,
                gate=CostGate() if source and options.gate == GATE_COST else None,
                n_ctx=options.ctx_size,
                n_threads=options.threads,
                strict=options.strict,
            )
        finally:
            self.progress.clear()
        for warning in generator.warnings:
            say(f"bmoe: warning: {warning}")
        return generator

    def _greet(self) -> None:
        if _is_interactive() and not self.arguments.options.quiet:
            say("Ask something, or /help. Ctrl-D leaves.")

    def _read(self) -> str | None:
        """The next line, or None where there are no more."""
        if not _is_interactive():
            line = sys.stdin.readline() if sys.stdin is not None else ""
            return line.rstrip("\n") if line else None
        with contextlib.suppress(ImportError):
            # input() edits lines and recalls earlier ones where this is loaded.
            import readline  # noqa: F401
        try:
            return input(PROMPT)
        except EOFError:
            print()
            return None
        except TerminationRequest:
            raise
        except KeyboardInterrupt:
            print()
            return ""

    def _obey(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/source": self._change_source,
            "/stats": self._show_stats,
            "/reset": self._reset,
            "/help": lambda _rest: say(HELP),
            "/exit": self._exit,
        }
        try:
            if word in commands:
                commands[word](rest.strip())
            elif word.startswith("/"):
                say(f"there is no {word}: /help lists what there is")
            elif word:
                self._answer(line)
        except BmoeError as error:
            say(f"bmoe: {error}")
        except TerminationRequest:
            raise
        except KeyboardInterrupt:
            say("")

    def _answer(self, text: str) -> None:
        options = self.arguments.options
        try:
            answer = self.conversation.ask(
                text,
                n_predict=options.n_predict,
                stop=options.stop,
                sampling=self.sampling,
                on_prefill=lambda n, total: self.progress.show(f"reading: {n} of {total} tokens"),
            )
        except PromptTooLongError as error:
            raise UsageError(
                f"the conversation has {error.n_prompt} tokens and the context holds "
                f"{error.n_ctx}: /reset forgets it, and -c makes the context larger"
            ) from None
        try:
            self._stream(answer)
        finally:
            answer.close()
            self.conversation.keep(answer)
            self.last = answer.report()
            self.n_generated += answer.summary.n_generated
            self.n_decodes += answer.summary.n_decodes
        for warning in answer.warnings:
            say(f"bmoe: warning: {warning}")
        cut = _CUTS.get(answer.finish_reason)
        if cut and _is_interactive() and not options.quiet:
            say(cut.format(answer.summary.n_generated))

    def _stream(self, answer: Answer) -> None:
        out = TextStream(sys.stdout)
        interrupt: KeyboardInterrupt | None = None
        try:
            for piece in answer:
                self.progress.clear()
                out.write(piece)
        except KeyboardInterrupt as error:
            interrupt = error
        answer.close()
        self.progress.clear()
        out.write(answer.text[out.n_written :] + ("" if answer.text.endswith("\n") else "\n"))
        if isinstance(interrupt, TerminationRequest):
            raise interrupt

    def _change_source(self, name: str) -> None:
        options = self.arguments.options
        old = self.conversation.generator
        if not name:
            choice = ", ".join([NO_SOURCE, *(found.name for found in installed_sources())])
            say(f"{_way_of(old)}; /source NAME takes one of {choice}")
            return
        given = self.arguments.source_options if name == self.arguments.source else None
        source = None if name == NO_SOURCE else open_source(name, given)
        # A source may want the model loaded in its own way, and two models may not fit.
        old.close()
        try:
            generator = self._load(source)
        except (BmoeError, KeyboardInterrupt):
            self.conversation.move_to(self._load(old.source))
            raise
        self.conversation.move_to(generator)
        if not options.quiet:
            say(_way_of(generator))

    def _show_stats(self, _rest: str) -> None:
        if not self.last:
            say("nothing has been answered yet")
            return
        for line in self.last:
            say(line)
        target = self.conversation.generator.target
        say(
            f"chat: {self.n_generated} tokens in {self.n_decodes} decodes; "
            f"{target.n_past} of {target.n_ctx} positions are in use"
        )

    def _reset(self, _rest: str) -> None:
        self.conversation.reset()
        say("the conversation is forgotten")

    def _exit(self, _rest: str) -> None:
        self.ended = True


def _way_of(generator: Generator) -> str:
    return f"drafting with {generator.source_name}" if generator.source else "decoding plainly"


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
