"""The command line as its user meets it: streams, records, refusals and exit statuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bmoe_core.cli import main

Install = Callable[..., None]
Run = Callable[..., "Result"]

PROMPT = "one two three one two three one two"


class Result:
    """What a command line ended with."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(model_paths: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs bmoe in this process on the tiny dense model."""

    def run_(*arguments: str, model: str | None = "dense", prompt: str | None = PROMPT) -> Result:
        given = list(arguments)
        if model is not None:
            given += ["-m", str(model_paths.get(model, model)), "-t", "1"]
        if prompt is not None:
            given += ["-p", prompt]
        status = main(given)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run_


class TestARun:
    def test_the_answer_alone_is_on_stdout(self, run: Run) -> None:
        """The report is on stderr, in three lines."""
        plain = run("-n", "40")
        arguments = ("--draft-source", "ngram", "--ngram-min-match", "1", "--gate", "off")
        drafted = run("-n", "40", *arguments)
        assert plain.status == drafted.status == 0
        assert plain.out == drafted.out != ""
        assert plain.err.startswith("none: 40 tokens in 40 plain decodes")
        lines = drafted.err.splitlines()
        assert [line.split(":")[0] for line in lines] == ["ngram"] * 3
        assert "for 40 tokens)" in lines[0]

    def test_the_switch_is_short_for_the_source(self, run: Run) -> None:
        """--ngram is --draft-source ngram, and both together are one."""
        assert run("--ngram", "-n", "5").err.startswith("ngram: ")
        assert run("--ngram", "--draft-source", "ngram", "-n", "5").status == 0

    def test_rollback_on_a_recurrent_model_is_accounted_for(self, run: Run) -> None:
        """The states kept for it are memory, and plain decoding keeps none."""
        drafted = run("--ngram", "-n", "5", "--gate", "off", model="hybrid-moe")
        assert "rollback: 0.01 MiB of saved recurrent states" in drafted.err
        assert "rollback" not in run("-n", "5", model="hybrid-moe").err
        assert "rollback" not in run("--ngram", "-n", "5").err

    def test_quiet_is_quiet(self, run: Run) -> None:
        """Nothing on stderr."""
        assert run("--quiet", "--ngram", "-n", "5").err == ""

    def test_a_prompt_from_a_file_or_from_stdin(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same text gives the same answer, whichever way it comes."""
        path = tmp_path / "prompt.txt"
        path.write_text(PROMPT)
        expected = run("-n", "10").out
        assert run("-n", "10", "-f", str(path), prompt=None).out == expected
        for arguments in ([], ["-f", "-"]):
            with path.open() as stdin:
                monkeypatch.setattr(sys, "stdin", stdin)
                assert run("-n", "10", *arguments, prompt=None).out == expected

    def test_control_tokens_of_a_prompt_are_parsed(self, run: Run, tmp_path: Path) -> None:
        """An end-of-text token written out is one token."""
        path = tmp_path / "run.json"
        run("-n", "1", "--json", str(path), prompt="ab<|endoftext|>c")
        assert json.loads(path.read_text())["n_prompt"] == 4

    def test_json_to_a_file(self, run: Run, tmp_path: Path) -> None:
        """The record agrees with the answer and with the report."""
        path = tmp_path / "run.json"
        result = run("-n", "30", "--ngram", "--ngram-min-match", "1", "--json", str(path))
        record = json.loads(path.read_text())
        assert record["text"] == result.out
        assert record["source"] == "ngram"
        assert record["n_prompt"] == len(PROMPT)
        assert record["n_generated"] == len(record["tokens"]) == 30
        assert record["n_generated"] == record["n_decodes"] + record["n_accepted"]
        assert f"{record['n_accepted']}/{record['n_drafted']} drafts accepted" in result.err
        assert record["finish_reason"] == "length"
        assert record["warnings"] == []
        assert record["wall_tok_s"] <= record["effective_tok_s"] <= record["reported_tok_s"]

    def test_a_record_is_replaced_not_spoilt(self, run: Run, tmp_path: Path) -> None:
        """A refused run leaves an old record as it was, and no new file."""
        old, new = tmp_path / "old.json", tmp_path / "new.json"
        old.write_text("x" * 10_000)
        for path in (old, new):
            assert run("-n", "2", "-c", "10", "--json", str(path)).status == 2
        assert old.read_text() == "x" * 10_000
        assert not new.exists()
        run("-n", "2", "--json", str(old))
        assert json.loads(old.read_text())["n_generated"] == 2

    def test_a_record_through_a_link(self, run: Run, tmp_path: Path) -> None:
        """The link stays, and the record is where it leads."""
        link, record = tmp_path / "link.json", tmp_path / "record.json"
        link.symlink_to(record)
        run("-n", "2", "--json", str(link))
        assert link.is_symlink()
        assert json.loads(record.read_text())["n_generated"] == 2

    def test_a_model_path_that_is_not_utf_8(
        self, run: Run, tmp_path: Path, model_paths: dict[str, Path]
    ) -> None:
        """The record escapes what cannot be written."""
        model = tmp_path / os.fsdecode(b"mod\xe9l.gguf")
        model.write_bytes(model_paths["dense"].read_bytes())
        record = tmp_path / "run.json"
        assert run("-n", "2", "--json", str(record), model=str(model)).status == 0
        assert json.loads(record.read_text())["model"] == str(model)

    def test_json_to_stdout(self, run: Run) -> None:
        """Then the text is a field, and stdout holds JSON alone."""
        result = run("-n", "10", "--json", "-")
        assert json.loads(result.out)["text"] == run("-n", "10").out

    def test_csv(self, run: Run, tmp_path: Path) -> None:
        """A preamble of what ran as resolved, a row a token, a summary."""
        path = tmp_path / "run.csv"
        path.write_text("old\n" * 500)
        options = ("--ngram", "--ngram-min-match", "2", "--draft", "3", "--gate", "off")
        result = run("-n", "20", *options, "--csv", str(path))
        lines = path.read_text().splitlines()
        facts = dict(line[2:].split("=", 1) for line in lines if line.startswith("# "))
        assert result.status == 0
        assert facts["architecture"] == "llama"
        assert facts["n_expert"] == "0"
        assert facts["n_threads"] == "1"
        assert facts["n_ctx"] == "1024"
        assert facts["spec"] == "ngram"
        assert facts["draft"] == "3"
        assert facts["gate"] == "off"
        assert facts["ngram.min_match"] == "2"
        assert facts["ngram.max_match"] == "12"
        assert sum(not line.startswith("#") for line in lines) == 1 + 20
        assert lines[-1].startswith("# summary tokens=20 ")

    def test_a_disk_that_is_full_costs_the_csv_alone(self, run: Run) -> None:
        """The answer is whole, and a warning says what is missing."""
        result = run("-n", "20", "--csv", "/dev/full")
        assert result.status == 0
        assert result.out == run("-n", "20").out
        assert "warning: the CSV file /dev/full could not be written beyond token 0" in result.err

    def test_a_csv_file_that_cannot_be_written_is_refused_first(
        self, run: Run, tmp_path: Path
    ) -> None:
        """Before the model is looked at; and so are two records in one file."""
        path = str(tmp_path / "none" / "run.csv")
        refused = run("--csv", path, model="no-such-model.gguf")
        assert refused.status == 2
        assert refused.err == f"bmoe: {path} cannot be written: No such file or directory\n"
        both = str(tmp_path / "both")
        refused = run("--csv", both, "--json", both)
        assert refused.status == 2
        assert "give them two files" in refused.err
        assert not Path(both).exists()

    def test_a_killed_run_leaves_a_readable_csv(
        self, model_paths: dict[str, Path], tmp_path: Path
    ) -> None:
        """Whole lines up to the last token."""
        path = tmp_path / "run.csv"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bmoe_core", "-m", str(model_paths["dense"]), "-t", "1"),
                *("-p", PROMPT, "-n", "900", "--csv", str(path)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        # At least a third as many tokens: a byte that is no UTF-8 is written as three.
        process.stdout.read(100)
        process.kill()
        process.communicate()
        text = path.read_text()
        rows = [line for line in text.splitlines() if not line.startswith("#")]
        assert text.endswith("\n")
        assert len(rows) >= 33
        assert {line.count(",") for line in rows} == {rows[0].count(",")}

    def test_routing_is_reported(self, run: Run, tmp_path: Path) -> None:
        """On stderr, in the record and in the CSV file."""
        record_path, csv_path = tmp_path / "run.json", tmp_path / "run.csv"
        arguments = ["-n", "10", "--ngram", "--ngram-min-match", "1", "--cache-mb", "1"]
        arguments += ["--json", str(record_path), "--csv", str(csv_path)]
        result = run(*arguments, model="moe")
        routing = json.loads(record_path.read_text())["routing"]
        assert "distinct experts a layer (of 4), verify widening ×" in result.err
        assert "moe: modelled, a cache of 1 MiB holds 100% of the expert bytes" in result.err
        assert routing["n_expert"] == 4
        assert routing["modelled_cache_mib"] == 1
        assert 1 <= routing["verify_widening"] <= 2
        rows = [x for x in csv_path.read_text().splitlines() if not x.startswith("#")]
        demanded = rows[0].split(",").index("demanded_bytes")
        total = sum(int(row.split(",")[demanded]) for row in rows[1:])
        assert total / 2**20 / 10 == pytest.approx(routing["demanded_mib_per_token"])

    def test_the_head_s_share_of_the_routing(self, run: Run) -> None:
        """For a source with decodes of its own."""
        result = run("-n", "10", "--mtp", "--routing", model="hybrid-moe")
        assert "was the head's own routing" in result.err
        assert "modelled" not in result.err

    def test_a_dense_model_has_no_routing(self, run: Run, tmp_path: Path) -> None:
        """Said in the report, null in the record."""
        path = tmp_path / "run.json"
        result = run("-n", "3", "--routing", "--cache-mb", "auto", "--json", str(path))
        assert result.err.splitlines()[-1] == "moe: no routed experts in this model"
        assert json.loads(path.read_text())["routing"] is None

    def test_without_routing_nothing_is_said_of_it(self, run: Run) -> None:
        """No line about experts."""
        assert "moe:" not in run("-n", "3", model="moe").err

    @pytest.mark.parametrize("size", ["0", "-1", "many", "1.5"])
    def test_a_cache_size_that_is_none(self, run: Run, size: str) -> None:
        """Refused with what may be given."""
        refused = run("--cache-mb", size)
        assert refused.status == 2
        assert "--cache-mb: takes auto or 1 to" in refused.err

    def test_a_context_beyond_the_training_is_warned_of(self, run: Run) -> None:
        """The run goes on, and both numbers are named."""
        result = run("-n", "2", "-c", "2048")
        assert result.status == 0
        assert "trained on 1024 positions" in result.err
        assert "2048" in result.err

    def test_the_context_may_end_the_run(self, run: Run) -> None:
        """-n is the most; the context may hold less."""
        result = run("-n", "500", "-c", "64", "--json", "-", "--ngram")
        record = json.loads(result.out)
        assert record["finish_reason"] == "context"
        assert record["n_prompt"] + record["n_generated"] == 64


class TestAnswers:
    def test_a_seed_draws_the_same_answer_with_drafts_and_without(self, run: Run) -> None:
        """And the record says which seed it was."""
        drawn = json.loads(run("-n", "30", "--temp", "0.9", "--json", "-").out)
        seed = str(drawn["sampling"]["seed"])
        again = run("-n", "30", "--temp", "0.9", "--seed", seed, "--ngram", "--json", "-")
        assert json.loads(again.out)["tokens"] == drawn["tokens"]
        assert json.loads(run("-n", "2", "--json", "-").out)["sampling"] is None

    def test_a_stop_string_ends_the_answer_before_it(self, run: Run, tmp_path: Path) -> None:
        """Text, tokens, counts and CSV file agree; the report counts what stayed."""
        whole = run("-n", "30").out
        # What is no UTF-8 was replaced in the text, and is not found in the bytes.
        (stop, *_) = re.findall("[ -~]{2}", whole[5:])
        path = tmp_path / "run.csv"
        result = run("-n", "30", "--ngram", "--stop", stop, "--json", "-", "--csv", str(path))
        record = json.loads(result.out)
        assert record["finish_reason"] == "stop"
        assert record["text"] == whole[: whole.index(stop)]
        assert record["n_generated"] == len(record["tokens"]) < 30
        assert f"# summary tokens={record['n_generated']} " in path.read_text()

    def test_a_grammar(self, run: Run, tmp_path: Path) -> None:
        """The answer matches it."""
        path = tmp_path / "abc.gbnf"
        path.write_text('root ::= "abc" [x-z] "\\n"')
        result = run("--grammar-file", str(path), "--ngram")
        assert result.out in ("abcx\n", "abcy\n", "abcz\n")


def lines_of(result: Result) -> list[str]:
    return result.err.splitlines()


class TestRefusals:
    """Each ends with exit status 2 and at most three plain lines, and prints no answer."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--draft", "0"], "--draft: takes 1 to 8 or auto, not '0'"),
            (["--draft", "9"], "--draft: takes 1 to 8 or auto, not '9'"),
            (["--draft", "three"], "--draft: takes 1 to 8 or auto, not 'three'"),
            (["--draft", "auto", "--gate", "off"], "--draft auto leaves the width to the gate"),
            (["--gate", "on"], "--gate: invalid choice: 'on' (choose from"),
            (["--temp", "-1"], "--temp: takes 0 to 1e+06, not '-1'"),
            (["--temp", "nan"], "--temp: takes 0 to 1e+06, not 'nan'"),
            (["--top-p", "1.5"], "--top-p: takes 0 to 1, not '1.5'"),
            (["--seed", "x"], "--seed: takes 0 to 4294967294, not 'x'"),
            (["--seed", "1"], "--seed has no effect where the likeliest token is always taken"),
            (["--temp", "0", "--top-k", "4"], "--top-k has no effect where the likeliest"),
            (["--stop", ""], "a stop string is empty"),
            (["--grammar-file", "/no/grammar"], "the grammar file /no/grammar cannot be read"),
            (["--grammar-file", "/dev/null"], "the grammar holds no rules"),
            (["--system", "x"], "--system goes with --chat, and with bmoe chat"),
            (["--chat"], "dense.gguf has no chat template, so it is no chat model: leave --chat"),
            (["-n", "0"], "takes a whole number of at least 1, not 0"),
            (["-t", "0"], "takes 1 to 512, not 0"),
            (["-c", "1"], "takes 2 to 16777216, not 1"),
            (["-c", "99999999999"], "takes 2 to 16777216, not 99999999999"),
            (["-t", "513"], "takes 1 to 512, not 513"),
            (["--draft-source", "ngarm"], "no draft source 'ngarm'. Did you mean ngram?"),
            (["--ngram", "--draft-source", "none"], "ngram and none were asked for"),
            (
                ["--ngram-min-match", "4"],
                "--ngram-min-match is an option of the draft source ngram",
            ),
            (["--ngram", "--ngram-min-match", "x"], "takes a whole number, not 'x'"),
            (["--ngram", "--ngram-min-match", "0"], "min_match (0) must be at least 1 and at most"),
            (["--ngram", "--ngram-min-match", "13"], "min_match (13) must be at least 1 and at"),
            (["--ngram", "--ngram-max-match", "65"], "max_match (65), which may be 64 at most"),
            (["--ngram", "--ngram-min-mach", "5"], "did you mean --ngram-min-match?"),
            (["--drafts", "3"], "unknown argument '--drafts'"),
            (["--dra", "3"], "unknown argument '--dra'"),
            (["stray"], "unknown argument 'stray'"),
            (["-f", "somewhere"], "argument -p/--prompt: not allowed with argument -f/--file"),
            (["--json", "/no/such/folder/x.json"], "x.json cannot be written: No such file"),
            (["--json", "x" * 5000], "cannot be written: File name too long"),
        ],
        ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
    )
    def test_arguments(self, run: Run, arguments: list[str], message: str) -> None:
        """The message names the mistake and the remedy."""
        self.check(run(*arguments), message)

    def test_model_files(self, run: Run, tmp_path: Path, model_paths: dict[str, Path]) -> None:
        """Missing, not GGUF, truncated."""
        self.check(run(model=str(tmp_path / "none.gguf")), "there is no model file")
        text = tmp_path / "text.gguf"
        text.write_text("hello")
        self.check(run(model=str(text)), "is not a GGUF file")
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(model_paths["dense"].read_bytes()[:50_000])
        self.check(run(model=str(cut)), "cannot be loaded")

    def test_prompts(self, run: Run, tmp_path: Path) -> None:
        """Empty, missing, a folder, not UTF-8, too long."""
        self.check(run(prompt=""), "the prompt is empty")
        empty = tmp_path / "empty.txt"
        empty.touch()
        self.check(run("-f", str(empty), prompt=None), "the prompt is empty")
        self.check(run("-f", str(tmp_path / "no.txt"), prompt=None), "No such file")
        self.check(run("-f", str(tmp_path), prompt=None), "Is a directory")
        latin = tmp_path / "latin.txt"
        latin.write_bytes(b"caf\xe9")
        self.check(run("-f", str(latin), prompt=None), "not UTF-8: the byte 0xe9 at offset 3")
        self.check(run(prompt=os.fsdecode(b"caf\xe9")), "is not UTF-8 text")
        self.check(run("-c", "20"), "has 35 tokens and the context holds 20")
        self.check(run("-c", "35"), "has 35 tokens and the context holds 35")

    def test_a_file_that_cannot_be_read(self, run: Run) -> None:
        """The system's reason is given; this one fails for root too."""
        self.check(run("-f", "/proc/self/mem", prompt=None), "/mem cannot be read: Input/output")

    def test_no_prompt_on_a_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """It does not wait for what nobody knows to type."""
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        self.check(run(prompt=None), "no prompt was given: add -p TEXT or -f FILE")

    def test_two_sources(self, run: Run, install: Install) -> None:
        """Both are named, whichever way they were asked for."""
        install("echo", ECHO)
        for arguments in (["--ngram", "--echo"], ["--draft-source", "ngram", "--echo"]):
            self.check(run(*arguments), "ngram and echo were asked for")

    def test_two_distributions_with_one_name(self, run: Run, install: Install) -> None:
        """Both are named."""
        install("echo", ECHO, distribution="one")
        install("echo", ECHO, distribution="two")
        self.check(run("--draft-source", "echo"), "claimed by one and two")

    def test_a_source_that_cannot_be_imported(self, run: Run, install: Install) -> None:
        """The reason is given."""
        install("broken", "import no_such_module_at_all")
        self.check(run("--broken"), "cannot be imported: ModuleNotFoundError")

    def test_an_option_of_another_source(self, run: Run, install: Install) -> None:
        """Not ignored, and its owner is named."""
        install("echo", ECHO)
        self.check(run("--echo", "--ngram-min-match", "4"), "of the draft source ngram, and echo w")

    def test_an_option_that_bmoe_has_already(self, run: Run, install: Install) -> None:
        """A source called draft whose field is source would take over --draft-source."""
        install("draft", ECHO.replace("times", "source"))
        self.check(run("--draft-source", "draft"), "which bmoe has already")

    def test_a_recurrent_model_that_cannot_go_back(self, run: Run) -> None:
        """The remedy works."""
        refused = run("--ngram", "--gate", "off", model="recurrent")
        self.check(refused, "run it with --gate cost")
        assert run("-n", "3", "--ngram", "--gate", "cost", model="recurrent").status == 0
        assert run("-n", "3", "--draft-source", "none", model="recurrent").status == 0

    def test_a_source_that_refuses_the_model(self, run: Run, install: Install) -> None:
        """Its own sentence is shown."""
        install(
            "headless",
            ECHO
            + """
        @hookimpl
        def open(self, target):
            from bmoe_core import SourceUnavailable
            raise SourceUnavailable("this model has no head: use --draft-source ngram")
""",
        )
        self.check(run("--headless"), "this model has no head: use --draft-source ngram")

    @staticmethod
    def check(result: Result, message: str) -> None:
        assert result.status == 2, result.err
        assert message in result.err
        assert result.err.startswith("bmoe: ")
        assert len(lines_of(result)) <= 3
        assert "Traceback" not in result.err
        assert result.out == ""


