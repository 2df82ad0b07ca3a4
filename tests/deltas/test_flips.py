"""Flipped bits of a base and of a delta, by the command: each is refused by name, with exit code 3 where data disagrees, or changes nothing."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from tests.delta_layout import bytes_of, changed, stored, write_full

LIKE = {
    "a": np.random.default_rng(5).integers(0, 256, 4000, dtype=np.uint8),
    "b": np.arange(500, dtype="f4"),
    "same": np.arange(100, dtype="f4"),
}
OLD = bytes_of(LIKE)
NEW = changed(OLD, 0.02, 1) | {"same": OLD["same"]}
FLIPS = 12
"""In each header, and in the data of each file."""


def regions(file: Path) -> list[range]:
    """The header of a file and its data; an index is all header."""
    size = file.stat().st_size
    if file.suffix != ".safetensors":
        return [range(size)]
    start = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    return [range(start), range(start, size)]


def flip(file: Path, place: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_flipped_bits(encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write_full(tmp_path / "v0", OLD, LIKE)
    new = write_full(tmp_path / "v1", NEW, LIKE)
    delta, target = tmp_path / "weight_v000001", tmp_path / "made" / "served"
    reshard.delta(old, new, delta, encoding=encoding, file_bytes=10)
    words = ["apply", "--quiet", str(old), str(delta), str(target)]
    codes: Counter[int] = Counter()
    rng = np.random.default_rng(1)
    for file in [*sorted(delta.iterdir()), *sorted(old.iterdir())]:
        sound = file.read_bytes()
        for part in regions(file):
            for place in rng.choice(part, FLIPS, replace=False):
                flip(file, place, int(rng.integers(0, 8)))
                code = run(words)
                said = "".join(capsys.readouterr().err.split())
                assert is_right(code, said, file, target), (file.name, place, code, said)
                shutil.rmtree(target.parent, ignore_errors=True)
                codes[code] += 1
                file.write_bytes(sound)
    assert codes[1] > FLIPS
    assert codes[3] > FLIPS


def is_right(code: int, said: str, file: Path, target: Path) -> bool:
    """Whether a flip changed nothing, or was refused: by its tensor and version and file where data disagrees, else by its file."""
    if code == 0:
        return stored(target) == NEW
    if any(target.parent.glob("*")):
        return False
    if code == 1:
        return str(file.parent) in said and file.name in said
    named = [name for name in LIKE if f"tensor'{name}'" in said]
    is_named = len(named) == 1 and ",version000001:" in said
    in_file = named == ["same"] or "isrecordedin" in said
    # A name, dtype or shape that the delta does not list is another base.
    is_other_base = str(file.parent) in said and "isnotthebaseof" in said
    return (is_named and in_file) or is_other_base


def test_a_flip_of_a_base_is_found_by_verify(tmp_path: Path) -> None:
    old = write_full(tmp_path / "v0", OLD, LIKE)
    delta = tmp_path / "weight_v000001"
    reshard.delta(old, write_full(tmp_path / "v1", NEW, LIKE), delta)
    assert run(["verify", "--quiet", str(old), "--delta", str(delta)]) == 0
    flip(old / "model.safetensors", -1, 3)
    assert run(["verify", "--quiet", str(old), "--delta", str(delta)]) == 3
