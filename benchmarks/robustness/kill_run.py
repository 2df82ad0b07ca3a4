"""Kills conversions at random moments and runs them again, many times; prints a table.

    python -m benchmarks.robustness.kill_run --kills 300 --mib 64

Each target is converted by processes that are killed with SIGKILL after a random time, one after the
other, until one finishes; the result must be byte by byte that of an undisturbed run, and a chunk that
the journal called closed when a process was killed must not be written again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from reshard.storage.checked_lines import read_lines
from reshard.storage.local.staging import staging_for

TIMES = {"init_timestamp_nsecs", "commit_timestamp_nsecs"}

WORDS = {
    "scatter": ["--chunk-bytes", "256KiB"],
    "zstd": ["--compression", "zstd"],
    "keep": ["--compression", "keep"],
    "cast": ["--cast", ".=bfloat16"],
    "ocdbt": ["--ocdbt", "--chunk-bytes", "1MiB"],
    "readback": ["--verify", "readback"],
}


def make_source(path: Path, mib: int) -> None:
    """A checkpoint of ``mib`` MiB in arrays of 4 MiB, which this project saves."""
    import numpy as np

    import reshard

    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.normal(size=(1024, 1024)).astype(np.float32) for i in range(mib // 4)}
    reshard.save(path, arrays)


def content(path: Path) -> dict[str, bytes]:
    """Every file, without the times in the checkpoint's metadata."""
    found = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    marked = json.loads(found.pop("_CHECKPOINT_METADATA"))
    timeless = {k: v for k, v in marked.items() if k not in TIMES}
    return {**found, "_CHECKPOINT_METADATA": json.dumps(timeless).encode()}


def start(source: Path, target: Path, words: list[str]) -> subprocess.Popen[bytes]:
    """The conversion in a process of its own."""
    command = [sys.executable, "-m", "reshard", "convert", str(source), str(target), *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def closed_chunks(target: Path) -> dict[str, int]:
    """Time of change of each file that was as large as a chunk that the journal calls closed."""
    staging = staging_for(target)
    sizes = {
        part[3]
        for number, line in enumerate(read_lines(staging.journal))
        if number
        for task in json.loads(line)
        for part in task[8]
    }
    files = [p for p in staging.root.rglob("*") if p.is_file()]
    return {
        str(p.relative_to(staging.root)): p.stat().st_mtime_ns
        for p in files
        if p.stat().st_size in sizes
    }


def kill_until_done(source: Path, target: Path, words: list[str], longest_s: float) -> Counter[str]:
    """Runs and kills until a run finishes."""
    counts: Counter[str] = Counter()
    while True:
        before = closed_chunks(target)
        child = start(source, target, words)
        _wait_for_work(child, target)
        try:
            code = child.wait(random.uniform(0, longest_s))  # noqa: S311  a moment, not a secret
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            code = child.wait()
        counts["kills"] += code == -signal.SIGKILL
        counts["resumed"] += bool(before)
        counts["rewritten"] += _rewritten(before, target)
        if code == 0:
            return counts
        if code != -signal.SIGKILL:
            counts["failed"] += 1
            return counts


def _wait_for_work(child: subprocess.Popen[bytes], target: Path) -> None:
    """Until the run holds its target: before that a kill hits imports only."""
    while child.poll() is None and not staging_for(target).journal.exists():
        time.sleep(0.001)


def _rewritten(before: dict[str, int], target: Path) -> int:
    """How many chunks that were closed before a run were written by it again."""
    root = target if target.exists() else staging_for(target).root
    now = {name: (root / name) for name in before}
    return sum(p.exists() and p.stat().st_mtime_ns != before[name] for name, p in now.items())


def run_case(
    name: str, source: Path, folder: Path, kills: int, say: Callable[[str], None]
) -> Counter[str]:
    """Kills ``name``'s conversion at least so many times."""
    words, counts = WORDS[name], Counter[str]()
    began = time.monotonic()
    assert start(source, folder / "undisturbed", words).wait() == 0
    seconds = time.monotonic() - began
    expected = content(folder / "undisturbed")
    while counts["kills"] < kills:
        target = folder / "t"
        counts += kill_until_done(source, target, words, seconds * 1.2)
        counts["finished"] += 1
        counts["wrong"] += not _is_right(name, source, target, expected)
        shutil.rmtree(target, ignore_errors=True)
    say(
        f"{name:10}{counts['kills']:7}{counts['resumed']:9}{counts['finished']:10}"
        f"{counts['rewritten']:11}{counts['failed']:8}{counts['wrong']:7}"
    )
    return counts


def _is_right(name: str, source: Path, target: Path, expected: dict[str, bytes]) -> bool:
    import reshard

    if not target.exists():
        return False
    if name == "ocdbt":
        return reshard.verify(source, target).differences == 0
    return content(target) == expected


def main() -> int:
    """Prints the table; 1 where anything was wrong, failed, or was written again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="in all")
    parser.add_argument("--mib", type=int, default=64, help="size of the source")
    parser.add_argument("--case", choices=WORDS, nargs="*", default=list(WORDS))
    args = parser.parse_args()
    total: Counter[str] = Counter()
    print("case        kills  resumed  finished  rewritten  failed  wrong", flush=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        source = Path(folder, "source")
        make_source(source, args.mib)
        for name in args.case:
            (work := Path(folder, name)).mkdir()
            kills = -(-args.kills // len(args.case))
            total += run_case(name, source, work, kills, lambda line: print(line, flush=True))
            shutil.rmtree(work)
    return int(bool(total["wrong"] or total["failed"] or total["rewritten"]))


if __name__ == "__main__":
    sys.exit(main())
