"""What remains where nothing is planned or rearranged: ``python -m benchmarks.conversion.floor SOURCE TARGET [--passes crswt]``.

Every file is read in bands and written again by as many threads as a conversion has, in writes of its size,
with its calls to the file system and nothing else. ``--passes`` adds what a conversion of raw chunks does to
each byte besides: c the CRC32C of the source, s its CRC-64/NVME, r one copy into another order (here: the same),
w the CRC32C of the target, t its CRC-64/NVME. Compare with ``cp -r`` and with ``reshard convert``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from awscrt.checksums import crc32c, crc64nvme

from reshard.engine.buffers import aligned
from reshard.planning.task_cost import TASK_BAND_BYTES
from reshard.storage.local.files import write_all
from reshard.storage.local.syncing import Writeback, sync_tree

WORKERS = 3


class _Buffers(threading.local):
    """A thread's two buffers, reused for every file."""

    def __init__(self) -> None:
        self.band, self.other = aligned(TASK_BAND_BYTES), aligned(TASK_BAND_BYTES)


_BUFFERS = _Buffers()


def move(source: Path, target: Path, passes: str, writeback: Writeback) -> None:
    """Reads one file, does the passes over it, and writes it."""
    band, other = _BUFFERS.band, _BUFFERS.other
    into = os.open(target, os.O_WRONLY | os.O_CREAT, 0o666)
    with source.open("rb", buffering=0) as file:
        at = 0
        while n := file.readinto(band.data):
            if "c" in passes:
                crc32c(band.data[:n])
            if "s" in passes:
                crc64nvme(band.data[:n])
            if "r" in passes:
                other[:n] = band[:n]
            write_all(into, band.data[:n], at, str(target))
            if "w" in passes:
                crc32c(band.data[:n])
            if "t" in passes:
                crc64nvme(band.data[:n])
            at += n
    os.close(into)
    writeback.begin(str(target), at)


def move_all(source: Path, target: Path, passes: str) -> None:
    """Every file of a folder, the largest first, synced at the end."""
    shutil.rmtree(target, ignore_errors=True)
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in files:
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
    files.sort(key=lambda path: -path.stat().st_size)
    with Writeback() as writeback, ThreadPoolExecutor(WORKERS) as threads:

        def move_one(path: Path) -> None:
            move(path, target / path.relative_to(source), passes, writeback)

        list(threads.map(move_one, files))
    sync_tree(target)


def main() -> None:
    """Parses the command line and moves; time it from outside."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--passes", default="")
    given = parser.parse_args()
    move_all(given.source, given.target, given.passes)


if __name__ == "__main__":
    main()
