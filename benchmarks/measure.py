"""Runs one command in a fresh process and measures its cost.

The peak of a process's resident memory begins with what its parent held when it was started, so
the parent stays small: nothing here or in what imports it loads more than the standard library
before the last measurement is made.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MIB = 2**20

_TOUCH = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)
"""


class RunFailedError(Exception):
    """A command that ended with an error; carries the end of what it said."""


class RunTooLongError(Exception):
    """A command that was stopped because it exceeded its time."""


@dataclass(frozen=True)
class Cost:
    """What one run cost.

    Attributes:
        wall_s: from start to the end of ``sync`` of the target's file system.
        sync_s: the part of it that ``sync`` took.
        startup_s: the part before the work began (imports, devices), where the command tells.
        cpu_s: user and system time.
        peak_mib: largest resident memory.
        written_mib: bytes of the files it left.
        read_mib: bytes that its work read through system calls, where the command tells.
        needed_mib: bytes that it could not have done without, where the command tells.
    """

    wall_s: float
    sync_s: float
    startup_s: float | None
    cpu_s: float
    peak_mib: float
    written_mib: float
    read_mib: float | None = None
    needed_mib: float | None = None


def run_once(command: list[str], target: Path, cwd: Path, limit_s: float) -> Cost:
    """Run the command, sync the file system of ``target``, and say what both cost.

    Raises RunFailedError where it ends with an error, RunTooLongError where it is still running after
    ``limit_s`` seconds (it is killed then).
    """
    sync(target.parent)
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        status, usage = _wait(_start(command, cwd, output), limit_s)
        ended = time.perf_counter()
        said = _said(output)
    if status:
        raise RunFailedError(f"{' '.join(command)}\nended with {status}:\n{said[-2000:]}")
    sync(target.parent)
    done = time.perf_counter()
    working = _told(said, "working_s")
    return Cost(
        wall_s=done - started,
        sync_s=done - ended,
        startup_s=None if working is None else ended - started - working,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss * 1024 / MIB,
        written_mib=tree_bytes(target) / MIB,
        read_mib=_mib(_told(said, "read_bytes")),
        needed_mib=_mib(_told(said, "needed_bytes")),
    )


def _told(said: str, name: str) -> float | None:
    found = re.search(rf"\b{name}=([\d.]+)", said)
    return float(found[1]) if found else None


def _mib(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / MIB


def sync(directory: Path) -> None:
    """Wait until everything written to the directory's file system is on its disk."""
    subprocess.run(["sync", "-f", directory], check=True)


def tree_bytes(path: Path) -> int:
    """Bytes of every file below ``path``; 0 where there is nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        total += sum(Path(folder, name).lstat().st_size for name in names)
    return total


def memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def touch_free_memory(nbytes: int) -> None:
    """Make free memory resident, by a process that fills as much (at most half of all) and ends.

    A virtual machine hands free memory back to its host, and whoever comes first pays for getting it
    again: up to 7 s more for ``cp`` of 2 GiB (measured), more than what is compared here.
    """
    pages = max(1, min(nbytes, memory_bytes() // 2) // mmap.PAGESIZE)
    subprocess.run([sys.executable, "-c", _TOUCH, str(pages * mmap.PAGESIZE)], check=True)


def _start(command: list[str], cwd: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    # Where Python may not keep bytecode, every start would compile whatever is not installed.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> tuple[int, resource.struct_rusage]:
    """Exit status and resource usage of the process, which is killed after ``limit_s``."""
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if expired.is_set():
        raise RunTooLongError(f"still running after {limit_s:g} s")
    return process.returncode, usage


def _said(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode("utf-8", "replace")
