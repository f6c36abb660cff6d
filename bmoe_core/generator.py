"""A model with its draft source, ready to answer prompts: the interface for programs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bmoe_core.answer import Answer
from bmoe_core.answer_text import AnswerText
from bmoe_core.closing import Closing
from bmoe_core.errors import PromptTooLongError, UsageError, summarize
from bmoe_core.loop import DEFAULT_WIDTH, Pick, argmax, generate
from bmoe_core.policy import Policy
from bmoe_core.sampling import GREEDY, Sampling
from bmoe_core.sources import NO_SOURCE, OpenSource, open_source
from bmoe_core.steps import Step, common_prefix
from bmoe_core.target.llama import DecodeTap, LlamaTarget, default_n_ctx
from bmoe_core.target.model import LlamaModel
from bmoe_core.target.sampler import Sampler


class Generator(Closing):
    """Answers prompts, one at a time, and keeps what one answer leaves for the next.

    Where a prompt begins with tokens that the context holds already, those are not decoded again.
    One thread at a time may use a generator and its answers; a second one is refused. Several
    generators, each in a thread of its own, may share a :class:`LlamaModel`.

    Attributes:
        model: the loaded model.
        target: its context.
        source: the opened draft source, or None.
        source_name: its name, or ``none``.
        warnings: what the user should know before the first answer.
    """

    def __init__(
        self,
        model: str | Path | LlamaModel,
        *,
        draft_source: str | object | None = None,
        source_options: Mapping[str, Any] | None = None,
        draft: int = DEFAULT_WIDTH,
        gate: Policy | None = None,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        strict: bool = False,
        tap: DecodeTap | None = None,
    ) -> None:
        """Load the model, make its context and open the source.

        Args:
            model: a GGUF file, or a loaded model, which :meth:`close` leaves open; it has to have
                been loaded with the source's ``prepare_model`` where the source has one.
            draft_source: the name of an installed source, an instance of a source's class, or an
                opened source; None or ``"none"``: plain decoding.
            source_options: for a name, the source's fields to set.
            draft: the most tokens of a draft.
            gate: decides whether, and how wide up to ``draft``, to draft, such as a
                :class:`bmoe_core.CostGate`; it keeps what it learned from one answer to the next.
                None: every draft is verified, as wide as it is.
            n_ctx: positions of the context; None: the model's, 4096 at most.
            n_threads: threads to decode with; None: the physical cores.
            strict: raise where the source fails instead of going on without it.
            tap: watches the decodes; see :class:`bmoe_core.routing.tap.RouterTap`.

        Raises:
            ModelError: the model cannot be used.
            SourceError: the source cannot be used, or not with this model.
            UsageError: a number is out of range.
        """
        self.source = _opened(draft_source, source_options)
        self.source_name = NO_SOURCE if self.source is None else self.source.name
        self.warnings: list[str] = []
        self._draft = draft
        self._gate = gate
        self._strict = strict
        self._last: Answer | None = None
        self._lock = threading.Lock()
        with contextlib.ExitStack() as stack:
            self.model = self._load(stack, model)
            n_ctx = n_ctx or default_n_ctx(self.model)
            if n_ctx > self.model.n_ctx_train:
                self.warnings.append(
                    f"the model was trained on {self.model.n_ctx_train} positions, and beyond them "
                    f"its answers get worse; the context has {n_ctx} (-c)"
                )
            self.target = stack.enter_context(
                LlamaTarget(
                    self.model,
                    n_ctx=n_ctx,
                    max_draft=min(draft, n_ctx) if self.source else 0,
                    n_threads=n_threads,
                    # Snapshots slow every decode, a checkpoint only those that draft.
                    rollback="snapshots" if gate is None else "checkpoint",
                    prepare=self.source.prepare_context if self.source else None,
                    tap=tap,
                )
            )
            self._open_source(stack)
            self._resources = stack.pop_all()

    def _load(self, stack: contextlib.ExitStack, model: str | Path | LlamaModel) -> LlamaModel:
        if isinstance(model, LlamaModel):
            return model
        prepare = self.source.prepare_model if self.source else None
        return stack.enter_context(LlamaModel(model, prepare=prepare))

    def _open_source(self, stack: contextlib.ExitStack) -> None:
        if self.source is None:
            return
        stack.callback(self._close_source, self.source)
        self.source.open(self.target)
        if self.target.max_rollback < self._draft and self._gate is None:
            self.warnings.append(
                f"drafts are cut to {self.target.max_rollback} tokens, the most that can be taken "
                "back here"
            )

    def _close_source(self, source: OpenSource) -> None:
        try:
            source.close()
        except (Exception, SystemExit) as error:
            self.warnings.append(f"{source.name}: close raised {summarize(error)}")

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = 256,
        stop: str | Sequence[str] = (),
        sampling: Sampling = GREEDY,
        on_prefill: Callable[[int, int], None] | None = None,
        on_step: Callable[[Step, float], None] | None = None,
    ) -> Answer:
        """Answer a prompt; an answer that is still running is ended where it stands.

        Args:
            prompt: text, in which control tokens may be written out, or token ids.
            n_predict: the most tokens to generate.
            stop: texts that end the answer and are not part of it.
            sampling: how tokens are chosen; greedily by default.
            on_prefill: called with the prompt tokens decoded and their total, after each chunk.
            on_step: called with each step, and the seconds since the end of the prefill.

        Returns:
            The answer, which is generated as it is iterated over.

        Raises:
            PromptError: the prompt is empty, or fills the context.
            UsageError: a number or stop string is out of range, the grammar cannot be used, the
                generator is closed, or another thread is using it.
        """
        with self.exclusively():
            self.target.check_open()
            if self._last is not None:
                self._last.end()
            tokens = self.model.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
            if len(tokens) >= self.target.n_ctx:
                raise PromptTooLongError(len(tokens), self.target.n_ctx)
            stops = [stop] if isinstance(stop, str) else list(stop)
            text = AnswerText(self.model.detokenize, stops)
            sampling = sampling.seeded()
            pick: Pick = argmax
            if not sampling.is_greedy:
                pick = Sampler(self.model, sampling, tokens).pick
            generation = generate(
                self.target,
                tokens,
                source=self.source,
                n_predict=n_predict,
                width=self._draft,
                gate=self._gate,
                n_past=self._n_held(tokens),
                pick=pick,
                stop=text.add if stops else None,
                strict=self._strict,
                on_prefill=on_prefill,
            )
            self._last = Answer(
                generation,
                text,
                sampling=sampling,
                source=self.source,
                exclusively=self.exclusively,
                on_step=on_step,
            )
            return self._last

    def _n_held(self, tokens: Sequence[int]) -> int:
        """How many of the first ``tokens`` the target holds."""
        if self._last is None:
            return 0
        return min(common_prefix(self._last.held_tokens(), tokens), self.target.n_past)

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Held while the generator works.

        Raises:
            UsageError: another thread holds it, or this one within its own work.
        """
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "this generator is at work already, and serves one thread at a time: make one for "
                "each thread"
            )
        try:
            yield
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the running answer, and free source, context and, where it was loaded here, model.

        May repeat.
        """
        if self._last is not None:
            self._last.end()
        self._resources.close()


def _opened(source: str | object | None, options: Mapping[str, Any] | None) -> OpenSource | None:
    if source is None or source == NO_SOURCE:
        return None
    if isinstance(source, OpenSource):
        return source
    return open_source(source, options)
