"""The identity is the one that its definition gives, whatever the layout; committed vectors hold it for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.geometry.dtypes import DTYPES, NOT_STORED
from tests import identity_by_recursion as by_recursion

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())

SHAPES = {
    "scalar": (),
    "empty": (0, 5),
    "one": (1,),
    "short": (1000,),
    "long": (100_003,),
    "rows": (50_257, 3),
    "columns": (3, 50_257),
    "odd": (301, 257),
    "layers": (5, 130, 210),
    "experts": (3, 5, 67, 129),
    "narrow": (70_000, 1, 2),
}


def numbers(shape: tuple[int, ...], dtype: str, start: int = 0) -> Any:
    """Elements whose bytes follow from their place alone."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    count = int(np.prod(shape)) * kind.itemsize
    data = (np.arange(start, start + count, dtype=np.uint64) * 2_654_435_761 >> 7).astype(np.uint8)
    if dtype == "bool":
        data &= 1
    return data.view(kind).reshape(shape)


def arrays() -> dict[str, Any]:
    found = {name: numbers(shape, "float32", n) for n, (name, shape) in enumerate(SHAPES.items())}
    return found | {dtype: numbers((129, 301), dtype) for dtype in plain_dtypes()}


def plain_dtypes() -> list[str]:
    """Those of which a byte holds no more than the value, and which safetensors knows."""
    known = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
             "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64"}  # fmt: skip
    return [d for d in DTYPES if d in known and d not in NOT_STORED]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "all.safetensors"
    save_file(arrays(), path)
    return path


def test_the_vectors_are_those_of_the_definition() -> None:
    root, contents = by_recursion.roots(arrays())
    tops = {name: by_recursion.top(array).hex() for name, array in arrays().items()}
    assert {"root": root, "contents": contents, "tops": tops} == VECTORS


def test_a_file_has_the_identity_of_its_arrays(saved: Path) -> None:
    found = reshard.identify(saved)
    assert {name: t.top for name, t in found.tensors.items()} == VECTORS["tops"]
    assert (found.root, found.contents) == (VECTORS["root"], VECTORS["contents"])


@pytest.mark.parametrize("dtype", ["int4", "int2", "float4_e2m1fn"])
def test_bits_beyond_the_value_do_not_count(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype))
    bits = 2 if "2" in dtype and dtype.startswith("int") else 4
    clean = (np.arange(600, dtype=np.uint8) % (1 << bits)).reshape(20, 30)
    roots = []
    for number, extra in enumerate((0, 0xFF << bits & 0xFF)):
        path = tmp_path / str(number)
        reshard.save(path, {"w": (clean | extra).view(kind)})
        roots.append(reshard.identify(path).tensors["w"].top)
    assert roots == [by_recursion.top(clean).hex()] * 2


def over_a_mesh() -> reshard.LayoutMap:
    layout = reshard.LayoutMap(reshard.DeviceMesh((2, 3), ("x", "y")))
    layout["layers"] = (None, "x", "y")
    layout["columns"] = ("y", None)
    layout["narrow"] = ("x",)
    return layout


@pytest.mark.parametrize(
    "options",
    [
        {"to": "orbax"},
        {"to": "orbax", "ocdbt": True},
        {"to": "orbax", "compression": "none"},
        {"to": "orbax", "chunk_bytes": 50_000},
        {"to": "safetensors", "file_bytes": 100_000},
        {"to": "dcp"},
        {"to": "orbax", "layout": over_a_mesh()},
        {"to": "safetensors", "layout": over_a_mesh(), "files": "dcp"},
    ],
    ids=["zstd", "ocdbt", "raw", "chunks", "files", "dcp", "mesh", "slices"],
)
@pytest.mark.parametrize("max_memory", [None, "24MiB"])
def test_every_form_has_one_root(
    options: dict[str, Any], max_memory: str | None, saved: Path, tmp_path: Path
) -> None:
    reshard.convert(saved, tmp_path / "t", **options)
    found = reshard.identify(tmp_path / "t", max_memory=max_memory)
    assert found.root == VECTORS["root"]


def test_another_bit_name_dtype_shape_or_order_has_another_root(tmp_path: Path) -> None:
    w = numbers((301, 257), "float32")
    flipped = w.copy()
    flipped.view(np.uint32)[300, 256] ^= 1 << 31
    swapped = np.concatenate([w[150:300], w[:150], w[300:]])
    trees = {
        "as it is": {"a": w, "b": w[:2]},
        "a bit": {"a": flipped, "b": w[:2]},
        "leaves": {"a": swapped, "b": w[:2]},
        "names": {"b": w, "a": w[:2]},
        "another name": {"c": w, "b": w[:2]},
        "dtype": {"a": w.view(np.int32), "b": w[:2]},
        "shape": {"a": w.reshape(257, 301), "b": w[:2]},
        "one more": {"a": w, "b": w[:2], "c": w[:1]},
    }
    roots, contents = {}, {}
    for number, (what, tree) in enumerate(trees.items()):
        save_file(tree, tmp_path / f"{number}.safetensors")
        found = reshard.identify(tmp_path / f"{number}.safetensors")
        roots[what], contents[what] = found.root, found.contents
        assert (found.root, found.contents) == by_recursion.roots(tree)
    assert len(set(roots.values())) == len(trees)
    assert contents["names"] == contents["another name"] == contents["as it is"]
    assert len(set(contents.values())) == len(trees) - 2
