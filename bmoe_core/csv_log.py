"""The CSV file of a run: what ran, a row a token, and a summary.

It keeps the key names of BigMoeOnEdge, so that what reads that engine's files reads these. Those
names are used here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from bmoe_core.files import OutputFile
from bmoe_core.footprint import Footprint
from bmoe_core.routing.summary import MIB, RoutingSummary
from bmoe_core.steps import Step
from bmoe_core.telemetry import Summary, ratio

COLUMNS = (
    *("step", "steps", "token", "wall_ms", "cpu_ms", "majflt"),
    *("mtp_batch", "mtp_draft_ms", "mtp_drafted", "mtp_accepted", "loop_ms", "elapsed_ms"),
    *("demanded_bytes", "head_demanded_bytes", "distinct_experts"),
    *("modelled_hits", "modelled_misses", "modelled_read_bytes"),
    *("read_bytes", "head_read_bytes", "cache_hit_pct", "io_ms", "dropped_experts"),
    *("rss_anon_mib", "rss_file_mib", "swap_mib", "available_mib"),
)
"""The columns, in order; docs/reference/csv.md defines each."""

_SAMPLED = ("rss_anon_mib", "rss_file_mib", "swap_mib", "available_mib")
_RATES = ("cache_hit_pct",)
_COSTS = tuple(name for name in COLUMNS[3:] if name not in _SAMPLED)


@define(eq=False)
class CsvLog:
    """Writes each line as it comes, so that a killed run leaves a readable file.

    A file that cannot be written any more is given up, and the run goes on without it.

    Attributes:
        n_predict: the most tokens the run may generate.
        failure: why the file was given up, or None.
    """

    _file: OutputFile
    n_predict: int
    failure: str | None = field(default=None, init=False)
    _n_tokens: int = field(default=0, init=False)
    _elapsed_s: float = field(default=0.0, init=False)

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Replace what the file held by the preamble and the header.

        Args:
            facts: what ran, as resolved: written as ``# key=value`` lines.
        """
        lines = [f"# {key}={_in_one_line(value)}" for key, value in facts.items()]
        self._write("".join(f"{line}\n" for line in [*lines, ",".join(COLUMNS)]))

    def add(
        self,
        step: Step,
        *,
        wall_s: float,
        routing: RoutingSummary | None = None,
        footprint: Footprint | None = None,
    ) -> None:
        """Write the rows of one step: its cost on the first, zeros on the others.

        A step all of whose tokens a stop has cut off has one row, without a token.

        Args:
            step: the step.
            wall_s: seconds from the end of the prefill to now.
            routing: what the step's decodes demanded, or None where the routing is not read.
            footprint: a sample of the memory, or None where none was taken.
        """
        elapsed_s, self._elapsed_s = wall_s - self._elapsed_s, wall_s
        costs = _costs(step, elapsed_s, routing)
        lines = []
        for i, token in enumerate(step.tokens or [""]):
            position = self._n_tokens + 1 + i if step.tokens else self._n_tokens
            row: dict[str, Any] = {"step": position, "steps": self.n_predict, "token": token}
            row |= costs if i == 0 else {name: _zero(name, costs[name]) for name in _COSTS}
            for name in _SAMPLED:
                value = None if footprint is None or i > 0 else getattr(footprint, name)
                row[name] = "" if value is None else f"{value:.2f}"
            lines.append(",".join(str(row[name]) for name in COLUMNS) + "\n")
        self._write("".join(lines))
        self._n_tokens += len(step.tokens)

    def finish(self, summary: Summary, finish_reason: str, routing: RoutingSummary | None) -> None:
        """Write the trailer."""
        n = summary.n_generated
        figures = {
            "tokens": n,
            "mtp_decodes": summary.n_decodes,
            "mtp_drafted": summary.n_drafted,
            "mtp_accepted": summary.n_accepted,
            "drafted_steps": summary.n_drafted_steps,
            "mtp_draft_s/tok": summary.draft_s_per_token,
            "tok/s": summary.reported_tok_s,
            "effective_tok/s": summary.effective_tok_s,
            "wall_tok/s": ratio(n, self._elapsed_s),
            "majflt/tok": summary.majflt_per_token,
            "cpu_s/tok": summary.cpu_s_per_token,
            "loop_s/tok": ratio(summary.loop_s, n),
            "acceptance": summary.acceptance,
            "tokens_per_verify_decode": summary.tokens_per_verify_decode,
            "coverage": summary.coverage,
        }
        if routing is not None:
            figures["demanded_MiB/tok"] = routing.demanded_mib_per_token(n)
            figures["distinct_experts"] = routing.distinct_per_layer
            figures["verify_widening"] = routing.widening
            figures["modelled_hit"] = routing.hit_rate
            figures |= _read_figures(routing, n)
        text = " ".join(f"{name}={_figure(value)}" for name, value in figures.items())
        self._write(f"# summary {text} finish_reason={finish_reason}\n")

    def _write(self, text: str) -> None:
        if self.failure is not None:
            return
        try:
            self._file.append(text)
        except OSError as error:
            self.failure = (
                f"the CSV file {self._file.path} could not be written beyond token "
                f"{self._n_tokens}: {error.strerror}; the run goes on without it"
            )


def _costs(step: Step, elapsed_s: float, routing: RoutingSummary | None) -> dict[str, Any]:
    costs: dict[str, Any] = {
        "wall_ms": _ms(step.decode_s),
        "cpu_ms": _ms(step.decode.cpu_s),
        "majflt": "" if step.decode.majflt is None else step.decode.majflt,
        "mtp_batch": 1 + step.n_drafted,
        "mtp_draft_ms": _ms(step.draft_s),
        "mtp_drafted": step.n_drafted,
        "mtp_accepted": step.n_accepted,
        "loop_ms": _ms(step.loop_s),
        "elapsed_ms": _ms(elapsed_s),
    }
    if routing is None:
        return dict.fromkeys(_COSTS, "") | costs
    touched = routing.n_hits + routing.n_misses
    reads = routing.reads
    streamed = reads.n_held + reads.n_missing > 0
    return costs | {
        "demanded_bytes": routing.target_bytes + routing.source_bytes,
        "head_demanded_bytes": routing.source_bytes,
        "distinct_experts": _figure(routing.distinct_per_layer),
        "modelled_hits": routing.n_hits if touched else "",
        "modelled_misses": routing.n_misses if touched else "",
        "modelled_read_bytes": routing.read_bytes if touched else "",
        "read_bytes": reads.n_bytes if streamed else "",
        "head_read_bytes": routing.source_reads.n_bytes if streamed else "",
        "cache_hit_pct": f"{100 * (reads.hit_rate or 0):.2f}" if streamed else "",
        "io_ms": _ms(reads.wait_s) if streamed else "",
        "dropped_experts": reads.n_dropped if reads.n_routed else "",
    }


def _read_figures(routing: RoutingSummary, n_generated: int) -> dict[str, float | None]:
    """What streaming took, for the trailer; nothing where the experts were not streamed."""
    reads = routing.reads
    if reads.hit_rate is None:
        return {}
    return {
        "read_MiB/tok": ratio(reads.n_bytes / MIB, n_generated),
        "cache_hit_pct": 100 * reads.hit_rate,
        "io_s/tok": ratio(reads.wait_s, n_generated),
        "drop_rate": ratio(reads.n_dropped, reads.n_routed),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}"


def _zero(name: str, first: Any) -> Any:
    """For the rows after a group's first: nothing more was spent, or it is not known."""
    return "" if first == "" or name in _RATES else 0


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _in_one_line(value: Any) -> str:
    return " ".join(str(value).splitlines())
