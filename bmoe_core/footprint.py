"""The memory of this process and of the machine, sampled now and then."""

from __future__ import annotations

import time
from typing import Any

import psutil
from attrs import define, frozen

SAMPLE_EVERY_S = 1.0
"""Seconds between samples: on a large model one sample may take milliseconds."""


@frozen
class Footprint:
    """Memory at one moment, in MiB; what the platform does not report is None.

    Attributes:
        rss_mib: resident memory of this process.
        rss_anon_mib: of it, what no file backs: caches, states, compute buffers.
        rss_file_mib: of it, what a file backs or several processes share: the mapped model.
        swap_mib: memory of this process that was swapped out.
        available_mib: memory that the machine could give out without swapping.
    """

    rss_mib: float
    rss_anon_mib: float | None
    rss_file_mib: float | None
    swap_mib: float | None
    available_mib: float

    @classmethod
    def now(cls) -> Footprint:
        """The memory at this moment."""
        info: Any = psutil.Process().memory_full_info()
        shared = getattr(info, "shared", None)
        return cls(
            rss_mib=info.rss / 2**20,
            rss_anon_mib=None if shared is None else (info.rss - shared) / 2**20,
            rss_file_mib=None if shared is None else shared / 2**20,
            swap_mib=info.swap / 2**20 if hasattr(info, "swap") else None,
            available_mib=psutil.virtual_memory().available / 2**20,
        )


@define
class FootprintSampler:
    """Samples at most once in :data:`SAMPLE_EVERY_S`."""

    _next_at: float = 0.0

    def sample(self) -> Footprint | None:
        """A new sample, or None where the last one is recent."""
        now = time.monotonic()
        if now < self._next_at:
            return None
        self._next_at = now + SAMPLE_EVERY_S
        return Footprint.now()
