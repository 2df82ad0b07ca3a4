"""The time of planning many tensors: ``python -m benchmarks.conversion.map_scale [--only stack,drop] [--share 0.01]``.

Each case is a checkpoint of empty files that say their size and hold nothing, and mostly a map. ``reshard.plan`` or ``reshard.inspect``
runs in a process of its own; time and peak memory are printed. Nothing of a tensor is read or written.
"""

from __future__ import annotations

import argparse
import json
import math
import re
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
Map = Mapping[str, Any] | None


@dataclass(frozen=True)
class Case:
    """A checkpoint and a map for it.

    Attributes:
        about: what the map does, for the table.
        make: the shapes of the tensors and the map, for a number of tensors; None for no map.
        count: that number.
        call: the public function.
    """

    about: str
    make: Callable[[int], tuple[Shapes, Map]]
    count: int
    call: str = "plan"


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


def plain(count: int) -> tuple[Shapes, Map]:
    """The tensors of experts stay as they are."""
    return _apart(_layers(count)), None


def deepseek(count: int) -> tuple[Shapes, Map]:
    """The tensors of DeepSeek-V3, with their scales, are numbered and named anew: codes are only moved as they are."""
    return _of_model(count, 256, 3)


def kimi(count: int) -> tuple[Shapes, Map]:
    """The tensors of Kimi-K2 likewise."""
    return _of_model(count, 384, 1)


def kimi_weights(count: int) -> tuple[Shapes, Map]:
    """The tensors of Kimi-K2, with their scales and without a map."""
    return kimi(count)[0], None


HIDDEN, INNER, BLOCK = 7168, 2048, 128


def _of_model(count: int, experts: int, dense: int) -> tuple[Shapes, Map]:
    """A tree of about so many tensors, whose first ``dense`` layers have no experts, and a map that takes ``model.`` off their names."""
    layers = max(1, count // (2 * (len(_SHAPES) * (experts + 1) + 5)))
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(dense + layers):
        of, mlp = f"model.layers.{layer}", f"model.layers.{layer}.mlp"
        for name, shape in _ATTENTION.items():
            _add_weight(shapes, f"{of}.self_attn.{name}", shape)
        shapes |= {f"{of}.{name}.weight": (HIDDEN,) for name in _NORMS}
        if layer < dense:
            _add_projections(shapes, mlp, 9 * INNER)
            continue
        shapes |= {f"{mlp}.gate.weight": (experts, HIDDEN)}
        shapes |= {f"{mlp}.gate.e_score_correction_bias": (experts,)}
        for inner in ("shared_experts", *(f"experts.{number}" for number in range(experts))):
            _add_projections(shapes, f"{mlp}.{inner}", INNER)
    rules = {}
    for name in shapes:
        layer = int(name.split(".")[2])
        # The dense layers have rules of their own; numbers of an index begin at 0.
        index = "{l}" if ".mlp." not in name else str(layer) if layer < dense else f"{{l+{dense}}}"
        text = re.sub(r"experts\.\d+", "experts.{x}", name.replace(f".{layer}.", f".{index}.", 1))
        rules[text] = {"from": text, "to": text.removeprefix("model.")}
    return shapes, {"map": list(rules.values())}


_NORMS = ("input_layernorm", "post_attention_layernorm")
_ATTENTION = {
    "q_a_proj": (1536, HIDDEN), "q_b_proj": (24576, 1536), "kv_a_proj_with_mqa": (576, HIDDEN),
    "kv_b_proj": (32768, 512), "o_proj": (HIDDEN, 16384),
}  # fmt: skip


def _add_projections(shapes: dict[str, tuple[int, ...]], of: str, inner: int) -> None:
    for which in _SHAPES:
        shape = (HIDDEN, inner) if which == "down" else (inner, HIDDEN)
        _add_weight(shapes, f"{of}.{which}_proj", shape)


def _add_weight(shapes: dict[str, tuple[int, ...]], name: str, shape: tuple[int, ...]) -> None:
    """A weight in eight bits and the scales of its blocks."""
    shapes[f"{name}.weight"] = shape
    shapes[f"{name}.weight_scale_inv"] = tuple(-(-n // BLOCK) for n in shape)


# The small ones first: a process begins with what its parent holds, which makes the checkpoints.
CASES = {
    "copies": Case("a tensor and copies of it (`same_as`)", copies, 1_000),
    "rules": Case("tensors with a rule each", rules, 3_000),
    "drop": Case("tensors dropped by a pattern each", drop, 8_000),
    "deepseek": Case("DeepSeek-V3, weights and scales under other names", deepseek, 90_100),
    "kimi": Case("Kimi-K2: the same", kimi, 139_700),
    "dequantize": Case("Kimi-K2: the weights, dequantised", kimi_weights, 139_700, "dequantize"),
    "inspect": Case("`inspect`", plain, 300_000, "inspect"),
    "plain": Case("no map: every tensor as it is", plain, 300_000),
    "experts": Case(
        "a tensor for each expert of each layer → 3 for each layer", stack_experts, 300_000
    ),
    "stack": Case("the same → 3", stack, 300_000),
    "unstack": Case("3 stacked tensors → a tensor for each expert of each layer", unstack, 300_000),
}


def write_case(folder: Path, shapes: Shapes, map_: Map) -> tuple[Path, Path]:
    """The checkpoint, one file of safetensors without a byte of any tensor on disk, and the map."""
    source, text = folder / "source.safetensors", folder / "map.json"
    header, end = {}, 0
    for name, shape in shapes.items():
        dtype, itemsize = _dtype(name, shapes)
        begin, end = end, end + itemsize * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with source.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + end)
    text.write_text(json.dumps(map_))
    return source, text


def _dtype(name: str, shapes: Shapes) -> tuple[str, int]:
    """The dtype of a tensor, and the bytes of an element: a weight with scales has eight bits."""
    if f"{name}_scale_inv" in shapes:
        return "F8_E4M3", 1
    return ("F32", 4) if name.endswith("_scale_inv") else ("BF16", 2)


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


_CALLS = {
    "dequantize": """
import sys, reshard
reshard.plan(sys.argv[1], to="safetensors", dequantize="bfloat16", max_memory="4GiB")
""",
    "inspect": "import sys, reshard; reshard.inspect(sys.argv[1])",
    "plan": """
import json, pathlib, sys, reshard
map_ = json.loads(pathlib.Path(sys.argv[2]).read_text()) and sys.argv[2]
reshard.plan(sys.argv[1], to="safetensors", map=map_, max_memory="4GiB")
""",
}


def _rows(names: Iterable[str], share: float, limit: float) -> Iterable[str]:
    for name in names:
        case = CASES[name]
        count = max(1, round(case.count * share))
        with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
            source, text = write_case(Path(folder), *case.make(count))
            command = [sys.executable, "-c", _CALLS[case.call], str(source), str(text)]
            cost = run_once(command, source, REPOSITORY, limit)
        seconds = f"{cost.wall_s:.1f} | {cost.cpu_s:.1f}"
        yield f"| {case.about} | {count:,} | {seconds} | {cost.peak_mib:,.0f} |"


if __name__ == "__main__":
    main()
