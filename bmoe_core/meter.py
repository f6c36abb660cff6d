"""What a stretch of work costs: wall time, processor time over all threads, major page faults."""

from __future__ import annotations

import time

from attrs import frozen

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@frozen
class Cost:
    """What was spent; adds up.

    Attributes:
        wall_s: seconds on the clock.
        cpu_s: processor seconds of this process, user and system, over all threads.
        majflt: page faults of this process that had to read from a disk; None where the platform
            does not report them.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    majflt: int | None = None

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            majflt=_sum(self.majflt, other.majflt),
        )


NO_COST = Cost()


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


class Meter:
    """Adds up what is spent between each :meth:`start` and the :meth:`stop` after it."""

    def __init__(self) -> None:
        self._spent = NO_COST
        self._started = (0.0, 0.0, 0)

    def start(self) -> None:
        """Begin a stretch."""
        self._started = (time.perf_counter(), time.process_time(), _major_faults())

    def stop(self) -> None:
        """End the stretch."""
        wall_s, cpu_s, majflt = self._started
        self._spent += Cost(
            wall_s=time.perf_counter() - wall_s,
            cpu_s=time.process_time() - cpu_s,
            majflt=None if resource is None else _major_faults() - majflt,
        )

    def take(self) -> Cost:
        """What was spent since the last call of this."""
        spent, self._spent = self._spent, NO_COST
        return spent


def _major_faults() -> int:
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_majflt
