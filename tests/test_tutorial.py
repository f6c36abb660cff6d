"""The tutorial for a first source, followed word for word in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bmoe_core

DOCS = Path(bmoe_core.__file__).parent.parent / "docs"
TUTORIAL = (DOCS / "tutorial" / "first-source.md").read_text()
EXAMPLE = DOCS / "examples" / "bmoe_echo"
FILES = dict(
    re.findall(r"^Write `(.+?)`:\n\n```\w+\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)
)
COMMANDS = "".join(re.findall(r"^```sh\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE))

# The environment of the tutorial, and no network: what is installed goes to a folder of its own.
PROGRAMS = {
    "bmoe": '"{python}" -m bmoe_core "$@"',
    "pytest": '"{python}" -m pytest -p no:cacheprovider "$@"',
    "pip": '"{python}" -m pip install -q --no-deps --no-build-isolation --target "{site}" .',
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables of a shell in which bmoe, pytest and pip are the ones above."""
    folder, site = tmp_path / "bin", tmp_path / "site"
    folder.mkdir()
    for name, command in PROGRAMS.items():
        program = folder / name
        program.write_text("#!/bin/sh\nexec " + command.format(python=sys.executable, site=site))
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(
            # Without the folders that pytest has put there: the example has to be installed.
            [*(path for path in sys.path if not path.startswith(str(DOCS))), str(site)]
        ),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What a line of shell prints."""
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def test_its_files_are_the_example_s() -> None:
    """docs/examples/bmoe_echo, file for file."""
    assert {path: (EXAMPLE / path).read_text() for path in FILES} == FILES
    assert list(FILES) == ["bmoe_echo.py", "pyproject.toml", "tests/test_contract.py"]


def test_word_for_word(tmp_path: Path, environment: dict[str, str]) -> None:
    """Its commands, in its order, bring what it says that they bring."""
    make, enter, *rest = COMMANDS.splitlines()
    assert (make, enter) == ("mkdir bmoe-echo", "cd bmoe-echo")
    folder = tmp_path / "bmoe-echo"
    run(make, tmp_path, environment)
    for path, text in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)

    install, sources, test, *runs = rest
    assert install == "pip install -e '.[dev]'"
    run(install, folder, environment)
    listed = run(sources, folder, environment)
    for line in re.findall(r"^```\n(echo  \(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE):
        assert line in listed

    assert re.search(r"\b17 passed", run(test, folder, environment))
    broken = FILES["bmoe_echo.py"].replace("* min(self.times, n_max)", "* 4")
    assert broken != FILES["bmoe_echo.py"]
    (folder / "bmoe_echo.py").write_text(broken)
    failures = run(f"{test} || true", folder, environment)
    (message,) = re.findall(
        r"^```\n(EchoSource breaks .*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE
    )
    for line in message.splitlines():
        assert line in failures
    (folder / "bmoe_echo.py").write_text(FILES["bmoe_echo.py"])

    twice, thrice = (run(line, folder, environment) for line in runs)
    (report,) = re.findall(r"^```\n(echo: .*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)
    assert report in twice
    assert "4.00 tokens per verify decode" in thrice


def test_it_says_how_many_rules_there_are() -> None:
    """As many as the contract suite has tests."""
    from bmoe_core.testing import DraftSourceContract

    tests = [name for name in dir(DraftSourceContract) if name.startswith("test_")]
    assert f"`DraftSourceContract` brings {len(tests)} tests" in TUTORIAL
