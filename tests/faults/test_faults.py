"""Every bad input and fault: what is said, and the exit status. docs/reference/errors.md is this.

``python tests/faults/test_faults.py`` writes that page.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

import bmoe_core
from bmoe_core.cli import main

PAGE = Path(bmoe_core.__file__).parent.parent / "docs" / "reference" / "errors.md"


@frozen
class Fault:
    """One row: what is wrong, a command line that shows it, what is said last, the status."""

    what: str
    command: str
    says: str
    status: int = 2
    cause: str = ""


COMMAND_LINE = [
    Fault(
        "a number out of range",
        "bmoe --draft 9 -p x",
        "argument --draft: takes 1 to 8 or auto, not '9' (bmoe --help lists the options)",
    ),
    Fault(
        "no number",
        "bmoe -n many -p x",
        "argument -n/--n-predict: takes a whole number of at least 1, not 'many' "
        "(bmoe --help lists the options)",
    ),
    Fault(
        "too many threads",
        "bmoe -t 513 -p x",
        "argument -t/--threads: takes 1 to 512, not 513 (bmoe --help lists the options)",
    ),
    Fault(
        "an unknown option",
        "bmoe --drafts 3 -p x",
        "unknown argument '--drafts'; did you mean --draft? (bmoe --help lists the options)",
    ),
    Fault(
        "a setting of the sampler without effect",
        "bmoe --top-k 5 -p x",
        "--top-k has no effect where the likeliest token is always taken: add --temp 0.8, or "
        "another temperature",
    ),
    Fault(
        "an empty stop string",
        "bmoe -m model.gguf --stop '' -p x",
        "a stop string is empty, which would end every answer before it begins",
    ),
    Fault(
        "a system message without a chat",
        "bmoe -m model.gguf --system x -p x",
        "--system goes with --chat, and with bmoe chat",
    ),
    Fault(
        "a grammar file that is not there",
        "bmoe --grammar-file no.gbnf -p x",
        "the grammar file no.gbnf cannot be read: No such file or directory",
    ),
    Fault(
        "a grammar that is none",
        "bmoe -m model.gguf --grammar-file broken.gbnf -p x",
        "the grammar cannot be used: Undefined rule identifier 'missing'",
    ),
    Fault(
        "an option of a single answer in a chat",
        "bmoe chat --json run.json",
        "bmoe chat takes no --json: it asks for each question itself",
    ),
]
PROMPTS = [
    Fault("an empty prompt", "bmoe -p ''", "the prompt is empty: give some text to go on from"),
    Fault(
        "a prompt file that is not there",
        "bmoe -f no.txt",
        "the prompt file no.txt cannot be read: No such file or directory",
    ),
    Fault(
        "a prompt that is not UTF-8",
        "bmoe -f latin.txt",
        "the prompt file latin.txt is not UTF-8: the byte 0xe9 at offset 3 cannot be decoded; "
        "convert it to UTF-8 first",
    ),
    Fault(
        "a prompt that fills the context",
        "bmoe -m model.gguf -c 8 -p 12345678",
        "the prompt has 8 tokens and the context holds 8, which leaves no room for an answer: "
        "shorten the prompt, or raise the context size (-c)",
    ),
    Fault(
        "no stdin",
        "bmoe -m model.gguf <&-",
        "no prompt was given: add -p TEXT or -f FILE, or pipe text in",
    ),
]
MODELS = [
    Fault(
        "a model that is not there",
        "bmoe -m no.gguf -p x",
        "there is no model file no.gguf: check the path given to -m",
    ),
    Fault(
        "a file that is no model",
        "bmoe -m latin.txt -p x",
        "latin.txt is not a GGUF file: give a model in GGUF format, as llama.cpp uses",
    ),
    Fault(
        "a model cut short",
        "bmoe -m cut.gguf -p x",
        "cut.gguf cannot be loaded: error loading model: tensor 'output.weight' data is not "
        "within the file bounds, model is corrupted or incomplete. If the file was downloaded, "
        "check that it is complete",
    ),
    Fault(
        "a model that vanishes while it is loaded",
        "bmoe -m model.gguf -p x",
        "model.gguf cannot be loaded: failed to open GGUF file 'model.gguf' (No such file or "
        "directory). If the file was downloaded, check that it is complete",
        cause="vanish",
    ),
    Fault(
        "a context that does not fit into memory",
        "bmoe -m model.gguf -c 1000000 -p x",
        "a context of 1000000 positions needs 122 MiB for keys and values, and 64 MiB of memory "
        "are available: -c 471808 may fit",
        cause="little memory",
    ),
    Fault(
        "memory that llama.cpp cannot get",
        "bmoe -m model.gguf -c 1000000 -p x",
        "no context of 1000000 positions could be made: llama.cpp gave no reason. A smaller "
        "context (-c) needs less memory",
        cause="no memory",
    ),
    Fault(
        "a model without a chat template",
        "bmoe -m model.gguf --chat -p x",
        "model.gguf has no chat template, so it is no chat model: leave --chat away, or use a "
        "model that was trained to chat",
    ),
    Fault(
        "a recurrent model that cannot take a draft back",
        "bmoe -m recurrent.gguf --draft-source ngram -p x",
        "recurrent.gguf is a recurrent model whose state llama.cpp cannot take back, so a draft "
        "has to be decoded again where it is rejected: run it with --gate cost, or with "
        "--draft-source none",
    ),
]
SOURCES = [
    Fault(
        "no such source",
        "bmoe --draft-source ngarm -p x",
        "there is no draft source 'ngarm'. Did you mean ngram? (installed: mtp, ngram)",
    ),
    Fault(
        "two sources",
        "bmoe --ngram --mtp -p x",
        "one draft source at a time: ngram and mtp were asked for, and they exclude each other; "
        "choose one",
    ),
    Fault(
        "an option of another source",
        "bmoe --ngram-min-match 4 -p x",
        "--ngram-min-match is an option of the draft source ngram, and no draft source was chosen: "
        "add --draft-source ngram, or leave the option out",
    ),
    Fault(
        "a source that cannot draft for the model",
        "bmoe -m model.gguf --mtp -p x",
        "this model has no multi-token-prediction head (nextn block), so mtp cannot draft for it: "
        "use --draft-source ngram, which runs on any model",
    ),
]
OUTPUT = [
    Fault(
        "a record that cannot be written",
        "bmoe -m model.gguf -n 4 -p x --json no/run.json",
        "no/run.json cannot be written: No such file or directory",
    ),
    Fault(
        "one file for two records",
        "bmoe -m model.gguf -p x --json run --csv run",
        "--csv and --json both write to run: give them two files",
    ),
    Fault(
        "a full disk under --json",
        "bmoe -m model.gguf -n 4 -p x --json /dev/full",
        "the record could not be written to /dev/full: No space left on device; the answer above "
        "is complete",
        status=1,
    ),
    Fault(
        "a full disk under --csv",
        "bmoe -m model.gguf -n 4 -p x --quiet --csv /dev/full",
        "warning: the CSV file /dev/full could not be written beyond token 0: No space left on "
        "device; the run goes on without it",
        status=0,
    ),
    Fault(
        "a full disk under the answer",
        "bmoe -m model.gguf -n 4 -p x > /dev/full",
        "the answer could not be written: No space left on device",
        status=1,
    ),
    Fault(
        "a reader that leaves",
        "bmoe -m model.gguf -c 500000 -n 400000 -p x | head -c 9 > /dev/null",
        "warning: the model was trained on 1024 positions, and beyond them its answers get worse; "
        "the context has 500000 (-c)",
        status=141,
    ),
]
RUNS = [
    Fault(
        "a decode that fails",
        "bmoe -m model.gguf -n 9 -p x",
        "llama.cpp could not decode 1 tokens at position 3 of 1024: the computation failed",
        status=1,
        cause="decode fails",
    ),
    Fault(
        "a grammar that no token fits",
        "bmoe -m model.gguf --grammar-file wide.gbnf --temp 1 -p x",
        "the grammar allows no token of this model here: it may want a character that no token "
        "begins with",
        status=1,
        cause="all tokens impossible",
    ),
    Fault(
        "a source that fails",
        "bmoe -m model.gguf -n 4 --ngram --quiet -p x",
        "warning: ngram: draft raised RuntimeError: out of ideas; the source was switched off and "
        "the run went on with plain decodes",
        status=0,
        cause="source fails",
    ),
    Fault(
        "a source that fails under --strict",
        "bmoe -m model.gguf -n 4 --ngram --strict -p x",
        "ngram: draft raised RuntimeError: out of ideas",
        status=1,
        cause="source fails",
    ),
    Fault(
        "Ctrl-C before the answer",
        "bmoe -m model.gguf -p x",
        "interrupted",
        status=130,
        cause="SIGINT at load",
    ),
    Fault(
        "SIGTERM before the answer",
        "bmoe -m model.gguf -p x",
        "interrupted",
        status=143,
        cause="SIGTERM at load",
    ),
    Fault(
        "Ctrl-C within the answer",
        "bmoe -m model.gguf -n 9 -p x --quiet",
        "",
        status=130,
        cause="SIGINT at decode",
    ),
    Fault(
        "SIGTERM within the answer",
        "bmoe -m model.gguf -n 9 -p x --quiet",
        "",
        status=143,
        cause="SIGTERM at decode",
    ),
]
GROUPS = {
    "The command line": COMMAND_LINE,
    "The prompt": PROMPTS,
    "The model": MODELS,
    "The draft source": SOURCES,
    "What is written": OUTPUT,
    "A run that had begun": RUNS,
}


NOT_SURVIVED = """
## What no sentence comes of

