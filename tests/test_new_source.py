"""`bmoe new-source` writes a source that works, and refuses in a sentence what it cannot write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bmoe_core
from bmoe_core.cli import main
from bmoe_core.new_source import new_source_files

ECHO = Path(bmoe_core.__file__).parent.parent / "docs" / "examples" / "bmoe_echo"


def test_it_writes_the_example_of_the_docs() -> None:
    """docs/examples/bmoe_echo is what `bmoe new-source echo` writes, file for file."""
    written = new_source_files("echo")
    files = {path: (ECHO / path).read_text() for path in written}
    assert written == files


@pytest.mark.parametrize(
    ("name", "source_class"),
    [("echo", "EchoSource"), ("my-own2", "MyOwn2Source"), ("my_own", "MyOwnSource")],
)
def test_its_contract_is_kept_at_once(
    name: str,
    source_class: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The suite that it writes passes, without anything being installed."""
    monkeypatch.chdir(tmp_path)
    assert main(["new-source", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"bmoe-{name} is a draft source. Next:\n\n    cd bmoe-{name}\n")
    assert f'bmoe --draft-source {name} -p "' in out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path / f"bmoe-{name}",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout
    assert f"{source_class}: draft takes " in done.stdout


@pytest.mark.parametrize(
    "name",
    ["Echo", "1st", "a b", "a--b", "-x", "a/b", "../a", "a.b", "", "none", "é", "a\n"],
)
def test_names_that_cannot_be(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Small letters, digits, single - or _ between words; and not the name of plain decoding."""
    assert main(["new-source", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bmoe: a draft source cannot be called ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_one_name_is_asked_for(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No more and no less."""
    assert main(["new-source", *arguments]) == 2
    assert "give the new source one name" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """In a paragraph."""
    assert main(["new-source", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: bmoe new-source NAME\n")


def test_a_name_that_is_taken(
    install: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two distributions with one name exclude each other, so that is found out now."""
    install("taken", "S = 5")
    monkeypatch.chdir(tmp_path)
    assert main(["new-source", "taken"]) == 2
    assert "taken is the draft source of dist-taken, which is installed" in capsys.readouterr().err
    assert not (tmp_path / "bmoe-taken").exists()


def test_a_folder_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written over."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bmoe-mine").mkdir()
    (tmp_path / "bmoe-mine" / "bmoe_mine.py").write_text("mine")
    assert main(["new-source", "mine"]) == 2
    assert capsys.readouterr().err == (
        "bmoe: bmoe-mine is there already: choose another name, or move it away\n"
    )
    assert [path.name for path in (tmp_path / "bmoe-mine").iterdir()] == ["bmoe_mine.py"]


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's reason is passed on."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["new-source", "mine"]) == 2
    assert capsys.readouterr().err == (
        "bmoe: bmoe-mine cannot be written: No such file or directory\n"
    )
