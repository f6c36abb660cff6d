"""Streaming as its user meets it: options, report, records, refusals."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmoe_core import UsageError
from bmoe_core.cli import main
from bmoe_core.models import demo_model
from bmoe_core.moe import options as module
from bmoe_core.moe.options import StreamOptions
from bmoe_core.moe.table import ExpertTable
from bmoe_core.routing.cache import CacheSize

Run = Callable[..., tuple[int, str, str]]
PROMPT = "def area(width, height):\n    return width * height\n\ndef perimeter(width, height):\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs bmoe in this process on the demo model."""

    def run_(*arguments: str) -> tuple[int, str, str]:
        status = main([*arguments, "-p", PROMPT, "-t", "1", "-n", "24", "-m", str(demo_model())])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_


class TestRuns:
    @pytest.mark.parametrize("source", ["none", "ngram", "mtp"])
    def test_the_answer_is_the_resident_model_s(self, run: Run, source: str) -> None:
        """Whatever drafts, with the least cache."""
        plain = run("--draft-source", source)
        streamed = run("--draft-source", source, "--moe-stream", "--cache-mb", "2")
        assert plain[0] == streamed[0] == 0
        assert plain[1] == streamed[1] != ""
        assert "moe: streamed, a cache of 2 MiB holds " in streamed[2]
        assert "modelled" not in streamed[2]

    def test_the_records(self, run: Run, tmp_path: Path) -> None:
        """Report, JSON and CSV tell of the same reads, and the head's part of them."""
        csv_path, json_path = tmp_path / "run.csv", tmp_path / "run.json"
        arguments = ["--moe-stream", "--cache-mb", "2", "--io-threads", "3", "--mtp"]
        status, _, err = run(*arguments, "--csv", str(csv_path), "--json", str(json_path))
        assert status == 0
        assert "was the head's own routing" in err.split(" MiB read, ")[1]
        record = json.loads(json_path.read_text())["routing"]
        assert record["modelled_cache_mib"] is None
        streamed = record["streamed"]
        assert streamed["cache_mib"] == 2
        assert 0 <= streamed["hit_rate"] < 1
        assert 0 < streamed["source_read_mib"] < streamed["read_mib"]
        assert streamed["drop_rate"] is None
        lines = csv_path.read_text().splitlines()
        facts = dict(line[2:].split("=", 1) for line in lines if line.startswith("# moe_stream"))
        assert facts == {"moe_stream": "1"}
        assert "# io_threads=3" in lines
        assert "# modelled_cache=" in lines
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        total = sum(int(row["read_bytes"]) for row in rows)
        assert total / 2**20 == pytest.approx(streamed["read_mib"])
        own = sum(int(row["head_read_bytes"]) for row in rows)
        assert own / 2**20 == pytest.approx(streamed["source_read_mib"])
        waited = sum(float(row["io_ms"]) for row in rows) / 1e3
        assert waited / 24 == pytest.approx(streamed["wait_s_per_token"], rel=1e-3)
        first = [row for row in rows if int(row["mtp_batch"])]
        later = [row for row in rows if not int(row["mtp_batch"])]
        assert all(0 <= float(row["cache_hit_pct"]) <= 100 for row in first)
        assert later
        assert all(row["cache_hit_pct"] == "" for row in later)
        assert all(row["modelled_hits"] == "" for row in rows)
        (trailer,) = [line for line in lines if line.startswith("# summary")]
        assert f"cache_hit_pct={100 * streamed['hit_rate']:.6g}" in trailer

    def test_what_is_left_out_is_always_said(self, run: Run, tmp_path: Path) -> None:
        """In the report, the record and the CSV file."""
        path = tmp_path / "run.csv"
        arguments = ["--moe-stream", "--cache-mb", "2", "--drop-cold-experts", "1.0"]
        status, _, err = run(*arguments, "--csv", str(path))
        assert status == 0
        assert "routed experts left out (" in err
        assert "this is not the model's own answer" in err
        lines = path.read_text().splitlines()
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        assert sum(int(row["dropped_experts"]) for row in rows) > 0
        assert "# drop_cold_experts=1.0" in lines

    def test_a_cache_for_everything_reads_everything_once(self, run: Run) -> None:
        """By default it is as large as the available memory, and no larger than the experts."""
        _, _, err = run("--moe-stream", "--dense-weights", "mmap")
        total = -(-ExpertTable.read(demo_model()).total_bytes // 2**20)
        assert f"moe: streamed, a cache of {total} MiB (auto: " in err
        assert "and no more than all experts) holds 100% of the expert bytes" in err

    @pytest.mark.parametrize("quiet", [[], ["--quiet"]])
    def test_a_disk_that_fails_ends_the_run(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, quiet: list[str]
    ) -> None:
        """One sentence, status 1, and no more of an answer than was right."""
        real, n_reads, n_good = os.preadv, 0, 10**9

        def fail(*arguments: Any) -> int:
            nonlocal n_reads
            n_reads += 1
            if n_reads > n_good:
                raise OSError(5, "Input/output error")
            return real(*arguments)

        monkeypatch.setattr(os, "preadv", fail)
        _, whole, _ = run("--moe-stream", "--cache-mb", "2")
        n_good, n_reads = n_reads * 3 // 4, 0
        status, out, err = run("--moe-stream", "--cache-mb", "2", *quiet)
        assert status == 1
        assert "failed: Input/output error; the run ended there" in err.splitlines()[-1]
        assert "Traceback" not in err
        assert whole.startswith(out)
        assert out != whole


class TestRefusals:
    def test_a_cache_that_is_too_small(self, run: Run) -> None:
        """The message has the size that does."""
        status, out, err = run("--moe-stream", "--cache-mb", "1")
        assert (status, out) == (2, "")
        assert "a cache of 1 MiB is too small" in err
        assert "takes 2 MiB (--cache-mb)" in err

    def test_memory_that_is_too_small(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """The automatic size is refused like a given one, and says what it was made of."""
        monkeypatch.setattr("bmoe_core.routing.cache.available_bytes", lambda: 1030 * 2**20)
        status, _, err = run("--moe-stream")
        assert status == 2
        assert "a cache of 0 MiB (auto: 1030 MiB available less 1031) is too small" in err

    @pytest.mark.parametrize(
        ("flag", "value"),
        [("--io-threads", "2"), ("--dense-weights", "warm"), ("--drop-cold-experts", "0.5")],
    )
    def test_options_of_streaming_without_it(self, run: Run, flag: str, value: str) -> None:
        """They would do nothing."""
        status, _, err = run(flag, value)
        assert status == 2
        assert err == f"bmoe: {flag} is about streamed experts: add --moe-stream\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--io-threads", "0"],
            ["--io-threads", "65"],
            ["--dense-weights", "anon"],
            ["--drop-cold-experts", "0"],
            ["--drop-cold-experts", "1.5"],
            ["--drop-cold-experts", "half"],
        ],
    )
    def test_values_out_of_range(self, run: Run, arguments: list[str]) -> None:
        """In one line."""
        status, _, err = run("--moe-stream", *arguments)
        assert status == 2
        assert arguments[0] in err
        assert len(err.splitlines()) == 1

    def test_a_dense_model(
        self, model_paths: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """There is nothing to stream."""
        assert main(["-m", str(model_paths["dense"]), "-p", "x", "--moe-stream"]) == 2
        assert "no routed experts to stream: leave --moe-stream out" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "values", [{"n_lanes": 0}, {"n_lanes": 65}, {"dense_weights": "x"}, {"drop_below": 2.0}]
    )
    def test_options_in_python(self, values: dict[str, Any]) -> None:
        """The same bounds."""
        with pytest.raises(UsageError, match="and may be"):
            StreamOptions(**values)


def test_sizes() -> None:
    """A given one, one of bytes instead, and an automatic one that leaves room for the rest."""
    table = ExpertTable.read(demo_model())
    path = demo_model()
    assert StreamOptions(cache_mb=5).cache_size(path, table, None) == CacheSize(5)
    assert StreamOptions().cache_size(path, table, 3 * 2**20 + 1) == CacheSize(4)
    assert StreamOptions().cache_mb == module.AUTO


def test_the_whole_example_program_runs() -> None:
    """docs/examples/stream.py, as the how-to shows it."""
    program = Path(__file__).parents[2] / "docs" / "examples" / "stream.py"
    command = [sys.executable, str(program), str(demo_model()), "2"]

    def keep_to_one_core() -> None:
        # Threads of a model this small do little but wait for each other.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    done = subprocess.run(
        command, capture_output=True, text=True, check=True, preexec_fn=keep_to_one_core
    )
    assert "moe: streamed, a cache of 2 MiB holds " in done.stdout
