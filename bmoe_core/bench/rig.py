"""A loaded model, and a context for each kind of cell that is run on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, evolve, frozen

from bmoe_core.bench.plan import ORACLE, SYNTHETIC, Cell, Plan
from bmoe_core.bench.prompts import Prompt
from bmoe_core.bench.reference import HindsightSource, OracleSource, SyntheticSource
from bmoe_core.bench.runs import Run, StepTimes, bmoe_run
from bmoe_core.closing import Closing
from bmoe_core.errors import PromptTooLongError, SourceError
from bmoe_core.gate import CostGate
from bmoe_core.loop import MAX_WIDTH, generate
from bmoe_core.models import demo_model
from bmoe_core.routing.cache import LruCache
from bmoe_core.routing.records import DecodeRouting
from bmoe_core.routing.tally import RoutingTally
from bmoe_core.routing.tap import RouterTap
from bmoe_core.sources import OpenSource, open_source
from bmoe_core.target.llama import LlamaTarget, default_n_threads
from bmoe_core.target.model import LlamaModel
from bmoe_core.telemetry import Tally

ANCHOR_PASSES = 4
"""How often a source that knows the answer may be told its own run, to follow it past near ties."""

CACHE_SHARE = 0.5
"""The modelled cache holds this share of the expert bytes."""


@frozen
class Survey:
    """What a cell does on a prompt, apart from time.

    Attributes:
        tokens: the generated tokens.
        demanded_mib_per_token: expert bytes demanded, or None on a dense model.
        modelled_hit_rate: hits of a modelled cache of half of the expert bytes, or None.
    """

    tokens: tuple[int, ...]
    demanded_mib_per_token: float | None = None
    modelled_hit_rate: float | None = None


NO_SURVEY = Survey(())


@define(eq=False)
class _Bay:
    """A context with its source."""

    target: LlamaTarget
    source: OpenSource | None

    def close(self) -> None:
        if self.source is not None:
            self.source.close()
        self.target.close()


class Rig(Closing):
    """Runs cells on one loaded model.

    A context is made for each source, width and set of options, and kept: what differs between two
    runs of a round is the drafting alone. Plain decoding has a context that saves no states.

    Attributes:
        model: the model.
        unavailable: why sources were left out, by their name.
    """

    def __init__(self, plan: Plan) -> None:
        """Load the model, and let every source that is asked for prepare it.

        Raises:
            ModelError: it cannot be used.
            PromptTooLongError: a prompt does not fit.
        """
        self._plan = plan
        self.unavailable: dict[str, str] = {}
        self._references: dict[tuple[Cell, str], Sequence[int]] = {}
        self._bays: dict[Cell, _Bay] = {}
        self._kept_gates: defaultdict[Cell, CostGate] = defaultdict(CostGate)
        named = {cell.source: cell for cell in plan.cells if cell.is_plugin}
        sources = [open_source(cell.source, dict(cell.options)) for cell in named.values()]

        def prepare(params: Any) -> None:
            for source in sources:
                self._attempt(source, lambda s=source: s.prepare_model(params))

        self.model = LlamaModel(plan.model or demo_model(), prepare=prepare)
        self._prompts = {prompt.name: self.model.tokenize(prompt.text) for prompt in plan.prompts}
        longest = max(map(len, self._prompts.values()))
        # A multiple of 256, as llama.cpp pads it anyway.
        self.n_ctx = -(-(longest + plan.n_predict + 32) // 256) * 256
        if self.n_ctx > self.model.n_ctx_train:
            self.n_ctx = self.model.n_ctx_train
        if longest + 2 > self.n_ctx:
            self.model.close()
            raise PromptTooLongError(longest, self.n_ctx)

    def _open(self, cell: Cell) -> OpenSource | None:
        if cell.is_baseline:
            return None
        if cell.source == ORACLE:
            return open_source(OracleSource(), name=ORACLE)
        if cell.source == SYNTHETIC:
            p = dict(cell.options)["p"]
            return open_source(SyntheticSource(p, self.model.n_vocab), name=SYNTHETIC)
        source = open_source(cell.source, dict(cell.options))
        if cell.hindsight:
            return open_source(HindsightSource(source, self.model.n_vocab), name=cell.source)
        return source

    def _attempt(self, source: OpenSource, action: Any) -> bool:
        try:
            action()
        except SourceError as error:
            self.unavailable[source.name] = str(error)
            return False
        return True

    def tokens(self, prompt: Prompt) -> list[int]:
        """A prompt's tokens."""
        return self._prompts[prompt.name]

    def can_run(self, cell: Cell) -> bool:
        """Whether the cell's source takes the model; :attr:`unavailable` says why not."""
        return cell.source not in self.unavailable and self._bay(cell) is not None

    def _bay(self, cell: Cell) -> _Bay | None:
        key = evolve(cell, again=False, keeps_gate=False)
        if key not in self._bays:
            bay = self._make_bay(key)
            if bay is None:
                return None
            self._bays[key] = bay
        return self._bays[key]

    def _make_bay(self, cell: Cell, tap: RouterTap | None = None) -> _Bay | None:
        source = self._open(cell)
        target = LlamaTarget(
            self.model,
            n_ctx=self.n_ctx,
            max_draft=min(cell.draft, self.n_ctx),
            n_threads=self._plan.n_threads,
            # As `bmoe` does: snapshots slow every decode, the more the longer the drafts are.
            rollback="checkpoint" if cell.gated or cell.draft > MAX_WIDTH else "snapshots",
            prepare=source.prepare_context if source else None,
            tap=tap,
        )
        if source is not None and not self._attempt(source, lambda: source.open(target)):
            target.close()
            return None
        return _Bay(target, source)

    def run(self, cell: Cell, prompt: Prompt) -> Run:
        """One timed run."""
        bay = self._bay(cell)
        assert bay is not None
        kept = self._kept_gates[cell] if cell.keeps_gate else None
        run, _ = self._generate(bay, cell, prompt, None, kept)
        return run

    def survey(self, cell: Cell, prompt: Prompt) -> Survey:
        """One run for its counts, with the routing read; a source that knows the answer is told it.

        It serves as the warm-up too.
        """
        if cell.knows_the_answer:
            self._anchor(cell, prompt)
        if not self.model.n_expert:
            bay = self._bay(cell)
            assert bay is not None
            return Survey(self._generate(bay, cell, prompt, None)[1])
        tap = RouterTap()
        bay = self._make_bay(cell, tap)
        assert bay is not None
        try:
            return self._survey_routing(bay, cell, prompt, tap)
        finally:
            bay.close()

    def _survey_routing(self, bay: _Bay, cell: Cell, prompt: Prompt, tap: RouterTap) -> Survey:
        tally = RoutingTally(tap.layers)
        of_prompt: list[DecodeRouting] = []
        of_answer: list[DecodeRouting] = []

        def count(is_prompt: bool) -> None:
            routed = tap.take()
            (of_prompt if is_prompt else of_answer).extend(routed)
            if not is_prompt:
                tally.add(routed)

        run, tokens = self._generate(bay, cell, prompt, count)
        cache = LruCache(int(CACHE_SHARE * tally.expert_bytes))
        for decodes in (of_prompt, of_answer):
            cache.forget_counts()
            cache.feed(decodes, tap.layers)
        demanded = tally.summary.demanded_mib_per_token(run.n_generated)
        return Survey(tokens, demanded, cache.hit_rate)

    def _anchor(self, cell: Cell, prompt: Prompt) -> None:
        bay = self._bay(cell)
        assert bay is not None
        for _ in range(ANCHOR_PASSES):
            told = list(self._references[cell, prompt.name])
            _, tokens = self._generate(bay, cell, prompt, None)
            said = [*self.tokens(prompt), *tokens]
            self._references[cell, prompt.name] = said
            if said == told[: len(said)]:
                return

    def teach(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Tell the sources that know the answer what plain decoding says to a prompt."""
        for cell in self._plan.cells:
            if cell.knows_the_answer:
                self._references[cell, prompt.name] = [*self.tokens(prompt), *tokens]

    def _generate(
        self, bay: _Bay, cell: Cell, prompt: Prompt, on_step: Any, gate: CostGate | None = None
    ) -> tuple[Run, tuple[int, ...]]:
        """A generation from an empty context, by a new source; its run, and its tokens.

        Without a gate of its own, a gated cell has a new one.
        """
        bay.target.clear()
        generation = generate(
            bay.target,
            self.tokens(prompt),
            source=self._new_source(bay, cell, prompt),
            n_predict=self._plan.n_predict,
            width=cell.draft,
            gate=gate or (CostGate() if cell.gated else None),
            on_prefill=None if on_step is None else lambda *_: on_step(True),
        )
        tally, times = Tally(), StepTimes()
        for step in generation:
            tally.add(step)
            times.add(step)
            if on_step is not None:
                on_step(False)
        failure = generation.source_failure
        run = bmoe_run(
            prompt.name,
            cell.name,
            tally.summary,
            times,
            wall_s=generation.wall_s,
            finish_reason=generation.finish_reason.value,
            failure=None if failure is None else str(failure),
        )
        return run, tuple(generation.tokens[generation.n_prompt :])

    def _new_source(self, bay: _Bay, cell: Cell, prompt: Prompt) -> OpenSource | None:
        """A new source for a bay: what one learned must not help it in the next run."""
        if bay.source is None:
            return None
        bay.source.close()
        source = self._open(cell)
        assert source is not None
        source.open(bay.target)
        if cell.knows_the_answer:
            source.plugin.reference = self._references[cell, prompt.name]
        bay.source = source
        return source

    def top_two_gap(self, prompt: Prompt, tokens: Sequence[int]) -> float:
        """How far apart plain decoding's two highest logits are after a prompt and ``tokens``."""
        with LlamaTarget(self.model, n_ctx=self.n_ctx, n_threads=self._plan.n_threads) as target:
            given = self.tokens(prompt)
            for start in range(0, len(given), target.n_batch):
                chunk = given[start : start + target.n_batch]
                row = target.decode(chunk, 1)[0]
            for token in tokens:
                row = target.decode([token], 1)[0]
            second, first = np.partition(row, -2)[-2:]
            return float(first - second)

    def plain_target(self, max_draft: int) -> LlamaTarget:
        """A context of its own for measuring decodes of several widths."""
        return LlamaTarget(
            self.model, n_ctx=self.n_ctx, max_draft=max_draft, n_threads=self._plan.n_threads
        )

    @property
    def n_threads(self) -> int:
        """Threads of the decodes."""
        return self._plan.n_threads or default_n_threads()

    @property
    def can_draft(self) -> bool:
        """Whether llama.cpp can take a draft back on this model."""
        return not self.model.is_recurrent or any(
            bay.target.max_rollback for bay in self._bays.values()
        )

    @property
    def path(self) -> Path:
        """The model's file."""
        return self.model.path

    def close(self) -> None:
        """Free the contexts and the model."""
        for bay in self._bays.values():
            bay.close()
        self.model.close()
