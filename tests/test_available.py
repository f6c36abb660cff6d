"""The memory that a process can still take, within its memory cgroups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from bmoe_core import available

MIB = 2**20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(available, "CGROUPS", tmp_path)
    monkeypatch.setattr(available, "OWN_CGROUPS", tmp_path / "self")
    return tmp_path


def group(folder: Path, limit_name: str, limit: str, usage_name: str, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_name).write_text(limit)
    (folder / usage_name).write_text(str(100 * MIB))
    (folder / "memory.stat").write_text(stat)


def test_version_2(groups: Path) -> None:
    """The limit less what is used, but for the pages of files; an ancestor's may be lower."""
    (groups / "self").write_text("0::/outer/inner\n")
    stat = f"anon {50 * MIB}\nactive_file {20 * MIB}\ninactive_file {30 * MIB}\n"
    group(groups / "outer/inner", "memory.max", "max\n", "memory.current", stat)
    assert available.available_bytes() == pytest.approx(psutil.virtual_memory().available, rel=0.1)
    group(groups / "outer", "memory.max", f"{300 * MIB}\n", "memory.current", stat)
    assert available.available_bytes() == 250 * MIB
    group(groups / "outer/inner", "memory.max", f"{120 * MIB}\n", "memory.current", stat)
    assert available.available_bytes() == 70 * MIB


def test_version_1(groups: Path) -> None:
    """Other names, and a line for each controller."""
    (groups / "self").write_text("5:devices:/x\n4:memory,other:/box\n0::/\n")
    stat = f"active_file 1\ntotal_active_file {5 * MIB}\ntotal_inactive_file {5 * MIB}\n"
    group(
        groups / "memory/box",
        "memory.limit_in_bytes",
        str(200 * MIB),
        "memory.usage_in_bytes",
        stat,
    )
    assert available.available_bytes() == 110 * MIB


def test_a_group_that_is_over_its_limit(groups: Path) -> None:
    """Nothing is left, not less than nothing."""
    (groups / "self").write_text("0::/a\n")
    group(groups / "a", "memory.max", str(MIB), "memory.current", "")
    assert available.available_bytes() == 0


def test_without_cgroups(groups: Path) -> None:
    """What the machine says."""
    assert 0 < available.available_bytes() <= psutil.virtual_memory().total
