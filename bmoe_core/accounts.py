"""The accounts of one run: its steps, the routing of its decodes, its memory, and its CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field

from bmoe_core.csv_log import CsvLog
from bmoe_core.footprint import FootprintSampler
from bmoe_core.routing.cache import CacheSize
from bmoe_core.routing.tally import RoutingSummary, RoutingTally
from bmoe_core.steps import Step
from bmoe_core.telemetry import Summary, Tally, report_lines

if TYPE_CHECKING:
    from bmoe_core.gate import CostGate
    from bmoe_core.routing.tap import RouterTap


@define(eq=False, kw_only=True)
class Accounts:
    """Takes each step of a generation as it comes.

    Attributes:
        source: the draft source's name, or ``none``.
        tap: reads the routing; None: it is not read.
        cache_size: the cache of experts to model, or None.
        csv: the CSV file, or None.
        gate: decides about the drafts, or None.
        no_experts: the routing was asked for, and the model has no routed experts.
    """

    source: str
    tap: RouterTap | None = None
    cache_size: CacheSize | None = None
    csv: CsvLog | None = None
    gate: CostGate | None = None
    no_experts: bool = False
    _tally: Tally = field(factory=Tally, init=False)
    _routing: RoutingTally | None = field(init=False)
    _sampler: FootprintSampler = field(factory=FootprintSampler, init=False)

    def __attrs_post_init__(self) -> None:
        tap = self.tap
        self._routing = None if tap is None else RoutingTally(tap.layers, self.cache_size)

    @property
    def summary(self) -> Summary:
        """The figures of the steps so far."""
        return self._tally.summary

    def end_prefill(self) -> None:
        """The decodes up to now were the prompt's."""
        if self.tap is not None and self._routing is not None:
            self._routing.warm(self.tap.take())

    def add(self, step: Step, wall_s: float) -> None:
        """Count a step, ``wall_s`` seconds after the end of the prefill."""
        self._tally.add(step)
        routed: RoutingSummary | None = None
        if self.tap is not None and self._routing is not None:
            routed = self._routing.add(self.tap.take())
        if self.csv is not None:
            footprint = self._sampler.sample()
            self.csv.add(step, wall_s=wall_s, routing=routed, footprint=footprint)

    def finish(self, finish_reason: str) -> None:
        """Write the trailer of the CSV file."""
        if self.csv is not None:
            routing = None if self._routing is None else self._routing.summary
            self.csv.finish(self.summary, finish_reason, routing)

    def lines(self) -> list[str]:
        """The report's lines."""
        lines = report_lines(self.source, self.summary)
        if self.gate is not None:
            lines.append(self.gate.record.line())
        if self._routing is not None:
            lines += self._routing.lines(self.source, self.summary.n_generated)
        elif self.no_experts:
            lines.append("moe: no routed experts in this model")
        return lines

    def routing_record(self) -> Mapping[str, Any] | None:
        """The routing's figures for the JSON record, or None where it was not read."""
        return None if self._routing is None else self._routing.to_dict(self.summary.n_generated)

    def gate_record(self) -> Mapping[str, Any] | None:
        """The gate's figures for the JSON record, or None without one."""
        return None if self.gate is None else self.gate.to_dict()
