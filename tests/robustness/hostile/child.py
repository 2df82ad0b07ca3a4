"""The process that meets hostile checkpoints: ``python -m tests.robustness.hostile.child SPECIMENS WORK``.

Reads one seed a line, and prints one line of JSON a case. Address space and file sizes are limited by
the system; peak memory and processor time are asked of it case by case; hanging is noticed by the
process that started this.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.robustness.hostile.cases import make_case, source_of
from tests.robustness.hostile.operations import Seen, operate
from tests.robustness.hostile.watch import Watch, snapshot

Tell = Callable[[dict[str, object]], None]

ADDRESS_BYTES = 12 << 30
"""Libraries reserve much that they never touch; beyond this an allocation fails, and does not swap."""

FILE_BYTES = 1 << 30


def main(specimens: Path, work: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES * 2, FILE_BYTES * 2))
    _warm_up(specimens, work)
    watch, tell = Watch(), _telling()
    tell({"ready": True})
    for line in sys.stdin:
        tell(run_case(int(line), specimens, work, watch, tell))


def _telling() -> Tell:
    """Answers go where stdout was; what anything else prints goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr
    return lambda answer: print(json.dumps(answer), file=answers, flush=True)


def _warm_up(specimens: Path, work: Path) -> None:
    """What is imported on first use belongs to no case."""
    source = shutil.copytree(specimens / "plain-zarr2", work / "warm" / "src")
    operate(Path(source), work / "warm" / "out" / "dst", 0)
    shutil.rmtree(work / "warm")


def run_case(seed: int, specimens: Path, work: Path, watch: Watch, tell: Tell) -> dict[str, object]:
    folder = work / f"case{seed}"
    folder.mkdir()
    (folder / "out").mkdir()
    what = make_case(seed, specimens, folder)
    tell({"seed": seed, "what": what})
    before = snapshot(folder, [folder / "out"])
    started, base = time.process_time(), _forget_peak()
    watch.allowed, watch.outside, watch.is_on = (str(folder / "out"),), [], True
    source = source_of(folder, what)
    target = "dst.weights.h5" if source.suffix == ".h5" else "dst"
    seen = operate(source, folder / "out" / target, seed)
    watch.is_on = False
    peak = _peak() - base
    wrong = seen.wrong + [f"writes {w}" for w in watch.outside]
    after = snapshot(folder, [folder / "out"])
    wrong += [
        f"changed {p}"
        for p in sorted(before.keys() | after.keys())
        if before.get(p) != after.get(p)
    ]
    left = [p.name for p in (folder / "out").iterdir() if not _is_of(target, p.name, seen)]
    wrong += [f"left behind {left}"] if left else []
    _remove(folder)
    return {
        "seed": seed, "what": what, "outcomes": seen.outcomes, "wrong": wrong,
        "seconds": time.process_time() - started, "peak_bytes": peak,
    }  # fmt: skip


def _is_of(target: str, name: str, seen: Seen) -> bool:
    """Whether a file or folder is the target, or one of the files of a prefix that was written, or the one that names it."""
    is_made = seen.outcomes.get("convert") == "ok"
    return name == target or (is_made and name.startswith((f"{target}.", "checkpoint")))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _forget_peak() -> int:
    """Resets the kernel's record of the peak; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    main(Path(sys.argv[1]), Path(sys.argv[2]))
