"""The machine while a run goes on: who else is busy, how warm it is, how fast it is clocked."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from attrs import define, frozen

OTHERS_LIMIT = 0.15
"""Processor cores that other programs may use before a run counts as contaminated."""

COOL_POLL_S = 1.0


@frozen
class Conditions:
    """The machine's state at one moment; what it does not report is None.

    Attributes:
        load_average: of the last minute, the bench's own load included.
        available_mib: memory that could be given out without swapping.
        cpu_mhz: the clock.
        temperature_c: the highest of its sensors.
        waited_s: how long was waited for it to cool down.
        gave_up_cooling: whether it was still too warm then.
    """

    load_average: float | None
    available_mib: float
    cpu_mhz: float | None
    temperature_c: float | None
    waited_s: float = 0.0
    gave_up_cooling: bool = False


def conditions_now(waited_s: float = 0.0, gave_up_cooling: bool = False) -> Conditions:
    """The state at this moment."""
    frequency = psutil.cpu_freq()
    return Conditions(
        load_average=psutil.getloadavg()[0] if hasattr(psutil, "getloadavg") else None,
        available_mib=round(psutil.virtual_memory().available / 2**20, 1),
        cpu_mhz=frequency.current if frequency else None,
        temperature_c=temperature(),
        waited_s=waited_s,
        gave_up_cooling=gave_up_cooling,
    )


def temperature() -> float | None:
    """The highest reading of the machine's sensors in °C, or None where it has none."""
    read: Callable[[], dict[str, Any]] | None = getattr(psutil, "sensors_temperatures", None)
    groups = {} if read is None else read()
    return max((entry.current for group in groups.values() for entry in group), default=None)


def cool_down(limit_c: float, most_s: float) -> Conditions:
    """Wait until the sensor is below a limit, ``most_s`` seconds at most; the state then."""
    started = time.monotonic()
    while True:
        waited = time.monotonic() - started
        reading = temperature()
        if reading is None or reading < limit_c or waited >= most_s:
            return conditions_now(round(waited, 1), reading is not None and reading >= limit_c)
        time.sleep(COOL_POLL_S)


@define
class OthersWatch:
    """Counts the processor time that programs other than ours use.

    What this process and those given in ``ours`` used is subtracted from what the machine did.
    What a hypervisor gave to others counts as theirs.
    """

    ours: Callable[[], Sequence[int]] = tuple
    _started_s: float = 0.0
    _machine_s: float = 0.0
    _ours_s: float = 0.0

    def start(self) -> None:
        """Begin to count."""
        self._started_s = time.monotonic()
        self._machine_s, self._ours_s = _busy_s(), self._used_s()

    def used(self) -> tuple[float, float]:
        """What others used since :meth:`start`: cores on the average, and seconds."""
        elapsed = time.monotonic() - self._started_s
        others = (_busy_s() - self._machine_s) - (self._used_s() - self._ours_s)
        seconds = max(0.0, others)
        return (seconds / elapsed if elapsed > 0 else 0.0), seconds

    def _used_s(self) -> float:
        total = 0.0
        for pid in (os.getpid(), *self.ours()):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system
        return total


def _busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(times.get(name, 0.0) for name in names))


def machine_facts() -> dict[str, Any]:
    """What the machine is, without its name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "python": platform.python_version(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
