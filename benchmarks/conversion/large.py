"""Converts a checkpoint larger than memory: ``python -m benchmarks.conversion.large --gib 30 --max-memory 512MiB --folder DIR``.

The checkpoint is one step of a CheckpointManager whose items stock Orbax saved one after the other, 2
GiB each by default, so that nothing ever holds all of it. It is converted to another mesh, both are
compared by digests, and one item of each is restored by stock Orbax and compared too. Everything is
removed at the end, however it ends.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Cost, memory_bytes, run_once, tree_bytes

REPOSITORY = Path(__file__).parents[2]
HANDLER = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
GIB = 1 << 30
LAYOUT = 'mesh: {axes: [model], shape: [8]}\nrules:\n  - {match: "kernel", axes: [null, model]}\n'

NEEDED = 2.1
"""Disk, in sizes of the checkpoint: source, target, and some."""


def make_step(step: Path, gib: float, item_gib: float) -> list[str]:
    """A step of about ``gib`` GiB; the names of its items."""
    count = max(1, round(gib / item_gib))
    mib = round(gib * 1024 / count)
    names = [f"part_{number:02d}" for number in range(count)]
    step.mkdir(parents=True)
    for number, name in enumerate(names):
        _peer("save_item", step / name, number, mib)
        tell(f"saved {name}: {tree_bytes(step) / GIB:.1f} GiB on disk")
    now = time.time_ns()
    record = {
        "item_handlers": dict.fromkeys(names, HANDLER),
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": now,
        "commit_timestamp_nsecs": now,
        "custom_metadata": {},
    }
    (step / "_CHECKPOINT_METADATA").write_text(json.dumps(record))
    return names


def measure(root: Path, gib: float, item_gib: float, max_memory: str, limit_s: float) -> None:
    """Make, convert, verify, compare; print what it cost."""
    source, target, layout = root / "source" / "0", root / "target", root / "layout.yaml"
    layout.write_text(LAYOUT)
    names = make_step(source, gib, item_gib)
    expected = _digests(source / names[-1])
    print(f"source: {len(names)} items, {tree_bytes(source) / GIB:.2f} GiB stored by stock Orbax")
    words = ["--max-memory", max_memory]
    convert = _ours("convert", source, target, "--layout", layout, *words)
    cost = run_once(convert, target, REPOSITORY, limit_s)
    _tell_cost("convert", cost, cost.written_mib)
    verify = _ours("verify", source, target, *words)
    _tell_cost(
        "verify source target", run_once(verify, target, REPOSITORY, limit_s), cost.written_mib
    )
    if _digests(target / names[-1]) != expected:
        raise SystemExit(f"stock Orbax restores other values from {names[-1]} of the target")
    print(f"stock Orbax restores {names[-1]} of both with equal values")
    print(f"the machine has {memory_bytes() / GIB:.1f} GiB of memory")


def _ours(*words: object) -> list[str]:
    return [sys.executable, "-m", "reshard", *map(str, words)]


def _peer(program: str, *words: object) -> str:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        f"benchmarks.peers.{program}",
        *map(str, words),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _digests(item: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(_peer("item_digests", item).splitlines()[-1])
    return found


def _tell_cost(what: str, cost: Cost, mib: float) -> None:
    print(
        f"{what}: {cost.wall_s:.0f} s, {mib / 1024 / cost.wall_s:.2f} GiB/s of tensors, "
        f"{cost.cpu_s:.0f} s of processor time, peak {cost.peak_mib:.0f} MiB",
        flush=True,
    )


def tell(line: str) -> None:
    """One line of progress for whoever waits."""
    print(line, file=sys.stderr, flush=True)


def check_space(folder: Path, gib: float) -> None:
    """SystemExit where the disk has less than source and target take."""
    free, need = shutil.disk_usage(folder).free, gib * GIB * NEEDED
    if free < need:
        raise SystemExit(
            f"{folder} has {free / GIB:.0f} GiB free, but source and target of {gib:g} GiB take "
            f"{need / GIB:.0f}; choose another folder, or fewer GiB"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert a checkpoint larger than memory.")
    parser.add_argument("--gib", type=float, default=30.0)
    parser.add_argument("--item-gib", type=float, default=2.0, help="what Orbax saves at a time")
    parser.add_argument("--max-memory", default="512MiB")
    parser.add_argument("--folder", type=Path, required=True, help="where to make it; must exist")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="for each command")
    return parser.parse_args()


def main() -> None:
    """Parse the command line, measure, remove everything."""
    arguments = _arguments()
    check_space(arguments.folder, arguments.gib)
    root = Path(tempfile.mkdtemp(prefix="reshard-large-", dir=arguments.folder))
    try:
        measure(root, arguments.gib, arguments.item_gib, arguments.max_memory, arguments.limit_s)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
