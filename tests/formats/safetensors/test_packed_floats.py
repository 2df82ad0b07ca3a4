"""Floats of 4 and 6 bits: several values share a byte, so that they are carried as bytes and never cast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import FormatError, LayoutError, PlanError, ReshardError
from reshard.formats.safetensors.header import read_header
from reshard.storage.location import locate
from tests.formats.safetensors.build import entry, file_of, packed
from tests.formats.safetensors.described import by_torch
from tests.oracles.oracle import Oracle

Raw = dict[str, tuple[str, list[int], bytes]]
"""dtype, shape and bytes as a file has them, by name."""

RNG = np.random.default_rng(4)
TENSORS: Raw = {
    "four": ("F4", [8, 16], RNG.bytes(64)),
    "six": ("F6_E2M3", [8, 8], RNG.bytes(48)),
    "also.six": ("F6_E3M2", [8, 8], RNG.bytes(48)),
    "scale": ("F8_E8M0", [8, 1], RNG.bytes(8)),
    "norm": ("F32", [4], RNG.bytes(16)),
}
PACKED = "four|six"
LAYOUT = {
    "mesh": {"data": 2, "model": 2},
    "rules": [{"match": PACKED, "axes": ["data", "model"]}],
    "unmatched": "replicate",
}


def raw_file(path: Path, tensors: Raw) -> Path:
    header, data = {}, b""
    for name, (dtype, shape, stored) in tensors.items():
        header[name] = entry(dtype, shape, len(data), len(data) + len(stored))
        data += stored
    path.write_bytes(packed(header, data))
    return path


def raw_tensors(folder: Path) -> Raw:
    """Every tensor of the files in a folder, without this project's reader."""
    found: Raw = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, one in header.items():
            begin, end = one["data_offsets"]
            found[name] = (one["dtype"], one["shape"], data[start + begin : start + end])
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    raw_file(folder / "model.safetensors", TENSORS)
    return folder


@pytest.mark.parametrize(("name", "shape"), [("four", (8, 8)), ("six", (8, 2)), ("scale", (8, 1))])
def test_an_element_is_whole_bytes(source: Path, name: str, shape: tuple[int, ...]) -> None:
    assert reshard.inspect(source).tensors[name].spec.shape == shape


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"file_bytes": 100},
        {"files": "ranks", "layout": LAYOUT},
        {"files": "dcp", "layout": LAYOUT},
    ],
    ids=str,
)
def test_every_form_keeps_every_byte(source: Path, tmp_path: Path, options: Any) -> None:
    reshard.convert(source, tmp_path / "made", **options)
    assert reshard.verify(source, tmp_path / "made").differences == 0
    reshard.convert(
        tmp_path / "made",
        tmp_path / "back",
        layout={"unmatched": "replicate", "rules": [], "mesh": {"one": 1}},
        files="shards",
    )
    assert raw_tensors(tmp_path / "back") == TENSORS


def test_one_file_keeps_every_byte(source: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "one.safetensors")
    assert raw_tensors(tmp_path) == TENSORS


def test_a_rank_file_counts_values(source: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "ranks", files="ranks", layout=LAYOUT)
    data = np.frombuffer(TENSORS["four"][2], "u1").reshape(8, 8)
    header = tmp_path / "ranks" / "model-rank-00003-of-00004.safetensors"
    record = json.loads(read_header(locate(header)).metadata["reshard.slices"])
    assert record["tensors"]["four"] == {"offset": [4, 8], "full_shape": [8, 16]}
    only = tmp_path / "only"
    only.mkdir()
    header.rename(only / header.name)
    assert raw_tensors(only)["four"] == ("F4", [4, 8], data[4:, 4:].tobytes())


