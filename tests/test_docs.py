"""The documentation is held against the code: commands, hooks, keys, links and examples."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bmoe_core
from bmoe_core import DraftSource, Target, testing
from bmoe_core.arguments import parse
from bmoe_core.bench.plan import parse_bench
from bmoe_core.cli import main
from bmoe_core.footprint import Footprint
from bmoe_core.options import options_of
from bmoe_core.routing.tally import RoutingTally
from bmoe_core.telemetry import RunRecord, Summary
from bmoe_core.testing import DraftSourceContract

ROOT = Path(bmoe_core.__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    # Not the files that pytest leaves where the examples' own suites are run.
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if ".pytest_cache" not in page.parts),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
MODEL_IN_DOCS = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


COMMANDS = [
    pytest.param(line[2:], id=f"{page_id(page)}: {line[2:]}")
    for page in PAGES
    for block in blocks(page.read_text(), "console")
    for line in block.splitlines()
    if line.startswith("$ bmoe")
]


def test_there_are_commands_to_run() -> None:
    """The pattern that finds them still does."""
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_docs_run(
    command: str,
    chat_paths: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each `$ bmoe ...`, on a tiny model in the place of the real one."""
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    assert program == "bmoe"
    tiny = str(chat_paths["dense"])
    if MODEL_IN_DOCS not in arguments and arguments != ["sources"]:
        # The demo model, as it comes.
        assert main([*arguments, "-t", "1"]) == 0
        assert capsys.readouterr().out
        return
    arguments = [tiny if argument == MODEL_IN_DOCS else argument for argument in arguments]
    if arguments != ["sources"]:
        # Its vocabulary is bytes, so prompts are longer than the context it was trained for.
        arguments += ["-t", "1", "-c", "4096", "-n", "8"]
    assert main(arguments) == 0
    assert capsys.readouterr().out


def test_the_whole_example_program_runs(model_paths: dict[str, Path]) -> None:
    """docs/examples/generate.py, as the tutorial runs it."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "generate.py"), str(model_paths["dense"])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ngram: drafted on " in done.stdout


def test_the_readme_s_program_runs(
    model_paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python block of the README, with a model where it names one."""
    (block,) = blocks((ROOT / "README.md").read_text(), "python")
    exec(block.replace("model.gguf", str(model_paths["dense"])), {})
    assert "ngram: drafted on " in capsys.readouterr().out


def test_the_programs_of_the_how_tos_for_sources_run(
    monkeypatch: pytest.MonkeyPatch, model_paths: dict[str, Path]
) -> None:
    """The blocks that stand for themselves: a generation on a fake, and both adapters."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "bmoe_echo"))
    how_to = ROOT / "docs" / "how-to"
    *_, program = blocks((how_to / "test-a-source.md").read_text(), "python")
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    assert sum(step.n_accepted for step in namespace["steps"]) > 0
    forward, reverse = blocks((how_to / "use-with-llama-cpp-python.md").read_text(), "python")
    path = str(model_paths["dense"])
    exec(forward.replace('"model.gguf"', f'"{path}", verbose=False, n_ctx=256'), namespace)
    namespace["llama"].close()
    exec(reverse, namespace)
    assert namespace["source"].name == "lookup"


def test_every_rule_of_the_contract_suite_is_documented() -> None:
    """The table of the testing kit has each test, and no other."""
    text = (ROOT / "docs" / "reference" / "testing.md").read_text()
    documented = re.findall(r"^\| `(test_\w+)` \|", text, re.MULTILINE)
    assert sorted(documented) == [
        name for name in dir(DraftSourceContract) if name.startswith("test_")
    ]
    for name in testing.__all__:
        assert re.search(rf"`{name}\b", text)


def test_the_options_of_bmoe_suffix_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its README's table, with the defaults."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "bmoe_suffix"))
    from bmoe_suffix import SuffixSource

    text = (EXAMPLES / "bmoe_suffix" / "README.md").read_text()
    table = re.findall(r"^\| `(--[a-z-]+) \w` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    assert table == [
        (option.flag, option.help, str(option.default))
        for option in options_of("suffix", SuffixSource)
    ]


def test_every_hook_is_documented_with_its_signature() -> None:
    """The hook reference shows each hook as the contract defines it."""
    text = (ROOT / "docs" / "reference" / "hooks.md").read_text()
    hooks = [name for name in vars(DraftSource) if not name.startswith("_")]
    for name in hooks:
        arguments = ", ".join(list(inspect.signature(getattr(DraftSource, name)).parameters)[1:])
        assert f"`{name}({arguments})`" in text
    assert len(re.findall(r"^\| `\w+\(.*?\)` \|", text, re.MULTILINE)) == len(hooks)


def test_the_target_s_members_are_documented() -> None:
    """Those a source may use."""
    text = (ROOT / "docs" / "reference" / "hooks.md").read_text()
    loop_only = {"decode", "roll_back", "clear"}
    for name in vars(Target):
        if not name.startswith("_") and name not in loop_only:
            assert f"`{name}`" in text


def test_every_json_key_is_documented_in_order() -> None:
    """The reference's table and the record have the same keys."""
    record = RunRecord(
        source="",
        model="",
        n_prompt=0,
        summary=Summary(),
        wall_s=0.0,
        prefill_s=0.0,
        load_s=0.0,
        footprint=Footprint(0.0, None, None, None, 0.0),
        routing=RoutingTally({}).to_dict(0),
        gate=None,
        sampling=None,
        finish_reason="",
        warnings=[],
        tokens=[],
        text="",
    )
    text = (ROOT / "docs" / "reference" / "json-record.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert documented == list(record.to_dict())


def test_every_option_of_the_bench_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of its --help, and no other."""
    with pytest.raises(SystemExit):
        parse_bench(["--help"])
    options = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)) - {"--help"}
    text = (ROOT / "docs" / "reference" / "bench.md").read_text()
    table = set(re.findall(r"^\| `.*?(--[a-z][a-z-]*)", text, re.MULTILINE))
    assert table == options


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """The command-line reference has each core option of --help, and no other."""
    with pytest.raises(SystemExit):
        parse(["--help"])
    help_text = capsys.readouterr().out
    core = help_text.split("\ndraft source ")[0]
    options = set(re.findall(r"--[a-z][a-z-]*", core)) - {"--ngram", "--mtp"}
    text = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    table = set(re.findall(r"^\| .*?(--[a-z][a-z-]*)", text, re.MULTILINE))
    assert table == options


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_every_page_is_linked_from_the_readme() -> None:
    """Nothing is written for nobody to find."""
    linked = {
        (ROOT / link).resolve()
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    }
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} <= linked
