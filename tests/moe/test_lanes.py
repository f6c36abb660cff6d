"""Reading stretches of files, and what can go wrong with it."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bmoe_core.errors import ExpertReadError, ModelFileError
from bmoe_core.moe import lanes as module
from bmoe_core.moe.lanes import CHUNK, Lanes, Stretch
from bmoe_core.moe.table import PAGE, page_ceil


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Random bytes that end within a page."""
    path = tmp_path / "data"
    path.write_bytes(random.Random(0).randbytes(2 * CHUNK + 3 * PAGE + 100))
    return path


def stretch(offset: int, end: int, part: int = 0) -> Stretch:
    memory = mmap.mmap(-1, max(PAGE, page_ceil(end) - offset))
    return Stretch(part, offset, end, memoryview(memory))


@pytest.mark.parametrize("n_lanes", [1, 2, 5])
@pytest.mark.parametrize("direct", [True, False])
def test_what_is_read_is_what_is_in_the_file(
    path: Path, n_lanes: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long and short stretches, the last one to the end of the file, in any number of lanes."""
    if not direct:
        monkeypatch.setattr(module, "_open_direct", lambda path: None)
    data = path.read_bytes()
    stretches = [
        stretch(0, 10),
        stretch(PAGE, 3 * PAGE),
        stretch(2 * PAGE, 2 * CHUNK + 17),
        stretch(2 * CHUNK + 2 * PAGE, len(data)),
    ]
    lanes = Lanes([path], n_lanes)
    assert lanes.is_direct or not direct or not can_be_direct(path)
    n_bytes = lanes.read(stretches)
    for one in stretches:
        assert bytes(one.window[: one.end - one.offset]) == data[one.offset : one.end]
    assert n_bytes >= sum(one.end - one.offset for one in stretches)
    assert lanes.read([]) == 0
    lanes.close()
    lanes.close()


def can_be_direct(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(-1, PAGE) as memory:
            os.preadv(descriptor, [memory], 0)
        os.close(descriptor)
    except OSError:
        return False
    return True


class TestDirect:
    def test_a_file_system_that_has_none(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As tmpfs was for long: the page cache is used."""
        real = os.open

        def refuse(path: Any, flags: int, *rest: Any) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no")
            return real(path, flags, *rest)

        monkeypatch.setattr(os, "open", refuse)
        lanes = Lanes([path], 2)
        assert not lanes.is_direct
        lanes.close()

    @pytest.mark.parametrize("answer", ["refused", "other bytes"])
    def test_one_that_takes_the_flag_and_does_not_mean_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
    ) -> None:
        """What it reads is compared once."""

        def lie(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
            if answer == "refused":
                raise OSError(errno.EINVAL, "no")
            buffers[0][:4] = b"lies"
            return PAGE

        monkeypatch.setattr(os, "preadv", lie)
        lanes = Lanes([path], 2)
        assert not lanes.is_direct
        lanes.close()


class TestFailures:
    @pytest.mark.parametrize("n_lanes", [1, 3])
    def test_an_error_of_the_disk(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, n_lanes: int
    ) -> None:
        """Whichever lane meets it, and what it was."""
        lanes = Lanes([path], n_lanes)
        real = os.preadv

        def fail(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
            if offset == 2 * CHUNK:
                raise OSError(errno.EIO, "Input/output error")
            return real(descriptor, buffers, offset)

        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(ExpertReadError, match=f"byte {2 * CHUNK} .*failed: Input/output error"):
            lanes.read([stretch(0, 2 * CHUNK + PAGE)])
        lanes.close()

    def test_reads_that_come_short_are_continued(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kernel may read less than it was asked for."""
        lanes = Lanes([path], 1)
        real = os.preadv
        monkeypatch.setattr(
            os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][: 2 * PAGE]], offset)
        )
        one = stretch(PAGE, 8 * PAGE)
        lanes.read([one])
        assert bytes(one.window) == path.read_bytes()[PAGE : 8 * PAGE]
        lanes.close()

    def test_a_file_that_was_cut(self, path: Path) -> None:
        """Half a slice is not taken for a slice."""
        lanes = Lanes([path], 2)
        os.truncate(path, CHUNK)
        with pytest.raises(ExpertReadError, match="came to the end of the file"):
            lanes.read([stretch(0, 2 * CHUNK)])
        lanes.close()

    def test_a_file_that_was_written_to(self, path: Path) -> None:
        """Its new bytes belong to another model, however alike."""
        lanes = Lanes([path], 2)
        lanes.read([stretch(0, PAGE)])
        with path.open("r+b") as file:
            file.write(b"x")
        os.utime(path, ns=(0, 0))
        with pytest.raises(ExpertReadError, match="was changed while it was in use"):
            lanes.read([stretch(0, PAGE)])
        lanes.close()

    def test_a_file_that_was_replaced_goes_on(self, path: Path, tmp_path: Path) -> None:
        """The old one is still there for those who have it open, llama.cpp among them."""
        lanes = Lanes([path], 2)
        old = path.read_bytes()
        (tmp_path / "new").write_bytes(b"\0" * len(old))
        (tmp_path / "new").replace(path)
        one = stretch(0, PAGE)
        lanes.read([one])
        assert bytes(one.window) == old[:PAGE]
        lanes.close()

    def test_a_missing_file(self, tmp_path: Path) -> None:
        """A part that went between the header and the opening."""
        with pytest.raises(ModelFileError, match="cannot be read: No such file"):
            Lanes([tmp_path / "gone"], 2)
