"""A scanned Llama to serving and back, beside ``cp`` and a script: ``python -m benchmarks.handover.run [--layers 8] [--rounds 3]``.

Each contender is a fresh process, in turn, each round beginning with another, timed until its output is on the disk. 8 layers are
2 GB, 19 are 4 GB. First the map is held against what the script made.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from benchmarks.conversion.rounds import REPOSITORY, tell
from benchmarks.measure import Cost, run_once, touch_free_memory, tree_bytes

RECIPE = "maxtext-llama3.1"
SERVE = ("--map", RECIPE, "--to", "safetensors")
BACK = (
    "--map",
    RECIPE,
    "--reverse",
    "--size",
    "p=64",
    "--size",
    "d=128",
    "--to",
    "orbax",
    "--compression",
    "none",
)
LIMIT_S = 1800


def contenders(trained: Path, served: Path, budgets: list[str]) -> dict[str, list[str]]:
    """The commands, each without its target, which is the last word."""
    script = [sys.executable, "-m", "benchmarks.handover.script"]
    convert = [str(Path(sys.executable).parent / "reshard"), "convert"]
    found = {"cp": ["cp", "-r", str(trained)]}
    for way, source, options in (("serve", trained, SERVE), ("back", served, BACK)):
        found[f"{way}: script"] = [*script, way, str(source)]
        for budget in budgets:
            name = f"{way}: reshard, {budget}"
            found[name] = [*convert, *options, "--quiet", "--max-memory", budget, str(source)]
    return found


def run_rounds(
    commands: dict[str, list[str]],
    rounds: int,
    work: Path,
    nbytes: int,
    targets: Mapping[str, str] = {},
) -> dict[str, list[Cost]]:
    """The costs of each, round by round; ``targets``: the names of targets that need one."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    names = list(commands)
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            target = work / targets.get(name, "made")
            touch_free_memory(2 * nbytes)
            cost = run_once([*commands[name], str(target)], target, REPOSITORY, LIMIT_S)
            costs[name].append(cost)
            tell(f"round {number + 1}/{rounds}: {name}: {cost.wall_s:.2f} s")
            shutil.rmtree(target)
    return {name: costs[name] for name in names}


def table(costs: dict[str, list[Cost]]) -> str:
    """Medians, and the medians of each round's ratios, in Markdown."""
    lines = [
        "| medians | wall s | CPU s | peak MiB | × `cp` | × script |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in costs.items():
        script = costs.get(f"{name.split(':')[0]}: script", found)
        values = [
            statistics.median(getattr(c, f) for c in found) for f in ("wall_s", "cpu_s", "peak_mib")
        ]
        ratios = [
            statistics.median(a.wall_s / b.wall_s for a, b in zip(found, other, strict=True))
            for other in (costs["cp"], script)
        ]
        wall, cpu, peak = values
        lines.append(
            f"| {name} | {wall:.2f} | {cpu:.2f} | {peak:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |"
        )
    return "\n".join(lines)


def prepare(work: Path, layers: int, width: int) -> tuple[Path, Path]:
    """The trained model, and what the script makes of it, after a look that the map makes the same."""
    trained, served = work / "trained", work / "served"
    make = [
        sys.executable,
        "-m",
        "benchmarks.handover.llama",
        str(layers),
        str(trained),
        str(width),
    ]
    script = [
        sys.executable,
        "-m",
        "benchmarks.handover.script",
        "serve",
        str(trained),
        str(served),
    ]
    command = str(Path(sys.executable).parent / "reshard")
    check = [command, "verify", str(trained), str(served), "--map", RECIPE]
    for words in (make, script, check):
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(words)} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
            )
    found = next(line for line in done.stdout.splitlines() if line.startswith("equal"))
    tell(f"the map makes what the script makes: {found}")
    return trained, served


def main() -> None:
    """Parse the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description="Measure a hand-over to serving and back.")
    parser.add_argument("--layers", type=int, default=8, help="8 are 2 GB, 19 are 4 GB")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budgets", default="256MiB,1GiB", help="of memory, separated by commas")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="handover-", dir=given.work))
    try:
        trained, served = prepare(work, given.layers, given.width)
        commands = contenders(trained, served, given.budgets.split(","))
        print(table(run_rounds(commands, given.rounds, work, tree_bytes(trained))))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
