"""Reads stretches of a model's files into memory, several at once, past the page cache if it can.

``preadv`` releases Python's lock, so the lanes really read at the same time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import define, field, frozen

from bmoe_core.errors import ExpertReadError, ModelFileError
from bmoe_core.moe.table import PAGE, page_floor

CHUNK = 4 * 2**20
"""Bytes of the longest single read: a run of experts is shared out between the lanes."""


@frozen
class Stretch:
    """Bytes to read; it begins and ends with a page, or ends behind the end of the file.

    Attributes:
        part: the file.
        offset: the first byte in it.
        end: the byte after the last one that must come; the file may end before the window does.
        window: memory for them and for the rest of the last page.
    """

    part: int
    offset: int
    end: int
    window: memoryview


@frozen
class _Identity:
    """What changes when a file is written to or exchanged."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> _Identity:
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@define(eq=False)
class Lanes:
    """Open files and the threads that read them.

    Attributes:
        paths: the files.
        n_lanes: reads at the same time.
        is_direct: whether the page cache is passed by (``O_DIRECT``).
    """

    paths: Sequence[Path]
    n_lanes: int
    is_direct: bool = field(default=False, init=False)
    _descriptors: list[int] = field(factory=list, init=False)
    _identities: list[_Identity] = field(factory=list, init=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        try:
            self._open()
        except OSError as error:
            self.close()
            raise ModelFileError(
                f"the model file {error.filename} cannot be read: {error.strerror}"
            ) from None
        if self.n_lanes > 1:
            # The calling thread is a lane too.
            self._pool = ThreadPoolExecutor(self.n_lanes - 1, thread_name_prefix="bmoe-lane")

    def _open(self) -> None:
        for path in self.paths:
            self._descriptors.append(os.open(path, os.O_RDONLY))
        self._identities = [_Identity.of(descriptor) for descriptor in self._descriptors]
        direct = [_open_direct(path) for path in self.paths]
        opened = [descriptor for descriptor in direct if descriptor is not None]
        self.is_direct = len(opened) == len(direct) and all(
            _reads_alike(a, b) for a, b in zip(opened, self._descriptors, strict=True)
        )
        unused = self._descriptors if self.is_direct else opened
        if self.is_direct:
            self._descriptors = opened
        for descriptor in unused:
            os.close(descriptor)

    def identity(self, part: int) -> tuple[int, int]:
        """Device and inode of a file, as ``stat`` has them."""
        identity = self._identities[part]
        return identity.device, identity.inode

    def read(self, stretches: Sequence[Stretch]) -> int:
        """Read all of them; how many bytes were read. All reading has ended when this returns.

        Raises:
            ExpertReadError: one could not be read, or its file has changed since it was opened.
        """
        pieces = [piece for stretch in stretches for piece in _split(stretch)]
        shares = [pieces[i :: self.n_lanes] for i in range(min(self.n_lanes, len(pieces)))]
        if not shares:
            return 0
        futures = [self._pool.submit(self._read_share, share) for share in shares[1:] if self._pool]
        try:
            n_bytes = self._read_share(shares[0])
        finally:
            # The memory is not to be written to behind the back of whoever reads it next.
            errors = [error for future in futures if (error := future.exception())]
        for error in errors:
            raise error
        for part in {stretch.part for stretch in stretches}:
            self._check_unchanged(part)
        return n_bytes + sum(future.result() for future in futures)

    def _read_share(self, pieces: Sequence[Stretch]) -> int:
        return sum(self._read_piece(piece) for piece in pieces)

    def _read_piece(self, piece: Stretch) -> int:
        descriptor, needed = self._descriptors[piece.part], piece.end - piece.offset
        done = 0
        while done < needed:
            try:
                n = os.preadv(descriptor, [piece.window[done:]], piece.offset + done)
            except OSError as error:
                raise self._failure(piece, f"failed: {error.strerror}") from error
            if done + n < needed:
                # Past the page cache the next read has to begin with a page.
                n = page_floor(n)
                if n == 0:
                    raise self._failure(piece, "came to the end of the file")
            done += n
        return done

    def _failure(self, piece: Stretch, what: str) -> ExpertReadError:
        return ExpertReadError(
            f"reading experts at byte {piece.offset} of {self.paths[piece.part]} {what}; the run "
            "ended there, since its answer would be wrong. Check the file and its disk"
        )

    def _check_unchanged(self, part: int) -> None:
        if _Identity.of(self._descriptors[part]) != self._identities[part]:
            raise ExpertReadError(
                f"{self.paths[part]} was changed while it was in use; the run ended there, since "
                "its answer would be a mixture of two models. Start it again"
            )

    def close(self) -> None:
        """End the threads and close the files. May repeat."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def _split(stretch: Stretch) -> list[Stretch]:
    """Pieces of at most :data:`CHUNK` bytes."""
    return [
        Stretch(
            stretch.part,
            stretch.offset + start,
            min(stretch.end, stretch.offset + start + CHUNK),
            stretch.window[start : start + CHUNK],
        )
        for start in range(0, stretch.end - stretch.offset, CHUNK)
    ]


def _open_direct(path: Path) -> int | None:
    """A descriptor that passes the page cache by, or None where the file system has none."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None


def _reads_alike(direct: int, buffered: int) -> bool:
    """Whether a page in the middle of a file reads the same both ways.

    A file system may take the flag and refuse the reads, or want other alignments.
    """
    offset = page_floor(os.fstat(buffered).st_size // 2)
    with mmap.mmap(-1, PAGE) as memory:
        try:
            n = os.preadv(direct, [memory], offset)
        except OSError:
            return False
        return memory[:n] == os.pread(buffered, PAGE, offset)
