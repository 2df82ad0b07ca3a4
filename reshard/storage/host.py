"""This host: memory, processors, free space, processes and forks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from reshard.errors import StorageError

DEFAULT_CAP_BYTES = 1 << 30
MAX_DEFAULT_WORKERS = 16

_EVERYWHERE = ("0::/", "1:memory:/")
"""The roots of the hierarchies of both versions: in a container these are its own cgroups."""


def default_max_memory() -> int:
    """A quarter of the memory that the machine or its cgroup allows, or 1 GiB, the smaller; bytes."""
    return min(allowed_memory() // 4, DEFAULT_CAP_BYTES)


def allowed_memory(
    hierarchy: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes of memory of the machine, or of the tightest cgroup limit if one is lower.

    Args:
        hierarchy: the mount point of cgroups, version 2 or 1.
        own: the file that names this process's cgroups, a line ``number:controllers:/path`` each
            (cgroups(7)).
    """
    lowest = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = list(_EVERYWHERE)
    with suppress(OSError):
        lines += own.read_text().splitlines()
    for file in _limit_files(hierarchy, lines):
        with suppress(OSError, ValueError):  # absent, or "max"
            lowest = min(lowest, int(file.read_text()))
    return lowest


def _limit_files(hierarchy: Path, lines: Iterable[str]) -> list[Path]:
    """The files of the cgroups that may have a limit: each one and those above it."""
    files: list[Path] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        folders = list(filter(None, path.split("/")))
        if ".." in folders:  # outside of the cgroups that this process may see
            continue
        if number == "0" and not controllers:
            base, name = hierarchy, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = hierarchy / "memory", "memory.limit_in_bytes"
        else:
            continue
        files += [base.joinpath(*folders[:n], name) for n in range(len(folders) + 1)]
    return files


def host_name() -> str:
    """The host's own name."""
    return os.uname().nodename


def boot_id(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The kernel's boot id (random(4)); "" if it has none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def default_workers() -> int:
    """Number of tasks at once: the number of processors, at least two, since a task also waits for files."""
    return max(2, min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS))


def free_bytes(path: Path) -> int:
    """Free bytes for an ordinary user on the file system of ``path``, which may not exist yet."""
    while not os.access(path, os.F_OK) and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def process_mark() -> dict[str, str | int]:
    """A mark that identifies this process among all, on any host.

    Process ids are reused, and containers may share a host name.
    """
    return {
        "host": host_name(),
        "boot": boot_id(),
        "namespace": _process_namespace(),
        "pid": os.getpid(),
        "started": _start_ticks(os.getpid()),
    }


def process_state(mark: Mapping[str, object]) -> Literal["runs", "gone", "unknown"]:
    """The state of the process of a mark; "unknown" unless it is of this boot of this host."""
    own = process_mark()
    if not own["boot"] or any(mark.get(k) != own[k] for k in ("host", "boot", "namespace")):
        return "unknown"
    pid = mark.get("pid")
    if not isinstance(pid, int):
        return "unknown"
    started = _start_ticks(pid)
    return "runs" if started and started == mark.get("started") else "gone"


def _process_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a text, no path
    except OSError:
        return ""


def _start_ticks(pid: int) -> int:
    """The start time of a process, in ticks of the kernel's clock (proc(5), field 22); 0 if there is none.

    A zombie has ended, even if nobody asks for its exit code for a while; one with threads (field 20) has not.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    after_name = text.rpartition(")")[2].split()
    has_ended = after_name[0] in ("Z", "X") and int(after_name[17]) <= 1
    return 0 if has_ended else int(after_name[19])


def forked_error(action: str, used: str, follows: str) -> StorageError:
    """The error, to be raised, for a call of a library in a process that was forked after the library was used."""
    return StorageError(
        f"cannot {action}: this process was forked from one that had used {used}, and {follows}; start worker processes with "
        "'spawn' (ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')))"
    )


def thread_names() -> set[str]:
    """The names of this process's threads, also those of libraries; none if the system does not list them."""
    names: set[str] = set()
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended meanwhile
                names.add((thread / "comm").read_text().strip())
    return names
