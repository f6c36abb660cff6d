"""``bmoe bench`` ended by a signal, as a process of its own with a stand-in for llama-server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import define

FAKE_SERVER = """#!{python}
import http.server, json, os, sys, time
noted = open(os.environ["FAKE_NOTES"], "a", buffering=1)
port = int(sys.argv[sys.argv.index("--port") + 1])
hangs_at = os.environ.get("FAKE_HANGS_AT")
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments): pass
    def answer(self, what, value):
        if hangs_at == what:
            noted.write("hangs\\n")
            time.sleep(600)
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self): self.answer("start", {{"status": "ok"}})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("request", {{"timings": {{"predicted_n": 24, "predicted_ms": 500.0}}}})
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
N_CELLS = 6
"""Plain decoding twice, and the server plain and with three ways of speculating."""


@define
class Bench:
    """Starts benches whose record is also what they resume from, if there is one."""

    folder: Path
    model: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def read(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.record.read_text())
        return record

    def start(self, rounds: int, hangs_at: str = "") -> subprocess.Popen[str]:
        again = ["--resume", str(self.record)] if self.record.exists() else []
        self.notes.write_text("")
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "bmoe_core", "bench", "-m", str(self.model), "-t", "1"),
                *("--prompts", str(self.folder / "again.txt"), "-n", "24"),
                *("--repeat", str(rounds), "--sources", "none", "--gate", "off"),
                *("--llama-server", str(self.folder / "server")),
                *("--json", str(self.record), *again),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FAKE_NOTES": str(self.notes), "FAKE_HANGS_AT": hangs_at},
            # A shell's background job ignores Ctrl-C, and what it starts does too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def finish(self, rounds: int) -> None:
        process = self.start(rounds)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors

    def end_where_it_hangs(self, hangs_at: str, number: int) -> tuple[int, str, str]:
        """Send a signal while a server does not answer; status, stdout, stderr."""
        process = self.start(2, hangs_at)
        children: list[psutil.Process] = []
        try:
            deadline = time.monotonic() + 120
            while "hangs" not in self.notes.read_text():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            process.send_signal(number)
            out, errors = process.communicate(timeout=120)
        finally:
            process.kill()
            left = [child for child in children if child.is_running()]
            for child in left:
                child.kill()
        assert left == []
        return process.returncode, out, errors


@pytest.fixture
def bench(tmp_path: Path, model_paths: dict[str, Path]) -> Bench:
    """With the record of one finished round."""
    (tmp_path / "again.txt").write_text("again and again and again and again and ")
    server = tmp_path / "server"
    server.write_text(FAKE_SERVER.format(python=sys.executable))
    server.chmod(0o755)
    made = Bench(tmp_path, model_paths["dense"])
    made.finish(1)
    return made


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_within_a_request(bench: Bench, number: int, status: int) -> None:
    """What is finished is told and written, no server stays, and a later bench goes on."""
    before = bench.read()["runs"]
    ended, out, errors = bench.end_where_it_hangs("request", number)
    assert ended == status
    assert "Interrupted: the figures are of what was finished." in out
    assert errors == ""
    record = bench.read()
    assert record["interrupted"]
    assert [run["cell"] for run in record["runs"][N_CELLS:]] == ["none again"]
    bench.finish(2)
    resumed = bench.read()
    assert not resumed["interrupted"]
    assert resumed["runs"][:N_CELLS] == record["runs"][:N_CELLS] == before
    assert len(resumed["runs"]) == 2 * N_CELLS


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_while_a_server_starts(bench: Bench, number: int, status: int) -> None:
    """The server that nobody has heard of yet ends too, and earlier runs stay in the record."""
    before = bench.read()["runs"]
    ended, out, errors = bench.end_where_it_hangs("start", number)
    assert ended == status
    assert "Interrupted: the figures are of what was finished." in out
    assert errors == ""
    assert bench.read()["runs"] == before
