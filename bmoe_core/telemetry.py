"""What a run did and what it cost: tally, summary, report lines and JSON record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, frozen

from bmoe_core.footprint import Footprint
from bmoe_core.meter import NO_COST, Cost
from bmoe_core.steps import Step

SLOW_MS = 1.0
"""A source that takes less a step is never called slow, however small the model."""


def ratio(numerator: float, denominator: float) -> float | None:
    """``numerator / denominator``, or None where there is nothing to divide by."""
    return numerator / denominator if denominator else None


@frozen
class Summary:
    """The figures of one generation; every ratio without a denominator is None.

    Attributes:
        n_generated: tokens emitted; those that a stop took back are not counted.
        n_decodes: target decodes after the prefill, plain ones included.
        n_drafted_steps: decodes that verified a draft.
        n_drafted: draft tokens verified.
        n_accepted: draft tokens accepted.
        decode: what was spent in the target after the prefill.
        draft_s: seconds in the source after the prefill: drafting and catching up.
        loop_s: seconds in the loop itself.
    """

    n_generated: int = 0
    n_decodes: int = 0
    n_drafted_steps: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    decode: Cost = NO_COST
    draft_s: float = 0.0
    loop_s: float = 0.0

    @property
    def decode_s(self) -> float:
        """Seconds in the target after the prefill."""
        return self.decode.wall_s

    @property
    def acceptance(self) -> float | None:
        """Accepted of the drafted tokens, 0 to 1."""
        return ratio(self.n_accepted, self.n_drafted)

    @property
    def tokens_per_verify_decode(self) -> float | None:
        """Tokens a target decode, plain ones included."""
        return ratio(self.n_generated, self.n_decodes)

    @property
    def coverage(self) -> float | None:
        """Steps that drafted, of all steps, 0 to 1."""
        return ratio(self.n_drafted_steps, self.n_decodes)

    @property
    def reported_tok_s(self) -> float | None:
        """Tokens a second of decoding: what one sees who does not count the drafting."""
        return ratio(self.n_generated, self.decode_s)

    @property
    def effective_tok_s(self) -> float | None:
        """Tokens a second of decoding, drafting and catching up."""
        return ratio(self.n_generated, self.decode_s + self.draft_s)

    @property
    def draft_s_per_token(self) -> float | None:
        """Seconds in the source a token."""
        return ratio(self.draft_s, self.n_generated)

    @property
    def draft_ms_per_step(self) -> float | None:
        """Milliseconds in the source a step."""
        return ratio(1000 * self.draft_s, self.n_decodes)

    @property
    def is_slow(self) -> bool:
        """Whether the source took longer than the decodes, and long enough to be felt."""
        return self.draft_s > self.decode_s and (self.draft_ms_per_step or 0.0) >= SLOW_MS

    @property
    def cpu_s_per_token(self) -> float | None:
        """Processor seconds in the target a token, over all threads."""
        return ratio(self.decode.cpu_s, self.n_generated)

    @property
    def majflt_per_token(self) -> float | None:
        """Major page faults in the target a token; None also where they are not reported."""
        majflt = self.decode.majflt
        return None if majflt is None else ratio(majflt, self.n_generated)


@define
class Tally:
    """Counts steps; :attr:`summary` is what they came to."""

    summary: Summary = Summary()

    def add(self, step: Step) -> None:
        """Count one step."""
        before = self.summary
        self.summary = Summary(
            n_generated=before.n_generated + len(step.tokens) - step.n_taken_back,
            n_decodes=before.n_decodes + 1,
            n_drafted_steps=before.n_drafted_steps + step.drafted,
            n_drafted=before.n_drafted + step.n_drafted,
            n_accepted=before.n_accepted + step.n_accepted,
            decode=before.decode + step.decode,
            draft_s=before.draft_s + step.draft_s,
            loop_s=before.loop_s + step.loop_s,
        )


def report_lines(source: str, summary: Summary) -> list[str]:
    """The lines printed after a run, in the form of BigMoeOnEdge's report.

    A source that takes longer than the model gets a line of its own.

    Args:
        source: the draft source's name, which begins each line.
        summary: the run's figures.
    """
    if not summary.n_generated:
        return [f"{source}: no tokens were generated"]
    if source == "none":
        return [
            f"none: {_count(summary.n_generated, 'token')} in "
            f"{_count(summary.n_decodes, 'plain decode')}, "
            f"{_figure(summary.reported_tok_s, '.2f')} tok/s"
        ]
    slow = [
        f"{source}: slow: {_figure(summary.draft_ms_per_step, '.1f')} ms a step in the source, and "
        f"{_figure(ratio(1000 * summary.decode_s, summary.n_decodes), '.1f')} ms in the model"
    ]
    share = "none drafted" if summary.acceptance is None else f"{summary.acceptance:.1%}"
    return [
        f"{source}: {summary.n_accepted}/{summary.n_drafted} drafts accepted ({share}), "
        f"{_figure(summary.tokens_per_verify_decode, '.2f')} tokens per verify decode "
        f"({_count(summary.n_decodes, 'decode')} for {_count(summary.n_generated, 'token')})",
        f"{source}: drafting costs {_figure(summary.draft_s_per_token, '.4f')} s/token "
        f"on top of decode → {_figure(summary.effective_tok_s, '.2f')} tok/s effective "
        f"(vs {_figure(summary.reported_tok_s, '.2f')} reported)",
        f"{source}: drafted on {summary.n_drafted_steps} of {_count(summary.n_decodes, 'step')} "
        f"({_figure(summary.coverage, '.1%')}); the rest decoded plainly",
        *(slow if summary.is_slow else ()),
    ]


def _figure(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


@frozen(kw_only=True)
class RunRecord:
    """One run as ``--json`` writes it; units are in the names, what is unknown is None.

    Attributes:
        source: the draft source's name, or ``none``.
        model: the model file.
        n_prompt: tokens of the prompt.
        summary: the figures of the generation.
        wall_s: seconds from the end of the prefill to the end, everything included.
        prefill_s: seconds to the first settled token.
        load_s: seconds to load the model and make its context.
        footprint: the memory at the end.
        routing: the figures of the routing, or None where it was not read.
        gate: the figures of the gate, or None without one.
        sampling: the settings tokens were drawn with, or None where the likeliest was taken.
        finish_reason: why the generation ended.
        warnings: what the user was warned of.
        tokens: the generated token ids.
        text: their text.
    """

    source: str
    model: str
    n_prompt: int
    summary: Summary
    wall_s: float
    prefill_s: float
    load_s: float
    footprint: Footprint
    routing: Mapping[str, Any] | None
    gate: Mapping[str, Any] | None
    sampling: Mapping[str, Any] | None
    finish_reason: str
    warnings: Sequence[str]
    tokens: Sequence[int]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values, in the documented order."""
        summary = self.summary
        n = summary.n_generated
        return {
            "source": self.source,
            "model": self.model,
            "n_prompt": self.n_prompt,
            "n_generated": n,
            "n_decodes": summary.n_decodes,
            "n_drafted_steps": summary.n_drafted_steps,
            "n_drafted": summary.n_drafted,
            "n_accepted": summary.n_accepted,
            "acceptance": summary.acceptance,
            "tokens_per_verify_decode": summary.tokens_per_verify_decode,
            "coverage": summary.coverage,
            "decode_s": summary.decode_s,
            "draft_s": summary.draft_s,
            "loop_s": summary.loop_s,
            "reported_tok_s": summary.reported_tok_s,
            "effective_tok_s": summary.effective_tok_s,
            "wall_tok_s": ratio(n, self.wall_s),
            "prefill_s": self.prefill_s,
            "load_s": self.load_s,
            "majflt_per_token": summary.majflt_per_token,
            "cpu_s_per_token": summary.cpu_s_per_token,
            "rss_mib": self.footprint.rss_mib,
            "rss_anon_mib": self.footprint.rss_anon_mib,
            "rss_file_mib": self.footprint.rss_file_mib,
            "swap_mib": self.footprint.swap_mib,
            "available_mib": self.footprint.available_mib,
            "routing": None if self.routing is None else dict(self.routing),
            "gate": None if self.gate is None else dict(self.gate),
            "sampling": None if self.sampling is None else dict(self.sampling),
            "finish_reason": self.finish_reason,
            "warnings": list(self.warnings),
            "tokens": list(self.tokens),
            "text": self.text,
        }