The model's file is mapped into memory. Removing it during a run does no harm; a file that is
*shortened* during a run ends the process by SIGBUS (status 135), and memory that the system has not
left by SIGKILL (status 137). `--csv` leaves whole lines up to there.
"""


def page() -> str:
    """docs/reference/errors.md."""
    lines = [
        "# What can go wrong",
        "",
        "Every bad input and fault that the tests provoke, with what bmoe says last and its exit",
        "status; the tests write this page. On stderr the line begins with `bmoe: `. Where an",
        "answer had begun, what was generated is on stdout and in the records that were asked for.",
    ]
    for title, faults in GROUPS.items():
        lines += ["", f"## {title}", "", "| what | for example | what is said | status |"]
        lines.append("|---|---|---|---|")
        for fault in faults:
            command = fault.command.replace("|", "\\|")
            says = f"`{fault.says}`" if fault.says else "nothing more than the report"
            lines.append(f"| {fault.what} | `{command}` | {says} | {fault.status} |")
    return "\n".join(lines) + "\n" + NOT_SURVIVED


@pytest.fixture
def folder(model_paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the command lines."""
    monkeypatch.chdir(tmp_path)
    model = model_paths["dense"].read_bytes()
    Path("model.gguf").write_bytes(model)
    Path("cut.gguf").write_bytes(model[:50_000])
    Path("recurrent.gguf").write_bytes(model_paths["recurrent"].read_bytes())
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("broken.gbnf").write_text("root ::= missing")
    Path("wide.gbnf").write_text('root ::= "a"')
    return tmp_path