ECHO = """
    import attrs
    from bmoe_core import hookimpl

    @attrs.define(eq=False)
    class S:
        "Drafts the last token again."
        times: int = attrs.field(default=2, metadata={"help": "how often, 100% sure"})

        @hookimpl
        def draft(self, tokens, n_max):
            return [int(tokens[-1])] * min(self.times, n_max)
"""


class TestAFailingSource:
    CODE = ECHO.replace("return [", "return [10**6] + [")

    def test_the_answer_is_complete_and_the_report_says_so(
        self, run: Run, install: Install
    ) -> None:
        """Exit status 0, a warning, and the plain answer."""
        install("echo", self.CODE)
        result = run("-n", "20", "--echo", "--gate", "off")
        assert result.status == 0
        assert result.out == run("-n", "20").out
        assert "warning: echo: draft returned token 1000000, which is outside" in result.err
        assert "the source was switched off" in result.err

    def test_the_record_holds_the_warning(self, run: Run, install: Install) -> None:
        """Also where nobody reads stderr."""
        install("echo", self.CODE)
        record = json.loads(run("-n", "20", "--echo", "--gate", "off", "--json", "-").out)
        assert len(record["warnings"]) == 1
        assert "switched off" in record["warnings"][0]

    def test_strict_ends_the_run(self, run: Run, install: Install) -> None:
        """Exit status 1, and the reason last."""
        install("echo", self.CODE)
        result = run("-n", "20", "--echo", "--gate", "off", "--strict")
        assert result.status == 1
        assert lines_of(result)[-1].startswith("bmoe: echo: draft returned token 1000000")
        record = json.loads(
            run("-n", "20", "--echo", "--gate", "off", "--strict", "--json", "-").out
        )
        assert record["finish_reason"] == "failed"
        assert "draft returned token 1000000" in record["warnings"][0]

    def test_a_failing_close_costs_nothing(self, run: Run, install: Install) -> None:
        """The answer is there; the warning says what happened."""
        install(
            "echo",
            ECHO
            + """
        @hookimpl
        def close(self):
            raise SystemExit("stuck")
""",
        )
        result = run("-n", "5", "--echo")
        assert result.status == 0
        assert "warning: echo: close raised SystemExit: stuck" in result.err


