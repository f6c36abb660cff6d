"""The CSV file: its rows, its trailer, and a reader that knows BigMoeOnEdge's key names alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from bmoe_core import Step, Tally, generate, open_source, report_lines
from bmoe_core.csv_log import COLUMNS, CsvLog
from bmoe_core.files import OutputFile
from bmoe_core.footprint import Footprint
from bmoe_core.meter import Cost
from bmoe_core.routing.summary import RoutingSummary
from bmoe_core.testing import FakeTarget, ScriptedSource, hashed

PLAIN = Step((7,), 0, 0, Cost(0.010, 0.018, 2), draft_s=0.001, loop_s=0.0001)
DRAFTED = Step((1, 2, 3), 3, 2, Cost(0.020, 0.035, 0), draft_s=0.004, loop_s=0.0002)


def read(path: Path) -> tuple[dict[str, str], list[dict[str, str]], dict[str, str]]:
    """Preamble, rows and summary, as a stranger would read them."""
    lines = path.read_text().splitlines()
    preamble = dict(
        line[2:].split("=", 1) for line in lines if line.startswith("# ") and "=" in line
    )
    rows = list(csv.DictReader(io.StringIO("\n".join(x for x in lines if not x.startswith("#")))))
    trailers = [line for line in lines if line.startswith("# summary ")]
    pairs = trailers[-1].split()[2:] if trailers else []
    return preamble, rows, dict(pair.split("=", 1) for pair in pairs)


@pytest.fixture
def log(tmp_path: Path) -> CsvLog:
    return CsvLog(OutputFile(str(tmp_path / "run.csv")), n_predict=10)


class TestRows:
    def test_a_group_s_cost_is_on_its_first_row(self, log: CsvLog, tmp_path: Path) -> None:
        """Zeros on the others, so that a column adds up to the run's total."""
        log.begin({"model": "a\nb"})
        log.add(PLAIN, wall_s=0.012)
        log.add(DRAFTED, wall_s=0.040)
        preamble, rows, _ = read(tmp_path / "run.csv")
        assert preamble["model"] == "a b"
        assert tuple(rows[0]) == COLUMNS
        assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
        assert [row["token"] for row in rows] == ["7", "1", "2", "3"]
        assert [row["mtp_batch"] for row in rows] == ["1", "4", "0", "0"]
        assert [row["mtp_accepted"] for row in rows] == ["0", "2", "0", "0"]
        assert [float(row["wall_ms"]) for row in rows] == [10.0, 20.0, 0.0, 0.0]
        assert [float(row["elapsed_ms"]) for row in rows] == [12.0, 28.0, 0.0, 0.0]
        assert {row["steps"] for row in rows} == {"10"}

    def test_what_is_not_known_is_empty(self, log: CsvLog, tmp_path: Path) -> None:
        """Not 0: no routing read, no faults reported, no sample taken."""
        log.add(Step((7,), 0, 0, Cost(0.01), draft_s=0.0), wall_s=0.01)
        log.add(PLAIN, wall_s=0.02, footprint=Footprint(9.0, 6.0, 3.0, None, 100.0))
        first, second = (
            dict(zip(COLUMNS, line.split(","), strict=True))
            for line in (tmp_path / "run.csv").read_text().splitlines()
        )
        for name in ("majflt", "demanded_bytes", "modelled_hits", "rss_anon_mib", "available_mib"):
            assert first[name] == ""
        assert second["majflt"] == "2"
        assert second["rss_anon_mib"] == "6.00"
        assert second["swap_mib"] == ""

    def test_routing_without_a_cache(self, log: CsvLog, tmp_path: Path) -> None:
        """The demand is there, and nothing modelled."""
        routing = RoutingSummary(target_bytes=300, source_bytes=12, n_distinct=5, n_layers=2)
        log.add(DRAFTED, wall_s=0.02, routing=routing)
        first, second, _ = (
            dict(zip(COLUMNS, line.split(","), strict=True))
            for line in (tmp_path / "run.csv").read_text().splitlines()
        )
        assert (first["demanded_bytes"], first["head_demanded_bytes"]) == ("312", "12")
        assert first["distinct_experts"] == "2.5"
        assert first["modelled_hits"] == second["modelled_hits"] == ""
        assert second["demanded_bytes"] == "0"


