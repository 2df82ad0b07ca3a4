"""How long planning by a map takes: ``python -m benchmarks.conversion.map_scale [--only stack,drop] [--share 0.01]``.

Each case is a checkpoint of empty files that say their size and hold nothing, and a map. ``reshard plan`` runs as a whole
process; time and peak memory are printed. Nothing of a tensor is read or written.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import run_once

REPOSITORY = Path(__file__).parents[2]

EXPERTS = 256
WIDE, DEEP = 512, 256
"""Elements of a row and of a column of an expert: 256 KiB in bfloat16."""

Shapes = Mapping[str, tuple[int, ...]]
Map = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A checkpoint and a map for it.

    Attributes:
        about: what the map does, for the table.
        make: the shapes of the tensors and the map, for a number of tensors.
        count: that number.
    """

    about: str
    make: Callable[[int], tuple[Shapes, Map]]
    count: int


def unstack(count: int) -> tuple[Shapes, Map]:
    """Layers and experts become tensors of their own."""
    layers = _layers(count)
    return _stacked(layers), {"map": [_expert(w, "unstack") for w in _SHAPES]}


def stack(count: int) -> tuple[Shapes, Map]:
    """The tensors of experts become three."""
    return _apart(_layers(count)), {"map": [_expert(w, "stack") for w in _SHAPES]}


def stack_experts(count: int) -> tuple[Shapes, Map]:
    """The tensors of experts become three for each layer."""
    return _apart(_layers(count)), {"map": [_expert(w, "experts") for w in _SHAPES]}


_SHAPES = {"gate": "e f -> f e", "up": "e f -> f e", "down": "f e -> e f"}


def _layers(count: int) -> int:
    return max(1, count // (len(_SHAPES) * EXPERTS))


def _expert(which: str, how: str) -> Map:
    left, right = _SHAPES[which].split(" -> ")
    one = f"model.layers.{{l}}.mlp.experts.{{x}}.{which}_proj.weight"
    if how == "unstack":
        return {"from": f"wi/{which}", "to": one, "shape": f"l x {left} -> {right}"}
    if how == "stack":
        return {"from": one, "to": f"wi/{which}", "shape": f"{left} -> l x {right}"}
    return {"from": one, "to": f"layers.{{l}}.{which}", "shape": f"{left} -> x {right}"}


def _one(which: str) -> tuple[int, ...]:
    return (DEEP, WIDE) if which == "down" else (WIDE, DEEP)


def _stacked(layers: int) -> Shapes:
    return {f"wi/{which}": (layers, EXPERTS, *_one(which)) for which in _SHAPES}


def _apart(layers: int) -> Shapes:
    return {
        f"model.layers.{layer}.mlp.experts.{expert}.{which}_proj.weight": _one(which)
        for layer in range(layers)
        for expert in range(EXPERTS)
        for which in _SHAPES
    }


def copies(count: int) -> tuple[Shapes, Map]:
    """One tensor becomes many that are equal."""
    again = [{"to": f"copy.{n}", "same_as": "w"} for n in range(count)]
    return {"w": (WIDE, DEEP)}, {"map": [{"from": "w", "to": "w"}, *again]}


def drop(count: int) -> tuple[Shapes, Map]:
    """Every tensor but one is dropped by a pattern of its own."""
    shapes = {f"layers.{n}.weight": (DEEP,) for n in range(count)}
    literal = [rf"^layers\.{n}\.weight$" for n in range(count)]
    return {"w": (DEEP,), **shapes}, {"drop": literal, "map": [{"from": "w", "to": "w"}]}


def rules(count: int) -> tuple[Shapes, Map]:
    """Every tensor has a rule of its own."""
    shapes = {f"layers.{n}.weight": (WIDE, DEEP) for n in range(count)}
    made = [
        {"from": f"layers.{n}.weight", "to": f"{n}.w", "shape": "e f -> f e"} for n in range(count)
    ]
    return shapes, {"map": made}


# The small ones first: a process begins with what its parent holds, which makes the checkpoints.
CASES = {
    "copies": Case("a tensor and copies of it (`same_as`)", copies, 1_000),
    "rules": Case("tensors with a rule each", rules, 10_000),
    "drop": Case("tensors dropped by a pattern each", drop, 60_000),
    "experts": Case(
        "a tensor for each expert of each layer → 3 for each layer", stack_experts, 100_000
    ),
    "stack": Case("the same → 3", stack, 100_000),
    "unstack": Case("3 stacked tensors → a tensor for each expert of each layer", unstack, 100_000),
}


def write_case(folder: Path, shapes: Shapes, map_: Map) -> tuple[Path, Path]:
    """The checkpoint, one file of safetensors without a byte of any tensor on disk, and the map."""
    source, text = folder / "source.safetensors", folder / "map.json"
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with source.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + end)
    text.write_text(json.dumps(map_))
    return source, text


def main() -> None:
    """Parse the command line, plan every case, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--share", type=float, default=1.0, help="of each number of tensors")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each")
    arguments = parser.parse_args()
    print("| what | tensors | wall s | CPU s | peak MiB |\n|---|---:|---:|---:|---:|")
    for row in _rows(arguments.only.split(","), arguments.share, arguments.limit):
        print(row, flush=True)


def _rows(names: Iterable[str], share: float, limit: float) -> Iterable[str]:
    for name in names:
        case = CASES[name]
        count = max(1, round(case.count * share))
        with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
            source, text = write_case(Path(folder), *case.make(count))
            command = [sys.executable, "-m", "reshard", "plan", str(source), "--map", str(text)]
            command += ["--to", "safetensors", "--json"]
            cost = run_once(command, source, REPOSITORY, limit)
        seconds = f"{cost.wall_s:.1f} | {cost.cpu_s:.1f}"
        yield f"| {case.about} | {count:,} | {seconds} | {cost.peak_mib:,.0f} |"


if __name__ == "__main__":
    main()