def provoke(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fault happen in a run of this process."""
    from bmoe_ngram import NgramSource
    from llama_cpp import llama_cpp

    from bmoe_core.target import capacity, model
    from bmoe_core.target.sampler import Sampler

    load, decode, calls = llama_cpp.llama_model_load_from_file, llama_cpp.llama_decode, []

    def fail(*_arguments: Any) -> None:
        raise RuntimeError("out of ideas")

    def failing_decode(*arguments: Any) -> int:
        calls.append(1)
        return -3 if len(calls) == 4 else int(decode(*arguments))

    def signalled_decode(*arguments: Any) -> int:
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), getattr(signal, cause.split()[0]))
        return int(decode(*arguments))

    def signalled_load(*arguments: Any) -> Any:
        os.kill(os.getpid(), getattr(signal, cause.split()[0]))
        return load(*arguments)

    def vanishing_load(*arguments: Any) -> Any:
        Path("model.gguf").unlink()
        return load(*arguments)

    def pick_nothing(sampler: Sampler, row: Any) -> int:
        return pick(sampler, row - float("inf"))

    pick = Sampler.pick
    patches: dict[str, tuple[object, str, Any]] = {
        "vanish": (llama_cpp, "llama_model_load_from_file", vanishing_load),
        "little memory": (capacity, "available_bytes", lambda: 64 * 2**20),
        "no memory": (llama_cpp, "llama_init_from_model", lambda *_arguments: None),
        "decode fails": (llama_cpp, "llama_decode", failing_decode),
        "all tokens impossible": (Sampler, "pick", pick_nothing),
        "source fails": (NgramSource, "_longest_match", fail),
        "SIGINT at load": (llama_cpp, "llama_model_load_from_file", signalled_load),
        "SIGTERM at load": (llama_cpp, "llama_model_load_from_file", signalled_load),
        "SIGINT at decode": (llama_cpp, "llama_decode", signalled_decode),
        "SIGTERM at decode": (llama_cpp, "llama_decode", signalled_decode),
    }
    assert model.llama_cpp is llama_cpp
    monkeypatch.setattr(*patches[cause])


FAULTS = [pytest.param(fault, id=fault.what) for group in GROUPS.values() for fault in group]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_and_a_status(
    fault: Fault,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exactly as the page has it, and never a traceback."""
    arguments = fault.command.removeprefix("bmoe ")
    if set("|<>") & set(arguments):
        done = subprocess.run(
            f"set -o pipefail; {sys.executable} -m bmoe_core -t 1 {arguments}"
            if not arguments.startswith("chat")
            else arguments,
            shell=True,
            executable="/bin/bash",
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        status, err = done.returncode, done.stderr
    else:
        if fault.cause:
            provoke(fault.cause, monkeypatch)
        status = main(shlex.split(arguments))
        err = capfd.readouterr().err
    lines = err.splitlines()
    assert "Traceback" not in err
    assert (lines[-1] if lines else "") == (f"bmoe: {fault.says}" if fault.says else "")
    assert status == fault.status
    assert len(lines) <= 4


def test_the_page_is_what_the_tests_know() -> None:
    """docs/reference/errors.md is written by this file."""
    assert PAGE.read_text() == page()


PHASES = ["begin", "observe", "draft", "decode", "prefill", "write"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupt_at_any_moment(
    name: str,
    phase: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No word is lost: what stands on stdout is what the record has, and its tokens make it."""
    interrupt_in(phase, getattr(signal, name), monkeypatch)
    status = main(
        [
            *("-m", "model.gguf", "-t", "1", "-n", "20", "-p", "one two one two", "--ngram"),
            *("--ngram-min-match", "1", "--json", "run.json", "--stop", "\1\1\1"),
        ]
    )
    captured = capsys.readouterr()
    record = json.loads(Path("run.json").read_text())
    assert status == {"SIGINT": 130, "SIGTERM": 143}[name]
    assert "Traceback" not in captured.err
    assert record["finish_reason"] == "interrupted"
    assert record["text"] == captured.out
    assert record["n_generated"] == len(record["tokens"])
    assert bytes(record["tokens"]).decode(errors="replace") == record["text"]
    assert (record["n_generated"] == 0) == (phase in ("begin", "prefill"))


def interrupt_in(phase: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal the third time that it comes to a place in the run."""
    from bmoe_ngram import NgramSource
    from llama_cpp import llama_cpp

    from bmoe_core import hookimpl
    from bmoe_core.console import TextStream

    calls: list[int] = []
    wanted = 1 if phase in ("begin", "prefill") else 3

    def struck(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == wanted:
                os.kill(os.getpid(), number)
            return function(*arguments, **named)

        return call

    decode = llama_cpp.llama_decode
    if phase in ("decode", "prefill"):
        monkeypatch.setattr(llama_cpp, "llama_decode", struck(decode))
    elif phase == "write":
        monkeypatch.setattr(TextStream, "write", struck(TextStream.write))
    elif phase == "draft":
        monkeypatch.setattr(NgramSource, "_longest_match", struck(NgramSource._longest_match))
    elif phase == "begin":
        strike = struck(lambda: None)
        monkeypatch.setattr(
            NgramSource, "begin", hookimpl(lambda self, prompt, n_past: strike()), raising=False
        )
    else:
        strike = struck(lambda: None)
        monkeypatch.setattr(
            NgramSource, "observe", hookimpl(lambda self, tokens, n_past: strike()), raising=False
        )


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress keeps within its columns, so that it can be wiped."""
    import io

    from bmoe_core.console import Progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Progress(stream, enabled=True).show("reading the prompt: 512 of 2048 tokens")
    assert stream.getvalue() == "\r\x1b[Kreading the prompt:"


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit, less what is used and cannot be given back."""
    from bmoe_core.target import capacity

    monkeypatch.setattr(capacity, "CGROUP", tmp_path)
    free = capacity.available_bytes()
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\nfile 200\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert capacity.available_bytes() == 1000 - 700 + 200
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.available_bytes() > free // 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Layers × heads × (key + value length) × 2 bytes.
        ("dense", 2 * 1 * (16 + 16) * 2),
        ("moe", 2 * 1 * (16 + 16) * 2),
        ("sliding-window", 6 * 1 * (16 + 16) * 2),
        # One of its two layers attends.
        ("hybrid-moe", 1 * 1 * (16 + 16) * 2),
        ("recurrent", 0),
    ],
)
def test_the_size_of_a_position(
    load: Callable[[str], bmoe_core.LlamaModel], kind: str, expected: int
) -> None:
    """As llama.cpp reports it for these models."""
    from llama_cpp import llama_cpp

    from bmoe_core.target.capacity import cache_bytes_per_position

    params = llama_cpp.llama_context_default_params()
    assert ctypes.sizeof(params) > 0
    assert cache_bytes_per_position(load(kind), params) == expected


if __name__ == "__main__":
    PAGE.write_text(page())
