"""Finding what llama.cpp has mapped, by the file and, where that is not shown, by its name."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from bmoe_core.moe import mapping
from bmoe_core.moe.mapping import Mapped, find_mappings
from bmoe_core.moe.table import PAGE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a model.gguf"
    path.write_bytes(b"x" * 3 * PAGE)
    return path


def test_the_file_is_found_also_when_its_name_has_gone_to_another(path: Path) -> None:
    """It is the one that was opened, and it is what is mapped."""
    status = path.stat()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        (mapped,) = find_mappings(path, status.st_dev, status.st_ino)
        assert (mapped.offset, mapped.n_bytes) == (0, 3 * PAGE)
        assert mapped.address_of(PAGE + 5) == mapped.address + PAGE + 5
        assert mapped.address_of(3 * PAGE) is None
        other = path.with_name("other")
        other.write_bytes(b"y" * 3 * PAGE)
        other.replace(path)
        assert find_mappings(path, status.st_dev, status.st_ino) == [mapped]
        new = path.stat()
        assert find_mappings(path, new.st_dev, new.st_ino) == []
        path.unlink()
        assert find_mappings(path, status.st_dev, status.st_ino) == [mapped]
        assert data[0] == ord("x")


@pytest.mark.parametrize(
    ("name", "inode_is_ours", "is_found"),
    [("{path}", True, True), ("{path} (deleted)", True, False), ("{path}", False, False)],
)
def test_where_mappings_show_another_device(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    inode_is_ours: bool,
    is_found: bool,
) -> None:
    """As on btrfs: the name does, if it still is the file's that was opened."""
    shown = tmp_path / "maps"
    shown.write_text(
        "7f0000000000-7f0000001000 r--p 00002000 00:7b 1 /some/other file\n"
        f"7f0000001000-7f0000004000 r--p 00001000 00:7b 12 {name.format(path=path)}\n"
        "7f0000004000-7f0000005000 rw-p 00000000 00:00 0 \n"
    )
    monkeypatch.setattr(mapping, "MAPS", shown)
    status = path.stat()
    inode = status.st_ino if inode_is_ours else status.st_ino + 1
    expected = [Mapped(0x7F0000001000, 0x1000, 0x3000)] if is_found else []
    assert find_mappings(path, status.st_dev, inode) == expected
