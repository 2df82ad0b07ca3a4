"""Arithmetic in the stream beside the least that it needs: ``python -m benchmarks.arithmetic.run [averages] [codes] [lora] [--mib 512]``.

Each contender is a fresh process, in turn, each round beginning with another, timed until its output is on the disk. With ``--cold`` the
sources are dropped from the system's cache before each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.conversion.rounds import REPOSITORY, tell
from benchmarks.measure import Cost, run_once

RESHARD = str(Path(sys.executable).parent / "reshard")
AVERAGE = [sys.executable, "-m", "benchmarks.peers.average_by_hand"]
BUDGET = ["--quiet", "--max-memory", "1GiB"]
INPUTS = 8
SIZE, RANKS = 4096, (16, 32)
LIMIT_S = 1800


def averages(given: argparse.Namespace, work: Path) -> None:
    """Eight bfloat16 checkpoints averaged in one pass, beside reading them and writing one."""
    sources = [str(work / str(number)) for number in range(INPUTS)]
    for number, source in enumerate(sources):
        subprocess.run([*AVERAGE, "make", str(given.mib), str(number), source], cwd=REPOSITORY, check=True)  # fmt: skip
    commands = {
        "read eight, write one": [*AVERAGE, "read", *sources],
        "by hand, whole tensors": [*AVERAGE, "mean", *sources],
        "reshard convert of one": [RESHARD, "convert", *BUDGET, sources[0]],
        "reshard merge of eight": [RESHARD, "merge", *BUDGET, *sources],
    }
    _compare(f"{INPUTS} checkpoints of {given.mib} MiB", commands, given, work)


def codes(given: argparse.Namespace, work: Path) -> None:
    """fp8 of DeepSeek, 4096 × 4096 with scales of blocks of 128 × 128, made bfloat16, beside compressed-tensors."""
    rng, source = np.random.default_rng(0), work / "fp8"
    source.mkdir()
    weight_map = {}
    for number in range(max(1, given.mib // 128)):  # 128 MiB a file
        file, tensors = f"model-{number:05}.safetensors", {}
        for layer in range(8 * number, 8 * number + min(8, given.mib // 16)):
            name = f"model.layers.{layer}.mlp.up_proj.weight"
            tensors[name] = rng.integers(0, 120, (SIZE, SIZE), np.uint8).view(ml_dtypes.float8_e4m3fn)  # fmt: skip
            tensors[f"{name}_scale_inv"] = rng.random((SIZE // 128,) * 2, np.float32)
        save_file(tensors, source / file)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    how = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (source / "config.json").write_text(json.dumps({"quantization_config": how}))
    options = ["--quiet", "--max-memory", "256MiB", "--dequantize", "bfloat16", "--carry"]
    torch = str(REPOSITORY / ".oracles/torch/bin/python")
    peer = str(REPOSITORY / "benchmarks/peers/dequantize_by_shard.py")
    commands = {
        "compressed-tensors": [torch, peer, str(source)],
        "reshard convert --dequantize": [RESHARD, "convert", *options, str(source)],
    }
    _compare(f"{given.mib} MiB of codes", commands, given, work)


def lora(given: argparse.Namespace, work: Path) -> None:
    """An adapter merged into every weight of a base, bfloat16 of 4096 × 4096, beside a plain conversion of it."""
    rng = np.random.default_rng(0)
    names = [f"model.layers.{number}.mlp.up_proj" for number in range(max(1, given.mib // 32))]
    weight = rng.normal(size=(SIZE, SIZE)).astype(ml_dtypes.bfloat16)
    for folder in ("base", *map(str, RANKS)):
        (work / folder).mkdir()
    for number, name in enumerate(names):
        save_file({f"{name}.weight": weight}, work / "base" / f"model-{number:05}.safetensors")
    convert = [RESHARD, "convert", *BUDGET, str(work / "base")]
    commands = {"reshard convert": convert}
    for rank in RANKS:
        folder = work / str(rank)
        shapes = {"A": (rank, SIZE), "B": (SIZE, rank)}
        factors = {
            f"base_model.model.{name}.lora_{factor}.weight": rng.normal(size=shape).astype(np.float32)
            for name in names
            for factor, shape in shapes.items()
        }  # fmt: skip
        save_file(factors, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 0.01}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        commands[f"with an adapter of rank {rank}"] = [*convert, "--lora", str(folder)]
    _compare(f"a base of {given.mib} MiB", commands, given, work)


def _compare(
    what: str, commands: dict[str, list[str]], given: argparse.Namespace, work: Path
) -> None:
    """Runs the commands in turn, each with a target behind, and prints a table of all beside the first."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    names = list(commands)
    for turn in range(given.rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            if given.cold:
                _forget(work)
            target = work / "made"
            costs[name].append(run_once([*commands[name], str(target)], target, REPOSITORY, LIMIT_S))  # fmt: skip
            tell(f"round {turn + 1}/{given.rounds}: {name}: {costs[name][-1].wall_s:.2f} s")
            shutil.rmtree(target)
    least = costs[names[0]]
    print(f"\n{what}, {'cold' if given.cold else 'warm'}\n")
    print(f"| medians | wall s | CPU s | peak MiB | × {names[0]} |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in names:
        found = costs[name]
        wall, cpu, peak = (
            statistics.median(getattr(cost, what) for cost in found)
            for what in ("wall_s", "cpu_s", "peak_mib")
        )
        ratio = statistics.median(a.wall_s / b.wall_s for a, b in zip(found, least, strict=True))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {peak:.0f} | {ratio:.2f} |", flush=True)


def _forget(folder: Path) -> None:
    """Drops the files below a folder from the system's cache."""
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


PARTS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "averages": averages,
    "codes": codes,
    "lora": lora,
}


def main() -> None:
    """Parse the command line, measure, print a table for each part."""
    parser = argparse.ArgumentParser(description="Measure arithmetic over checkpoints.")
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--mib", type=int, default=512, help="of each checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="read from the disk")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    for part in given.parts:
        work = Path(tempfile.mkdtemp(prefix=f"{part}-", dir=given.work))
        try:
            PARTS[part](given, work)
        finally:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
