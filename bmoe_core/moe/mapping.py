"""What llama.cpp has mapped of a model's files, and how to give the experts among it back.

llama.cpp maps a whole model, and on Linux asks the kernel to read all of it while it does
(``MAP_POPULATE`` in ``src/llama-mmap.cpp``). The pages of the experts are of no use here: they are
taken out of the process and out of the page cache. The other weights stay mapped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import frozen

from bmoe_core.moe.table import page_ceil, page_floor

MAPS = Path("/proc/self/maps")
_MADV_POPULATE_READ = 22
"""Since Linux 5.14; Python does not name it."""


@frozen
class Mapped:
    """A stretch of a file that is mapped.

    Attributes:
        address: where it is in memory.
        offset: where it begins in the file.
        n_bytes: its length.
    """

    address: int
    offset: int
    n_bytes: int

    def address_of(self, offset: int) -> int | None:
        """Where a byte of the file is in memory, or None where it is not in this stretch."""
        inside = offset - self.offset
        return self.address + inside if 0 <= inside < self.n_bytes else None


def find_mappings(path: Path, device: int, inode: int) -> list[Mapped]:
    """Every stretch of a file that this process has mapped.

    Args:
        path: the file.
        device: its device and ``inode``, as they were when it was opened.
    """
    # btrfs and overlayfs show another device there than stat does: then the name has to do, as long
    # as the file of that name is still the one that was opened.
    name = str(path.resolve()) if _is(path, device, inode) else None
    found = []
    for line in MAPS.read_text().splitlines():
        span, _, offset, numbers, node, *rest = line.split(maxsplit=5)
        major, minor = (int(number, 16) for number in numbers.split(":"))
        is_same = int(node) == inode and os.makedev(major, minor) == device
        if is_same or (name is not None and rest == [name]):
            start, end = (int(address, 16) for address in span.split("-"))
            found.append(Mapped(start, int(offset, 16), end - start))
    return found


def _is(path: Path, device: int, inode: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (device, inode)


def let_go(mappings: Sequence[Mapped], spans: Iterable[tuple[int, int]]) -> None:
    """Take whole pages between two bytes of the file out of the process."""
    for start, end in spans:
        _advise(mappings, page_ceil(start), page_floor(end), mmap.MADV_DONTNEED)


def warm(mappings: Sequence[Mapped], spans: Iterable[tuple[int, int]]) -> None:
    """Have the kernel read the pages between two bytes of the file, where it knows how."""
    for start, end in spans:
        _advise(mappings, page_floor(start), page_ceil(end), _MADV_POPULATE_READ)


def drop_from_page_cache(path: Path, spans: Iterable[tuple[int, int]]) -> None:
    """Have the kernel forget pages that no process has mapped any more."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for start, end in spans:
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _advise(mappings: Sequence[Mapped], start: int, end: int, advice: int) -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for mapped in mappings:
        first = max(start, mapped.offset)
        last = min(end, mapped.offset + mapped.n_bytes)
        if first < last:
            # Advice that an older kernel does not know is refused, and nothing is lost.
            madvise(mapped.address + first - mapped.offset, last - first, advice)
