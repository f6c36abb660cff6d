"""A short soak; the long one is `python tools/soak.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bmoe_core

ROOT = Path(bmoe_core.__file__).parent.parent


def test_a_short_soak() -> None:
    """Two thousand tokens in every way at random: no crash, and every answer as it should be."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "soak.py"), "--tokens", "2000", "--seed", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tokens, answers, checked, memory, _ = done.stdout.splitlines()
    assert int(tokens.split()[0]) >= 2000
    assert "stop" in answers
    assert int(checked.split()[0]) > 1000
    assert memory.startswith("anonymous memory: ")
