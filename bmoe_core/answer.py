"""One answer of a :class:`bmoe_core.Generator`, as it comes and when it has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

from bmoe_core.answer_text import AnswerText
from bmoe_core.loop import Generation
from bmoe_core.sampling import Sampling
from bmoe_core.sources import NO_SOURCE, OpenSource
from bmoe_core.steps import FinishReason, Step
from bmoe_core.telemetry import Summary, Tally, report_lines


class Answer:
    """An answer that is generated as it is iterated over: pieces of its text, as they come.

    However it ends, its text, tokens and figures agree: ``text`` is the text of ``tokens`` up to
    where a stop string begins. The last token may reach into that string.

    Attributes:
        prompt: the prompt's token ids.
        tokens: the generated token ids.
        n_prompt: tokens of the prompt.
        sampling: how the tokens are chosen, with the seed that was taken.
    """

    def __init__(
        self,
        generation: Generation,
        text: AnswerText,
        *,
        sampling: Sampling,
        source: OpenSource | None,
        exclusively: Callable[[], contextlib.AbstractContextManager[None]],
        on_step: Callable[[Step, float], None] | None,
    ) -> None:
        self.prompt = generation.tokens[: generation.n_prompt]
        self.tokens: list[int] = []
        self.n_prompt = generation.n_prompt
        self.sampling = sampling
        self._source = source
        self._exclusively = exclusively
        self._generation = generation
        self._text = text
        self._on_step = on_step
        self._tally = Tally()
        self._pieces = self._run()

    @property
    def n_reused(self) -> int:
        """Tokens of the prompt that the target held already, and that were not decoded again."""
        return self._generation.n_reused

    @property
    def text(self) -> str:
        """The text so far; once the answer has ended, all of it."""
        return self._text.text

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended; ``INTERRUPTED`` until it has."""
        return self._generation.finish_reason

    @property
    def summary(self) -> Summary:
        """The figures so far."""
        return self._tally.summary

    @property
    def prefill_s(self) -> float:
        """Seconds from the beginning to the first settled token."""
        return self._generation.prefill_s

    @property
    def wall_s(self) -> float:
        """Seconds from the end of the prefill to now, or to the end, everything included."""
        return self._generation.wall_s

    @property
    def warnings(self) -> list[str]:
        """What the user should know, such as that the source failed."""
        failure = self._generation.source_failure
        return [] if failure is None else [str(failure)]

    def report(self) -> list[str]:
        """The lines of the report."""
        source = self._source
        if source is None:
            return report_lines(NO_SOURCE, self.summary)
        return report_lines(source.name, self.summary) + source.report()

    def held_tokens(self) -> list[int]:
        """Prompt and generated tokens that the target holds."""
        return self._generation.tokens[: self._generation.n_past]

    def close(self) -> None:
        """End the answer where it stands; :attr:`text` is whole then. May repeat."""
        with self._exclusively():
            self.end()

    def end(self) -> None:
        """As :meth:`close`, for who holds the generator already."""
        self._pieces.close()
        self._generation.close()
        self._text.finish(len(self.tokens))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._exclusively():
            return next(self._pieces)

    def _run(self) -> Generator[str, None, None]:
        try:
            for step in self._generation:
                self._take(step)
                piece = self._text.take()
                if piece:
                    yield piece
        finally:
            self._generation.close()
            rest = self._text.finish(len(self.tokens))
        if rest:
            yield rest

    def _take(self, step: Step) -> None:
        self.tokens.extend(step.tokens)
        del self.tokens[len(self.tokens) - step.n_taken_back :]
        self._tally.add(step)
        if not self._text.finds_stops:
            self._text.add(step.tokens)
        if self._on_step is not None:
            self._on_step(step, self.wall_s)
