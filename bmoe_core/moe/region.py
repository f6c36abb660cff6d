"""The memory of one expert tensor, of which only the held experts take any.

As much address space as the tensor is long is reserved, so that every expert has the place where
llama.cpp looks for it, ``data + expert * nb[2]``. A page takes memory once it is read into, and
none any more once it is given back.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

from attrs import define, field

from bmoe_core.errors import StreamingUnsupportedError
from bmoe_core.moe.table import ExpertTensor, page_ceil, page_floor

# Python names the flag from 3.13 on; its value is that of Linux on every architecture but Alpha,
# MIPS, PowerPC and SPARC, where it has another meaning that does no harm here.
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


@define(eq=False)
class Region:
    """Address space for one expert tensor, laid out as the file is, page for page.

    Making one raises StreamingUnsupportedError where the system reserves none.

    Attributes:
        tensor: the tensor.
        view: its bytes and those that share its first and last page: position 0 is the start of
            the page of the file that the tensor begins in.
    """

    tensor: ExpertTensor
    view: memoryview = field(init=False)
    _memory: mmap.mmap = field(init=False)
    _start: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        place = self.tensor.place
        self._start = page_floor(place.offset)
        length = page_ceil(place.offset + place.n_bytes) - self._start
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._memory = mmap.mmap(-1, length, flags=flags)
        except OSError as error:
            raise StreamingUnsupportedError(
                f"the system reserves no {length // 2**20} MiB of addresses for experts that are "
                f"not in memory ({error.strerror}): allow it (ulimit -v unlimited, "
                "vm.overcommit_memory not 2), or leave --moe-stream out"
            ) from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A huge page would take the memory of experts that are not held.
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.view = memoryview(self._memory)

    @property
    def address(self) -> int:
        """Where the tensor's first byte is in memory."""
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        return base + self.tensor.place.offset - self._start

    def window(self, start: int, end: int) -> memoryview:
        """The memory for the bytes of the file from ``start`` to ``end``."""
        return self.view[start - self._start : end - self._start]

    def give_back(self, expert: int, is_held: Callable[[int], bool]) -> None:
        """Return the pages of an expert to the kernel, but for those that a held one shares."""
        start, end = self.tensor.span(expert)
        first, last = page_floor(start), page_ceil(end)
        if self._shares(first, start, is_held):
            first = page_ceil(start)
        if self._shares(end, last, is_held):
            last = page_floor(end)
        if first < last:
            self._memory.madvise(mmap.MADV_DONTNEED, first - self._start, last - first)

    def _shares(self, start: int, end: int, is_held: Callable[[int], bool]) -> bool:
        """Whether a held expert has bytes from ``start`` to ``end`` in the file."""
        offset, size = self.tensor.place.offset, self.tensor.slice_bytes
        begin = max(0, (start - offset) // size)
        stop = min(self.tensor.n_expert, -(-(end - offset) // size))
        return any(is_held(expert) for expert in range(begin, stop))

    def close(self) -> None:
        """Return all of it; reads as zeros from here on."""
        # Not unmapped: an error that is on its way may still hold a window.
        self._memory.madvise(mmap.MADV_DONTNEED)
