"""What this host allows: memory, processors, free space."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_CAP_BYTES = 1 << 30
MAX_DEFAULT_WORKERS = 16

_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def default_max_memory() -> int:
    """A quarter of the memory that the machine or its cgroup allows, or 1 GiB, the smaller; bytes."""
    return min(allowed_memory() // 4, DEFAULT_CAP_BYTES)


def allowed_memory(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory of the machine, or of the tightest cgroup limit where one is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits(cgroup_root, _own_cgroup())])


def _own_cgroup() -> str:
    """Path of this process's cgroup (version 2) below the hierarchy's root; "" where unknown."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")


def _cgroup_limits(root: Path, own: str) -> list[int]:
    folders = [root, *(root.joinpath(*own.split("/")[: n + 1]) for n in range(own.count("/") + 1))]
    limits = []
    for path in (folder / name for folder in folders for name in _CGROUP_LIMITS):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return limits


def default_workers() -> int:
    """Tasks at once: at least two, so that reading and writing overlap."""
    return max(2, min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS))


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user may still write where ``path`` is or will be."""
    while not os.access(path, os.F_OK) and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
