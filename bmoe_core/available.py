"""How much memory this process can still take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")

# (limit, usage, reclaimable file pages in memory.stat) of version 2 and of version 1.
_V2 = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = (
    *("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("total_active_file", "total_inactive_file"),
)


def available_bytes() -> int:
    """What the machine can give out without swapping, or less where a memory cgroup allows less.

    As ``MemAvailable`` does, the pages of files are counted as available, also within a cgroup.
    """
    return min([psutil.virtual_memory().available, *_cgroup_rooms()])


def _cgroup_rooms() -> Iterator[int]:
    """Bytes left in each memory cgroup that this process is in, its ancestors among them."""
    with contextlib.suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, names = (CGROUPS / "memory", _V1) if controllers else (CGROUPS, _V2)
            folder = root / path.lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(root):
                    yield from _room(group, names)


def _room(group: Path, names: tuple[str, str, tuple[str, str]]) -> Iterator[int]:
    limit_name, usage_name, files = names
    # A group has no such files at the root, and where the controller is off; "max" is no limit.
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / limit_name).read_text())
        usage = int((group / usage_name).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield max(0, limit - usage + sum(int(stat[name]) for name in files if name in stat))
