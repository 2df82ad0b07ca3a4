"""The page on checking weights: its program runs with the real torch, without reshard, and finds what reshard would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import blake3
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from tests.docs.page import FILE_NAME, Step, code_of, is_as_shown, steps
from tests.docs.run_page import DOCS, run_steps
from tests.oracles.oracle import ENVIRONMENTS

PAGE = DOCS / "how-to" / "check-weights-in-your-server.md"

pytestmark = pytest.mark.xdist_group("torch")


def with_torch(folder: Path, *words: str) -> str:
    """What a program prints in the environment of torch, which has blake3 besides, and no reshard."""
    packages = folder / "packages"
    if not packages.exists():
        shutil.copytree(Path(blake3.__file__).parent, packages / "blake3")
    done = subprocess.run(
        [ENVIRONMENTS.resolve() / "torch" / "bin" / "python", *words],
        cwd=folder, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout


def is_for_torch(step: Step) -> bool:
    return step.kind == "command" and step.text.startswith("python serve.py ")


def test_the_page_runs(tmp_path: Path) -> None:
    assert PAGE.name == "check-weights-in-your-server.md"
    every = steps(PAGE.read_text("utf-8"))
    run_steps(PAGE, [step for step in every if not is_for_torch(step)], tmp_path)
    (served,) = filter(is_for_torch, every)
    said = with_torch(tmp_path, *served.text.split()[1:])
    assert served.shown
    assert is_as_shown(served.shown, said), said


CHECKS = """
import json, sys
import torch
from check_weights import check, load
from safetensors.torch import load_file

known, tensors = load("identity", sys.argv[1]), load_file("model.safetensors")
assert "reshard" not in sys.modules
found = {name: [tensors[name].nbytes, *check(known[name], tensors[name])] for name in known}
w = tensors["w"]
shards = {
    "rows": (w[:375], [0, 0]),
    "columns": (w[:, 550:].t().contiguous().t(), [0, 550]),
    "cut": (w[:, :700], [0, 0]),
}
for name, (shard, start) in shards.items():
    found[name] = [shard.nbytes, *check(known["w"], shard, start)]
flipped = w.clone()
flipped.view(torch.int32)[1400, 600] ^= 1
found["flipped"] = [w.nbytes, *check(known["w"], flipped)]
found["moved"] = [0, *check(known["w"], w[750:], [0, 0])]
errors = []
for call in (lambda: load("identity", "0" * 64), lambda: check(known["w"], w.double()), lambda: check(known["w"], w, [1, 0])):
    try:
        call()
    except ValueError as error:
        errors.append(str(error))
print(json.dumps([found, errors]))
"""


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    made: dict[str, Any] = {
        "w": rng.normal(size=(1500, 1100)).astype(np.float32),
        "experts": rng.normal(size=(3, 130, 2050)).astype(np.float16),
        "scalar": np.array(3, np.float32),
        "empty": np.zeros((0, 7), np.float32),
        "bool": rng.random(size=70_001) < 0.5,
        "complex": rng.normal(size=(40, 301)).astype(np.complex64),
    }
    for dtype in ("bfloat16", "float8_e4m3fn", "int64", "uint8"):
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        made[dtype] = rng.integers(0, 100, size=(301, 257)).astype(kind)
    return made


def test_every_kind_of_tensor_and_shard(tmp_path: Path) -> None:
    (program,) = (t for t in code_of(PAGE, "python") if t.startswith("# check_weights.py"))
    assert FILE_NAME.match(program)
    (tmp_path / "check_weights.py").write_text(program)
    (tmp_path / "checks.py").write_text(CHECKS)
    given = arrays()
    save_file(given, tmp_path / "model.safetensors")
    root = reshard.identify(tmp_path / "model.safetensors", out=tmp_path / "identity").root
    found, errors = json.loads(with_torch(tmp_path, "checks.py", root))
    for name in given:
        nbytes, proved, differs = found[name]
        assert (nbytes, differs) == (given[name].nbytes, [])
        assert proved == nbytes
    # Of 4 nodes of 750 × 550 elements: half of the upper ones, the right ones, the left ones and a part of the right ones.
    assert found["rows"] == [375 * 1100 * 4, 0, []]
    assert found["columns"] == [1500 * 550 * 4, 1500 * 550 * 4, []]
    assert found["cut"] == [1500 * 700 * 4, 1500 * 550 * 4, []]
    assert found["flipped"] == [1500 * 1100 * 4, 3 * 750 * 550 * 4, [[[750, 1500], [550, 1100]]]]
    assert found["moved"] == [0, 0, [[[0, 750], [0, 550]], [[0, 750], [550, 1100]]]]
    assert errors == [
        f"the files in identity are not those of the root {'0' * 64}",
        "torch.float64 up to [1500, 1100] is no shard of torch.float32 [1500, 1100]",
        "torch.float32 up to [1501, 1100] is no shard of torch.float32 [1500, 1100]",
    ]