class TestListings:
    def test_sources(self, run: Run, install: Install) -> None:
        """Name, distribution, version, one line, options; what is broken, with its reason."""
        install("echo", ECHO)
        install("broken", "import no_such_module_at_all")
        result = run("sources", model=None, prompt=None)
        assert result.status == 0
        assert "echo  (dist-echo 1.2)\n    Drafts the last token again.\n" in result.out
        assert "--echo-times N            how often, 100% sure (default 2)" in result.out
        assert "broken  (dist-broken 1.2)\n    broken: the draft source broken" in result.out
        assert "--ngram-min-match N" in result.out
        assert all(len(line) <= 80 for line in result.out.splitlines())

    def test_sources_takes_no_arguments(self, run: Run) -> None:
        """And says so."""
        result = run("sources", "all", model=None, prompt=None)
        assert (result.status, result.out) == (2, "")

    def test_help_shows_every_source_s_options(
        self, install: Install, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Grouped, within 80 columns, a broken plugin named and harmless."""
        install("echo", ECHO)
        install("broken", "import no_such_module_at_all")
        with pytest.raises(SystemExit) as exit_:
            main(["--help"])
        assert exit_.value.code == 0
        out = capsys.readouterr().out
        for text in (
            "draft source echo (dist-echo 1.2):",
            "--echo-times N",
            "draft source ngram (bmoe-ngram ",
            "--ngram-max-match N",
            "ModuleNotFoundError",
        ):
            assert text in out
        assert all(len(line) <= 80 for line in out.splitlines())

    def test_sources_that_would_share_switches_have_none(
        self, run: Run, install: Install, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Equal but for a hyphen, called as an option, with a percent sign: none hurts the rest."""
        for i, name in enumerate(("a-b", "a_b", "ngram-min-match", "per%cent")):
            install(name, ECHO, distribution=f"dist-{i}")
        assert run("-n", "3").status == 0
        assert run("-n", "3", "--ngram", "--ngram-min-match", "2").status == 0
        assert run("-n", "3", "--draft-source", "a_b").err.startswith("a_b: ")
        TestRefusals.check(run("--a-b"), "unknown argument '--a-b'")
        with pytest.raises(SystemExit):
            main(["--help"])
        assert "--per%cent" in capsys.readouterr().out

    def test_help_comes_before_everything_else(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Also beside a mistake, and for the listing."""
        with pytest.raises(SystemExit):
            main(["--draft", "99", "-h"])
        assert capsys.readouterr().out.startswith("usage: bmoe")
        assert run("sources", "--help", model=None, prompt=None).out.startswith("usage: bmoe sour")

    def test_a_source_named_like_a_core_option_has_no_switch(
        self, run: Run, install: Install
    ) -> None:
        """--draft stays what it is; the source is reached by its name."""
        install("draft", ECHO)
        assert run("--draft", "2", "-n", "3").err.startswith("none: ")
        assert run("--draft-source", "draft", "-n", "3").err.startswith("draft: ")


def bmoe(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """The installed command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "bmoe_core", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        **options,  # type: ignore[call-overload]
    )


class TestProcesses:
    def test_a_pipe_gets_the_answer_and_no_progress(self, model_paths: dict[str, Path]) -> None:
        """Neither escape sequences nor carriage returns reach a pipe."""
        process = bmoe("-m", str(model_paths["dense"]), "-t", "1", "-p", PROMPT, "-n", "8")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out
        assert err.count(b"\n") == 1
        assert b"\r" not in err
        assert b"\x1b" not in err

    def test_ctrl_c_keeps_what_was_generated(
        self, model_paths: dict[str, Path], tmp_path: Path
    ) -> None:
        """Exit status 130, the text so far, the report and the record."""
        record = tmp_path / "run.json"
        process = bmoe(
            *("-m", str(model_paths["dense"]), "-t", "1", "-p", PROMPT, "--ngram"),
            *("-c", "500000", "-n", "400000", "--json", str(record)),
        )
        assert process.stdout is not None
        first = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert b"drafts accepted" in err
        written = json.loads(record.read_text())
        assert written["finish_reason"] == "interrupted"
        assert written["text"].encode() == first + rest

    @pytest.mark.parametrize("how", ["time.sleep(0.01)", "pass"], ids=["asleep", "busy"])
    def test_ctrl_c_inside_a_source_that_hangs(
        self, how: str, model_paths: dict[str, Path], tmp_path: Path, install: Install
    ) -> None:
        """The run ends with its report, and the source and hook are named."""
        install(
            "stuck",
            f"""
            import pathlib, time
            from bmoe_core import hookimpl

            class S:
                @hookimpl
                def draft(self, tokens, n_max):
                    if len(tokens) == {len(PROMPT) + 4}:
                        time.sleep(1.1)
                        pathlib.Path({str(tmp_path / "hangs")!r}).touch()
                        while True:
                            {how}
            """,
        )
        process = bmoe(
            *("-m", str(model_paths["dense"]), "-t", "1", "-p", PROMPT, "--stuck"),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        deadline = time.monotonic() + 60
        while not (tmp_path / "hangs").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert out
        assert b"stuck: draft had been running for 1." in err
        assert b"when the run was interrupted" in err
        assert b"Traceback" not in err
        assert b"(3 decodes for 3 tokens)" in err

    def test_a_reader_that_leaves_ends_the_run_quietly(self, model_paths: dict[str, Path]) -> None:
        """`bmoe ... | head` shows no traceback."""
        process = bmoe(
            *("-m", str(model_paths["dense"]), "-t", "1", "-p", PROMPT),
            *("-c", "500000", "-n", "400000"),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(20)
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert b"Traceback" not in process.stderr.read()
        process.stderr.close()

    @pytest.mark.parametrize(
        ("redirection", "status", "message"),
        [
            ("> /dev/full", 1, "bmoe: the answer could not be written: No space left on device"),
            ("--json - > /dev/full", 1, "the answer could not be written: No space left"),
            ("--json /dev/full", 1, "could not be written to /dev/full: No space left on device"),
            ("<&-", 2, "bmoe: no prompt was given"),
            ("-p x 2>&-", 0, ""),
            ("-p x >&-", 0, "none: 4 tokens"),
        ],
    )
    def test_streams_that_are_full_or_closed(
        self, model_paths: dict[str, Path], redirection: str, status: int, message: str
    ) -> None:
        """A sentence and an exit status, and no traceback, whatever the shell did."""
        given = "" if redirection == "<&-" or redirection.startswith("-p") else "-p x"
        done = subprocess.run(
            f"{sys.executable} -m bmoe_core -m {model_paths['dense']} -t 1 -n 4 "
            f"{given} {redirection}",
            shell=True,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_terminal_without_unicode(self, model_paths: dict[str, Path]) -> None:
        """What cannot be shown is replaced, also the arrow of the report."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bmoe_core", "-m", str(model_paths["dense"])),
                *("-t", "1", "-p", "x", "-n", "20", "--ngram"),
            ],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
        )
        assert done.returncode == 0
        assert done.stdout.isascii()
        assert b"on top of decode ? " in done.stderr

    def test_a_terminal_sees_that_something_moves(self, model_paths: dict[str, Path]) -> None:
        """Loading and reading the prompt are shown on a terminal, and wiped before the answer."""
        import pty

        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bmoe_core", "-m", str(model_paths["dense"])),
                *("-t", "1", "-p", PROMPT * 20, "-n", "4"),
            ],
            stdout=subprocess.PIPE,
            stderr=follower,
        )
        process.communicate(timeout=60)
        os.close(follower)
        seen = b""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                chunk = os.read(leader, 4096)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
        os.close(leader)
        assert b"loading the model: " in seen
        report = seen.split(b"\r\x1b[K")[-1]
        assert report.startswith(b"none: 4 tokens")
