"""Conversions between formats, beside what people use: ``python -m benchmarks.formats.run [--mib 1024] [--rounds 5]``.

Makes a model of bfloat16 matrices in four Hugging Face shards and, of it, an Orbax checkpoint on a mesh of 8 and the
files of torch's distributed checkpoint. Then each contender runs in turn, each time as a fresh process with a warm page
cache, and ``sync`` counts. Ratios are medians over rounds. torch is asked in ``.oracles/torch`` (``make oracles``).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.conversion.rounds import REPOSITORY, tell
from benchmarks.measure import Cost, run_once, touch_free_memory, tree_bytes

TORCH = REPOSITORY / ".oracles" / "torch" / "bin" / "python"
CONVERT = [str(Path(sys.executable).parent / "reshard"), "convert"]
LAYOUT = "mesh: {axes: [x], shape: [8]}\nrules: [{match: '.', axes: [x, null]}]\n"
PEER = [sys.executable, "-m", "benchmarks.peers.safetensors_orbax"]

_MAKE = """
import sys, numpy as np, ml_dtypes
from safetensors.numpy import save_file
folder, mib = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
for file in range(4):
    save_file({f"model.layers.{file}.{n}.weight":
               rng.integers(0, 1 << 16, (mib * 8, 2048), np.uint16).view(ml_dtypes.bfloat16)
               for n in range(8)}, f"{folder}/model-{file + 1:05d}-of-00004.safetensors")
"""


def contenders(folder: Path) -> dict[str, list[str]]:
    """Each contender's command; the target follows it."""
    shards, orbax, dcp = (str(folder / name) for name in ("shards", "orbax", "dcp"))
    mesh = ["--layout", str(folder / "rows.yaml")]
    return {
        "cp -r": ["cp", "-r", shards],
        "shards → Orbax": [*CONVERT, shards, "--to", "orbax", *mesh],
        "shards → Orbax, safetensors and Orbax": [*PEER, "to-orbax", shards],
        "Orbax → shards": [*CONVERT, orbax, "--to", "safetensors"],
        "Orbax → shards, Orbax and safetensors": [*PEER, "to-shards", orbax],
        "Orbax → rank files": [*CONVERT, orbax, "--to", "safetensors", "--files", "ranks", *mesh],
        "Orbax → rank files, Orbax and safetensors": [*PEER, "to-ranks", orbax],
        "torch's files → shards": [*CONVERT, dcp, "--files", "shards"],
        "torch's files → shards, torch": [
            str(TORCH),
            "-m",
            "benchmarks.peers.torch_consolidate",
            dcp,
        ],
    }


def prepare(folder: Path, mib: int) -> None:
    """The sources."""
    shards = folder / "shards"
    shards.mkdir()
    (folder / "rows.yaml").write_text(LAYOUT)
    mesh = ["--layout", str(folder / "rows.yaml")]
    make = [sys.executable, "-c", _MAKE, str(shards), str(mib)]
    run_once(make, shards, REPOSITORY, 600)
    for name, how in (("orbax", ["--to", "orbax"]), ("dcp", ["--files", "dcp"])):
        command = [*CONVERT, str(shards), str(folder / name), *how, *mesh]
        run_once(command, folder / name, REPOSITORY, 600)


def measure(folder: Path, rounds: int) -> dict[str, list[Cost]]:
    """The cost of every contender in each round; the first to run changes from round to round."""
    commands = contenders(folder)
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    target = folder / "target"
    for number in range(rounds):
        names = list(commands)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            touch_free_memory(2 * tree_bytes(folder / "shards"))
            cost = run_once([*commands[name], str(target)], target, REPOSITORY, 600)
            shutil.rmtree(target)
            costs[name].append(cost)
            tell(
                f"round {number + 1}/{rounds}: {name}: {cost.wall_s:.2f} s, {cost.peak_mib:.0f} MiB"
            )
    return costs


def summary(costs: dict[str, list[Cost]]) -> list[str]:
    """The table: medians, and the ratio to cp in the same rounds."""
    lines = ["| | wall s | / cp | peak MiB |", "| --- | ---: | ---: | ---: |"]
    for name, found in costs.items():
        wall = statistics.median(cost.wall_s for cost in found)
        pairs = zip(found, costs["cp -r"], strict=True)
        ratio = statistics.median(ours.wall_s / copy.wall_s for ours, copy in pairs)
        peak = statistics.median(cost.peak_mib for cost in found)
        lines.append(f"| {name} | {wall:.2f} | {ratio:.2f} | {peak:.0f} |")
    return lines


def main() -> None:
    """Parse the command line, make the sources, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
        prepare(Path(folder), arguments.mib)
        print("\n".join(summary(measure(Path(folder), arguments.rounds))))


if __name__ == "__main__":
    main()
