"""``bmoe bench`` as its user meets it: tables, files, refusals, an interrupt."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from bmoe_core.bench import main as bench_main
from bmoe_core.bench import rig
from bmoe_core.bench.markdown import markdown
from bmoe_core.bench.plan import Plan, parse_bench, parse_sweep
from bmoe_core.bench.record import SCHEMA, to_dict
from bmoe_core.bench.report import Agreement, Report, agreement
from bmoe_core.bench.rig import Rig
from bmoe_core.bench.table import print_report
from bmoe_core.bench.words import closing, sentence
from bmoe_core.cli import main
from bmoe_core.errors import UsageError
from bmoe_core.gate import CostGate

GOLDEN = Path(__file__).parent / "golden"
RunBench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_bench(
    model_paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> RunBench:
    """Runs bmoe bench in this process on a tiny model and a short prompt."""
    prompt = tmp_path / "again.txt"
    prompt.write_text("again and again and again and again and ")

    def run(*arguments: str, model: str = "dense", prompts: str | None = None) -> Any:
        status = main(
            [
                *("bench", "-m", str(model_paths.get(model, model)), "-t", "1"),
                *("--prompts", prompts or str(prompt), "-n", "24", "--repeat", "2"),
                *("--gate", "off", *arguments),
            ]
        )
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


class TestOutputs:
    def test_every_file_is_written_and_agrees(self, run_bench: RunBench, tmp_path: Path) -> None:
        """The record follows its schema, the CSV has a row a run, the plots are pictures."""
        files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "md")}
        plots = tmp_path / "plots"
        status, out, _ = run_bench(
            *(f"--{name}={path}" for name, path in files.items()),
            *("--plot", str(plots), "--sources", "ngram,mtp", "--oracle", "--synthetic", "0.5"),
            *("--sweep", "ngram.min_match=1,2+draft=1", "--gate", "off,cost", "--hindsight"),
            model="hybrid-moe",
        )
        assert status == 0
        record = json.loads(files["json"].read_text())
        jsonschema.validate(record, json.loads(SCHEMA.read_text()))
        names = [cell["cell"] for cell in record["cells"]]
        assert names == [
            *("none", "ngram", "ngram gate", "ngram hindsight", "mtp", "mtp gate", "mtp hindsight"),
            *("ngram min_match=1 draft=1", "ngram min_match=2 draft=1"),
            *("oracle", "synthetic 0.5", "none again"),
        ]
        assert len(record["runs"]) == len(names) * 2
        assert len(files["csv"].read_text().splitlines()) == 1 + len(record["runs"])
        for name in ("oracle", "ngram hindsight", "mtp hindsight"):
            knowing = next(cell for cell in record["cells"] if cell["cell"] == name)
            assert knowing["acceptance"] in (1.0, None)
        oracle = next(cell for cell in record["cells"] if cell["cell"] == "oracle")
        assert oracle["coverage"] == 1.0
        assert oracle["share_of_ceiling"] == 1.0
        assert all(cell["demanded_mib_per_token"] > 0 for cell in record["cells"])
        for name in names:
            assert f"| {name} |" in files["md"].read_text()
            assert name[:14] in out
        for plot in ("rates", "break-even", "decodes"):
            assert (plots / f"{plot}.png").read_bytes().startswith(b"\x89PNG")

    def test_a_kept_gate_serves_all_timed_runs_of_its_cell(
        self, run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two rounds and the run for the counts: two generations with one gate, the others new."""
        gates: list[Any] = []

        class Counted(CostGate):
            n_generations = 0

            def begin(self) -> None:
                if not self.n_generations:
                    gates.append(self)
                self.n_generations += 1
                super().begin()

        monkeypatch.setattr(rig, "CostGate", Counted)
        status, out, _ = run_bench("--sources", "ngram", "--gate", "cost", "--keep-gate")
        assert status == 0
        assert "ngram gate kept" in out
        assert sorted(gate.n_generations for gate in gates) == [1, 1, 1, 1, 2]

    def test_a_source_that_refuses_the_model_is_named(self, run_bench: RunBench) -> None:
        """The others are measured."""
        status, out, _ = run_bench("--sources", "ngram,mtp")
        assert status == 0
        assert "mtp was left out: this model has no multi-token-prediction head" in " ".join(
            out.split()
        )
        assert "ngram" in out

    def test_lines_fit_into_80_columns(self, run_bench: RunBench) -> None:
        """On a pipe as on the narrowest usual terminal."""
        _, out, _ = run_bench("--oracle", model="moe")
        assert max(map(len, out.splitlines())) <= 80

    def test_an_interrupt_keeps_what_is_finished(
        self, run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record is written, and resumed from: the whole round is not run again."""
        path = tmp_path / "record.json"
        real, calls = Rig.run, 0

        def interrupt_at_fifth(rig: Rig, cell: Any, prompt: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt
            return real(rig, cell, prompt)

        monkeypatch.setattr(Rig, "run", interrupt_at_fifth)
        status, out, _ = run_bench("--sources", "ngram", "--json", str(path))
        assert status == 130
        assert "Interrupted" in out
        record = json.loads(path.read_text())
        jsonschema.validate(record, json.loads(SCHEMA.read_text()))
        assert record["interrupted"]
        assert len(record["runs"]) == 4
        monkeypatch.setattr(Rig, "run", real)
        again = tmp_path / "again.json"
        status, _, _ = run_bench("--sources", "ngram", "--json", str(again), "--resume", str(path))
        resumed = json.loads(again.read_text())
        assert status == 0
        assert not resumed["interrupted"]
        assert resumed["runs"][:3] == record["runs"][:3]
        assert len(resumed["runs"]) == 6

    def test_quick_runs_on_the_demo_model(self, tmp_path: Path) -> None:
        """As a new user would type it, in a process of its own."""
        path = tmp_path / "record.json"
        result = subprocess.run(
            [
                *(sys.executable, "-m", "bmoe_core", "bench", "--quick", "--sources", "ngram"),
                *("-n", "16", "-t", "1", "--json", str(path)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        record = json.loads(path.read_text())
        assert record["model"]["architecture"] == "qwen35moe"
        assert record["settings"]["rounds"] == 2
        assert [prompt["name"] for prompt in record["prompts"]] == ["prose", "copy"]

    def test_what_a_source_learned_does_not_help_it_in_the_next_run(
        self, run_bench: RunBench, tmp_path: Path, install: Callable[..., None]
    ) -> None:
        """One that would repeat the last answer never has one to repeat."""
        install(
            "memory",
            """
            from attrs import define, field
            from bmoe_core import hookimpl

            @define(eq=False)
            class S:
                seen: list = field(factory=list, init=False)
                n_begun: int = field(default=0, init=False)

                @hookimpl
                def begin(self, prompt, n_past):
                    self.n_begun += 1

                @hookimpl
                def observe(self, tokens, n_past):
                    if self.n_begun == 1:
                        self.seen += tokens.tolist()

                @hookimpl
                def draft(self, tokens, n_max):
                    return self.seen[len(tokens):][:n_max] if self.n_begun > 1 else None
            """,
        )
        path = tmp_path / "record.json"
        run_bench("--sources", "memory", "--json", str(path))
        runs = json.loads(path.read_text())["runs"]
        drafted = [run["n_drafted"] for run in runs if run["cell"] == "memory"]
        assert drafted == [0, 0]


class TestPeers:
    def test_llama_cpp_python_runs_beside(self, run_bench: RunBench, tmp_path: Path) -> None:
        """Plain and with its lookup at two widths, on the same tokens."""
        path = tmp_path / "record.json"
        status, _, _ = run_bench("--sources", "none", "--peers", "--json", str(path))
        cells = {cell["cell"]: cell for cell in json.loads(path.read_text())["cells"]}
        assert status == 0
        left_out = json.loads(path.read_text())["left_out"]
        for name in ("llama-cpp-python", "llama-cpp-python lookup 10", "llama-cpp-python lookup 3"):
            assert name in cells or "AMX" in left_out[name]

    def test_a_server_is_asked_over_http(self, run_bench: RunBench, tmp_path: Path) -> None:
        """A stand-in that speaks its protocol; its own timings are taken."""
        path = tmp_path / "record.json"
        server = tmp_path / "server"
        server.write_text(FAKE_SERVER.format(python=sys.executable))
        server.chmod(0o755)
        status, _, _ = run_bench(
            "--sources", "none", "--llama-server", str(server), "--json", str(path)
        )
        record = json.loads(path.read_text())
        cells = {cell["cell"]: cell for cell in record["cells"]}
        assert status == 0
        assert cells["llama-server"]["wall_tok_s"] == pytest.approx(48.0)
        assert cells["llama-server ngram-simple"]["acceptance"] == 0.5
        assert record["left_out"] == {
            "llama-server draft-mtp": "llama-server ended at once: error: no head in this model"
        }


FAKE_SERVER = """#!{python}
import http.server, json, sys
if "draft-mtp" in sys.argv:
    sys.exit("error: no head in this model")
drafts = "--spec-type" in sys.argv
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments): pass
    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self): self.answer({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["n_predict"] == 24 and isinstance(asked["prompt"][0], int)
        timings = {{"predicted_n": 24, "predicted_ms": 500.0}}
        if drafts: timings |= {{"draft_n": 10, "draft_n_accepted": 5}}
        self.answer({{"timings": timings}})
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--prompts", "nonsense"], "there is no prompt 'nonsense': give a file, or one of"),
            (["--draft", "9"], "--draft: takes 1 to 8, not '9'"),
            (["--sources", "nosuch"], "there is no draft source 'nosuch'"),
            (["--synthetic", "1.5"], "takes probabilities from 0 to 1"),
            (["--sweep", "ngram"], "--sweep takes SOURCE.OPTION=VALUE,VALUE"),
            (["--sweep", "ngram.depth=3"], "ngram has no option 'depth' to sweep; it has draft,"),
            (["--sweep", "ngram.min_match=x"], "takes a whole number, not 'x'"),
            (["--cool", "warm"], "takes °C or °C:SECONDS"),
            (["--gate", "maybe"], "--gate: takes off and cost, not 'maybe'"),
            (["--oracle", "0"], "--oracle: takes 1 to 64, not '0'"),
            (["--llama-server", "/nowhere"], "there is no program /nowhere"),
            (["--resume", "/nowhere"], "is no record of a bench"),
            (["--json", "/nowhere/x.json"], "/nowhere/x.json cannot be written"),
            (["--bogus"], "unrecognized arguments: --bogus"),
        ],
    )
    def test_what_cannot_be_run_is_refused(
        self, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """In a line, before the model is looked at."""
        assert main(["bench", "-m", "no-such-model.gguf", *arguments]) == 2
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.err.count("\n") <= 3
        assert captured.out == ""

    def test_a_cool_down_without_a_sensor_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would wait for nothing."""
        monkeypatch.setattr(bench_main, "temperature", lambda: None)
        with pytest.raises(UsageError, match="reports no temperature"):
            bench_main.bench(["--cool", "40"])

    def test_without_the_extra_its_name_is_given(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And nothing else fails."""
        monkeypatch.setattr("bmoe_core.cli.find_spec", lambda name: None)
        assert main(["bench"]) == 2
        assert "pip install 'bmoe-core[bench]'" in capsys.readouterr().err

    def test_a_record_of_other_settings_is_not_resumed(
        self, run_bench: RunBench, tmp_path: Path
    ) -> None:
        """Its figures would not be of the same thing."""
        path = tmp_path / "record.json"
        run_bench("--sources", "none", "--json", str(path))
        status, _, err = run_bench("--resume", str(path), "--draft", "2")
        assert status == 2
        assert "was made with" in err


def test_a_sweep_may_fix_another_option() -> None:
    """And the width is an option of every source."""
    cells = parse_sweep("ngram.min_match=3,5+draft=1", 3)
    assert [(cell.draft, dict(cell.options)) for cell in cells] == [
        (1, {"min_match": 3}),
        (1, {"min_match": 5}),
    ]
    assert [cell.draft for cell in parse_sweep("ngram.draft=1,8", 3)] == [1, 8]
    assert [(cell.gated, cell.draft) for cell in parse_sweep("ngram.gate=off,cost", 3)] == [
        (False, 3),
        (True, 64),
    ]


def test_quick_gives_way_to_what_was_asked_for() -> None:
    """Its numbers are defaults."""
    plan = parse_bench(["--quick", "-n", "7"])
    assert (plan.n_predict, plan.rounds) == (7, 2)


class Gaps:
    """Says a gap of a quarter."""

    def top_two_gap(self, prompt: Any, tokens: Any) -> float:
        return 0.25


def test_agreement_is_up_to_the_first_difference() -> None:
    """Or to the shorter one's end."""
    prompt: Any = None
    assert agreement(prompt, [1, 2], [1, 2], Gaps()) == Agreement(equal=True)
    assert agreement(prompt, [1, 3], [1, 2], Gaps()) == Agreement(False, 1, 0.25)
    assert agreement(prompt, [1], [1, 2], Gaps()) == Agreement(False, 1, 0.25)
    assert agreement(prompt, [1, 3], [1, 2], None) == Agreement(False, 1, None)


class TestRendering:
    def test_the_table_is_as_it_was(self, made_up: Report) -> None:
        """Literally, in 80 columns, for made-up runs."""
        out = io.StringIO()
        print_report(made_up, Console(file=out, width=80, color_system=None, highlight=False))
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        assert "\n".join(lines) + "\n" == (GOLDEN / "table.txt").read_text()

    def test_the_markdown_is_as_it_was(self, made_up: Report) -> None:
        """Literally, for the same runs."""
        assert markdown(made_up) == (GOLDEN / "report.md").read_text()

    def test_the_record_of_it_follows_the_schema(self, made_up: Report) -> None:
        """With every kind of cell in it."""
        jsonschema.validate(to_dict(made_up), json.loads(SCHEMA.read_text()))

    def test_the_sentences(self, made_up: Report) -> None:
        """BigMoeOnEdge's own copying run, in words."""
        rows = {cell.name: (cell, figures) for cell, figures in made_up.of_prompt("copy")}
        assert sentence(*rows["ngram"]) == (
            "ngram loses 6% on copy: it drafted on 15% of its steps, and a drafted step brought "
            "2.31 tokens at 3.0 times the cost of a plain one."
        )
        assert closing(made_up, "copy") == sentence(*rows["ngram"])
        assert sentence(*rows["oracle"]).startswith("oracle gains 50% on copy")


def test_the_plan_keeps_the_baseline_first_and_last() -> None:
    """Whatever is asked for, and however often."""
    plan: Plan = parse_bench(["--sources", "none,ngram,ngram", "--sweep", "ngram.min_match=3"])
    assert [cell.name for cell in plan.cells] == [
        *("none", "ngram", "ngram gate", "ngram min_match=3", "none again")
    ]
