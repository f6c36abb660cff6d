"""What one run of a cell came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import attrs
from attrs import define, field, frozen

from bmoe_core.bench.conditions import Conditions
from bmoe_core.steps import Step
from bmoe_core.telemetry import Summary, ratio


@frozen(kw_only=True)
class Run:
    """One run of one cell on one prompt; seconds in ``_s``, what is unknown is None.

    Attributes:
        prompt: the prompt's name.
        cell: the cell's name.
        round: which round it belongs to, from 0.
        n_generated: tokens generated.
        wall_s: from the end of the prefill to the end, everything included.
        decode_s: in the target.
        draft_s: in the source.
        loop_s: in the loop itself.
        cpu_s: processor seconds in the target, over all threads.
        majflt: page faults in the target that read from a disk.
        n_decodes: target decodes.
        n_drafted_steps: of them, those that verified a draft.
        n_drafted: draft tokens verified.
        n_accepted: of them, accepted.
        plain_step_s: median seconds of a plain step.
        drafted_step_s: median seconds of a step that verified a draft, drafting included.
        finish_reason: why it ended.
        failure: why its source was switched off, or None.
        conditions: the machine's state when it began.
        others_cpu: processor cores that other programs kept busy meanwhile, on the average.
        contaminated: whether that was too much, also when it was run again.
    """

    prompt: str
    cell: str
    round: int
    n_generated: int
    wall_s: float
    decode_s: float | None = None
    draft_s: float | None = None
    loop_s: float | None = None
    cpu_s: float | None = None
    majflt: int | None = None
    n_decodes: int | None = None
    n_drafted_steps: int | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    plain_step_s: float | None = None
    drafted_step_s: float | None = None
    finish_reason: str = ""
    failure: str | None = None
    conditions: Conditions | None = None
    others_cpu: float | None = None
    contaminated: bool = False

    @property
    def wall_tok_s(self) -> float | None:
        """Tokens a second, everything included."""
        return ratio(self.n_generated, self.wall_s)

    @property
    def reported_tok_s(self) -> float | None:
        """Tokens a second of decoding alone."""
        return None if self.decode_s is None else ratio(self.n_generated, self.decode_s)

    @property
    def effective_tok_s(self) -> float | None:
        """Tokens a second of decoding and drafting."""
        if self.decode_s is None or self.draft_s is None:
            return None
        return ratio(self.n_generated, self.decode_s + self.draft_s)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; :meth:`from_dict` reads them back."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        """The run that :meth:`to_dict` wrote.

        Raises:
            TypeError: it is not one.
        """
        conditions = values.get("conditions")
        return cls(**{**values, "conditions": conditions and Conditions(**conditions)})


@define
class StepTimes:
    """Collects the seconds of plain and of drafted steps."""

    plain: list[float] = field(factory=list)
    drafted: list[float] = field(factory=list)

    def add(self, step: Step) -> None:
        """Count one step."""
        (self.drafted if step.drafted else self.plain).append(step.decode_s + step.draft_s)


def bmoe_run(
    prompt: str,
    cell: str,
    summary: Summary,
    times: StepTimes,
    *,
    wall_s: float,
    finish_reason: str,
    failure: str | None,
) -> Run:
    """A run of bmoe's own loop, from what it counted."""
    return Run(
        prompt=prompt,
        cell=cell,
        round=0,
        n_generated=summary.n_generated,
        wall_s=wall_s,
        decode_s=summary.decode_s,
        draft_s=summary.draft_s,
        loop_s=summary.loop_s,
        cpu_s=summary.decode.cpu_s,
        majflt=summary.decode.majflt,
        n_decodes=summary.n_decodes,
        n_drafted_steps=summary.n_drafted_steps,
        n_drafted=summary.n_drafted,
        n_accepted=summary.n_accepted,
        plain_step_s=median(times.plain),
        drafted_step_s=median(times.drafted),
        finish_reason=finish_reason,
        failure=failure,
    )


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None