@pytest.mark.xdist_group("torch")
def test_torch_reads_four_bits_as_the_same_elements(torch: Oracle, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    raw_file(tmp_path / "source" / "a.safetensors", {"four": TENSORS["four"]})
    reshard.convert(tmp_path / "source", tmp_path / "made")
    found = by_torch(torch, tmp_path / "made")
    assert found == by_torch(torch, tmp_path / "source")
    told = reshard.inspect(tmp_path / "made").tensors["four"].spec
    assert (found["four"]["dtype"], found["four"]["shape"]) == (told.dtype, list(told.shape))


def test_a_changed_byte_is_seen(source: Path, tmp_path: Path) -> None:
    changed = {
        n: (d, s, b"\xff" + b[1:] if b[0] != 255 else b"\0" + b[1:])
        for n, (d, s, b) in TENSORS.items()
    }
    raw_file(tmp_path / "changed.safetensors", changed)
    found = reshard.diff(source, tmp_path / "changed.safetensors").tensors
    assert {name: found[name].elements for name in ("four", "six", "also.six")} == {
        "four": 1,
        "six": 1,
        "also.six": 1,
    }


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda source, to: reshard.convert(source, to, to="orbax"), PlanError,
         "'four' is float4_e2m1fn_x2, 2 values in a byte, which Orbax checkpoints cannot hold; leave it out (drop), or write "
         "safetensors (to)"),
        (lambda source, to: reshard.convert(source, to, cast=[("float", "bfloat16")]), PlanError,
         "cast float=bfloat16 takes 'four' of dtype float4_e2m1fn_x2, 2 values in a byte, which is never cast; narrow the rule "
         "so that it leaves the tensor out, or drop the tensor (drop)"),
        (lambda source, to: reshard.convert(source, to, cast=[("^six", "bfloat16")]), PlanError,
         "cast '^six'=bfloat16 matches 'six' of dtype float6_e2m3fn_x4, 4 values in 3 bytes, which is never cast"),
        (lambda source, _: reshard.restore(source), FormatError,
         "'four' and 2 more is float4_e2m1fn_x2, 2 values in a byte, for which numpy and jax have no type; leave it out (drop)"),
        (lambda source, to: reshard.convert(source, to, files="ranks", layout={
            "mesh": {"model": 16}, "rules": [{"match": "^four", "axes": [None, "model"]}], "unmatched": "replicate"}),
         LayoutError, "'four' of shape [8, 8]: dimension 1 of size 8 does not divide into 16 parts"),
    ],
)  # fmt: skip
def test_what_would_open_a_byte_is_refused(
    source: Path, tmp_path: Path, call: Any, error: type[ReshardError], message: str
) -> None:
    with pytest.raises(error) as caught:
        call(source, tmp_path / "made")
    assert message in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_the_others_convert_once_they_are_dropped(source: Path, tmp_path: Path) -> None:
    drop = [PACKED]
    reshard.convert(source, tmp_path / "made", to="orbax", drop=drop)
    assert list(reshard.inspect(tmp_path / "made").tensors) == ["scale", "norm"]
    restored = reshard.restore(source, drop=drop)
    assert restored["norm"].tobytes() == TENSORS["norm"][2]


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes", "message"),
    [
        ("F4", [2, 3], 3, "[2, 3] of F4, 2 values in a byte; expected a last number that 2 divides"),
        ("F6_E2M3", [2, 2], 3, "[2, 2] of F6_E2M3, 4 values in 3 bytes; expected a last number that 4 divides"),
        ("F4", [], 1, "[] of F4, 2 values in a byte"),
    ],
)  # fmt: skip
def test_a_row_that_ends_inside_a_byte_is_refused(
    tmp_path: Path, dtype: str, shape: list[int], nbytes: int, message: str
) -> None:
    path = file_of(tmp_path, packed({"w": entry(dtype, shape, 0, nbytes)}, bytes(nbytes)))
    with pytest.raises(FormatError) as error:
        read_header(locate(path))
    assert str(error.value) == (
        f"{path}: tensor 'w' is {message}; leave the file out, or store the tensor as U8"
        if message.endswith("divides")
        else f"{path}: tensor 'w' is {message}; expected a last number that 2 divides; leave the file out, or store the "
        "tensor as U8"
    )
