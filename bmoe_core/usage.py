"""What the process has used so far: processor time, page faults, memory."""

from __future__ import annotations

import psutil
from attrs import frozen

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@frozen
class Usage:
    """Totals of this process at one moment; what the platform does not report is None.

    Attributes:
        cpu_s: processor seconds, user and system, over all threads.
        majflt: page faults that had to read from a disk.
        rss_mib: resident memory in MiB.
    """

    cpu_s: float
    majflt: int | None
    rss_mib: float

    def since(self, before: Usage) -> Usage:
        """What was used since ``before``; the memory is that of this moment."""
        faults = (
            None if self.majflt is None or before.majflt is None else self.majflt - before.majflt
        )
        return Usage(cpu_s=self.cpu_s - before.cpu_s, majflt=faults, rss_mib=self.rss_mib)

    @classmethod
    def now(cls) -> Usage:
        """The totals at this moment."""
        process = psutil.Process()
        times = process.cpu_times()
        majflt = None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        return cls(
            cpu_s=times.user + times.system,
            majflt=majflt,
            rss_mib=process.memory_info().rss / 2**20,
        )
