"""The benchmark: ``python -m benchmarks.run [--size full] [--rounds 5] [--only raw,cp]``.

Makes the tree with stock Orbax, then runs every contender in turn, each as a whole fresh process
with the page cache warm and its output's durability counted, and prints medians and ratios. The
temporary folder (below $TMPDIR) is removed in the end.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.conversion.contenders import (
    CONTENDERS,
    LARGE_TENSORS,
    SMALL_TENSORS,
    Workplace,
    write_layouts,
)
from benchmarks.conversion.rounds import REPOSITORY, Results, run_rounds, tell
from benchmarks.measure import memory_bytes
from benchmarks.trees.sizes import TreeSize

DISK_TREES = 6
"""Free space asked for, in sizes of the tree: source, two outputs, a target and what it staged."""

SMALL_FILE_BYTES = 12 * 1024
"""Room that one small tensor takes on disk as plain files: metadata, chunk and folders."""

PACKAGES = ("reshard", "orbax-checkpoint", "jax", "tensorstore", "numpy")


def main() -> None:
    """Parse the command line, measure, print; exit code 1 where a contender failed."""
    arguments = _arguments()
    size = _size(arguments)
    names = _chosen(arguments)
    with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
        root = Path(folder)
        _check_disk(root, size, len(names) * arguments.rounds)
        work = Workplace(root, _source(arguments, root), _options(arguments))
        write_layouts(work, bool(size.small))
        affordable, left_out = _affordable(names, size)
        results = run_rounds(affordable, work, arguments.rounds, arguments.limit)
        results.left_out.update(left_out)
    _report(results, arguments, size)
    sys.exit(1 if results.failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    add = parser.add_argument
    add("--size", default="small", help="tiny, small (0.25 GB), full (2.25 GB) or a number of GiB")
    add("--many-small", type=int, default=0, metavar="N", help="N tensors of 4 KiB instead")
    add("--rounds", type=int, default=5)
    add("--only", default="", help=f"comma-separated, of: {', '.join(CONTENDERS)}")
    add("--tree", type=Path, help="a source made by benchmarks.trees.make_tree with the same size")
    add("--max-memory", help="budget for this project, such as 256MiB")
    add("--limit", type=float, default=600, help="seconds after which a run is stopped")
    add("--json", type=Path, help="file for everything that was measured")
    add("--markdown", type=Path, help="file for the table, for a document")
    add("--picture", type=Path, help="file for a picture, .svg or .png")
    return parser.parse_args()


def _size(arguments: argparse.Namespace) -> TreeSize:
    if arguments.many_small:
        return TreeSize(small=arguments.many_small)
    return TreeSize.named(arguments.size)


def _chosen(arguments: argparse.Namespace) -> list[str]:
    default = SMALL_TENSORS if arguments.many_small else LARGE_TENSORS
    names = arguments.only.split(",") if arguments.only else list(default)
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise SystemExit(f"--only {unknown[0]}: expected one of {', '.join(CONTENDERS)}")
    return names


def _options(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("--max-memory", arguments.max_memory) if arguments.max_memory else ()


def _check_disk(root: Path, size: TreeSize, runs: int) -> None:
    kept = runs * size.small * SMALL_FILE_BYTES
    needed = DISK_TREES * max(size.nbytes, size.small * SMALL_FILE_BYTES) + kept
    free = shutil.disk_usage(root).free
    if free < needed:
        raise SystemExit(
            f"{root} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed; "
            "set TMPDIR to a larger disk or choose a smaller --size"
        )


def _source(arguments: argparse.Namespace, root: Path) -> Path:
    """The given tree, or one made now in a process of its own."""
    if arguments.tree:
        return Path(arguments.tree).resolve(strict=True)
    tell("making the source checkpoint with stock Orbax")
    source = root / "source"
    command = [sys.executable, "-m", "benchmarks.trees.make_tree", str(source)]
    command += ["--size", arguments.size, "--many-small", str(arguments.many_small)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL)
    return source


def _affordable(names: list[str], size: TreeSize) -> tuple[list[str], dict[str, str]]:
    """The contenders that memory allows, and why the others are left out."""
    total = memory_bytes()
    needed = {name: CONTENDERS[name].memory_trees * size.nbytes for name in names}
    left_out = {
        name: f"needs about {needed[name] / 2**30:.0f} GiB, this machine has {total / 2**30:.0f}"
        for name in names
        if needed[name] > 0.9 * total
    }
    return [name for name in names if name not in left_out], left_out


def _report(results: Results, arguments: argparse.Namespace, size: TreeSize) -> None:
    from benchmarks.conversion.summary import as_json
    from benchmarks.conversion.table import as_markdown, print_table

    title = f"{_amount(size)}, mesh (4, 2) to (8,), {arguments.rounds} rounds"
    print_table(results, title)
    for file in filter(None, (arguments.json, arguments.markdown, arguments.picture)):
        file.parent.mkdir(parents=True, exist_ok=True)
    if arguments.markdown:
        arguments.markdown.write_text(as_markdown(results, title), encoding="utf-8")
    if arguments.json:
        data = {"tree_bytes": size.nbytes, "tensors": len(list(size.tensors()))}
        document = {"title": title, **data, "machine": _machine(), **as_json(results)}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.picture and results.costs:
        from benchmarks.conversion.picture import draw

        draw(results, title, arguments.picture)


def _amount(size: TreeSize) -> str:
    if size.small:
        return f"{size.small:,} tensors of 4 KiB"
    return f"{size.nbytes / 1e9:.2f} GB" if size.nbytes > 1e9 else f"{size.nbytes / 1e6:.3g} MB"


def _machine() -> dict[str, Any]:
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
    }


if __name__ == "__main__":
    main()