def speculate(log: CsvLog, steps: int) -> tuple[Tally, list[str]]:
    """A generation on a fake whose draft is right for a while, then wrong, then declined."""
    rule = hashed(seed=3)

    def script(tokens: Any, n_max: int) -> list[int] | None:
        kind = len(tokens) % 3
        if kind == 0:
            return None
        history, drafted = tokens.tolist(), []
        for i in range(n_max):
            drafted.append(rule(history) if kind == 1 or i == 0 else 0)
            history.append(drafted[-1])
        return drafted

    tally = Tally()
    generation = generate(
        FakeTarget(rule), [1, 2], source=open_source(ScriptedSource(script)), n_predict=steps
    )
    log.begin({})
    for step in generation:
        tally.add(step)
        log.add(step, wall_s=generation.wall_s)
    log.finish(tally.summary, generation.finish_reason.value, None)
    return tally, report_lines("scripted", tally.summary)


class TestASeedReader:
    def test_the_rows_give_the_report_s_figures(self, log: CsvLog, tmp_path: Path) -> None:
        """Acceptance, tokens per verify decode, coverage and effective rate, from rows alone."""
        tally, report = speculate(log, 60)
        _, rows, _ = read(tmp_path / "run.csv")
        groups = [row for row in rows if int(row["mtp_batch"]) > 0]
        drafted = sum(int(row["mtp_drafted"]) for row in rows)
        accepted = sum(int(row["mtp_accepted"]) for row in rows)
        seconds = sum(float(row["wall_ms"]) + float(row["mtp_draft_ms"]) for row in rows) / 1e3
        n_drafting = sum(int(row["mtp_batch"]) > 1 for row in groups)
        assert 0 < accepted < drafted
        assert f"{accepted}/{drafted} drafts accepted ({accepted / drafted:.1%})" in report[0]
        assert f"{len(rows) / len(groups):.2f} tokens per verify decode" in report[0]
        assert f"drafted on {n_drafting} of {len(groups)} steps" in report[2]
        assert f"({n_drafting / len(groups):.1%})" in report[2]
        assert len(rows) / seconds == pytest.approx(tally.summary.effective_tok_s, rel=1e-2)

    def test_the_trailer_gives_them_too(self, log: CsvLog, tmp_path: Path) -> None:
        """With the keys that BigMoeOnEdge's summary has."""
        tally, _ = speculate(log, 60)
        _, rows, trailer = read(tmp_path / "run.csv")
        summary = tally.summary
        assert int(trailer["mtp_decodes"]) == summary.n_decodes
        assert int(trailer["drafted_steps"]) == summary.n_drafted_steps
        acceptance = int(trailer["mtp_accepted"]) / int(trailer["mtp_drafted"])
        assert acceptance == summary.acceptance
        assert len(rows) / int(trailer["mtp_decodes"]) == summary.tokens_per_verify_decode
        effective = 1 / (1 / float(trailer["tok/s"]) + float(trailer["mtp_draft_s/tok"]))
        assert effective == pytest.approx(summary.effective_tok_s, rel=1e-4)
        assert float(trailer["majflt/tok"]) == summary.majflt_per_token
        assert trailer["finish_reason"] == "length"


class TestTheDisk:
    def test_every_line_is_written_at_once(self, log: CsvLog, tmp_path: Path) -> None:
        """What a killed run leaves can be read up to its last token."""
        log.begin({"model": "m"})
        log.add(PLAIN, wall_s=0.1)
        _, rows, trailer = read(tmp_path / "run.csv")
        assert len(rows) == 1
        assert trailer == {}

    def test_a_full_disk_costs_the_file_alone(self) -> None:
        """The failure is kept, and later lines are not tried."""
        log = CsvLog(OutputFile("/dev/full"), n_predict=3)
        log.begin({})
        log.add(PLAIN, wall_s=0.1)
        log.finish(Tally().summary, "length", None)
        assert log.failure == (
            "the CSV file /dev/full could not be written beyond token 0: No space left on device; "
            "the run goes on without it"
        )
