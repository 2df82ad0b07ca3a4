"""``reshard diff`` on checkpoints of stock Orbax, against numpy on the arrays that stock Orbax restores."""

from __future__ import annotations

import json
import math
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.cli.app import run
from tests.campaigns import rarely
from tests.fresh_process import run_fresh
from tests.orbax_trees import (
    dtype_tree,
    expected_arrays,
    mesh,
    put,
    save_modes,
    save_pytree,
    save_standard,
    small_tree,
)

MIB = 1 << 20
LINE = mesh((8,), ("x",))


def nudged(tree):
    """A tree in which every third float leaf is changed here and there, laid out on another mesh."""
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(7)

    def change(number, leaf):
        if not isinstance(leaf, jax.Array) or not jax.numpy.issubdtype(leaf.dtype, np.floating):
            return leaf
        values = np.asarray(leaf).astype(np.float32)
        if number % 3 == 0:
            values = np.where(rng.random(values.shape) < 0.2, values + 0.5, values)
        axes = (
            [None] * (values.ndim - 1) + ["x"] if values.ndim and values.shape[-1] % 8 == 0 else []
        )
        return put(values.astype(leaf.dtype), *axes, on=LINE)

    return structure.unflatten([change(n, leaf) for n, leaf in enumerate(leaves)])


def restored(path):
    """Every array as stock Orbax restores it from a plain checkpoint, by name, as numpy."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(path)
    return expected_arrays(tree)


@pytest.fixture(scope="module")
def trees():
    """A tree and the one that is compared with it."""
    tree = small_tree()
    return tree, nudged(tree)


@pytest.fixture(scope="module")
def plain(trees, tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff") / "b"
    return save_pytree(folder, trees[1], use_ocdbt=False, use_zarr3=True)


@pytest.mark.parametrize("save", [s for _, s in save_modes()], ids=[i for i, _ in save_modes()])
def test_every_form_of_checkpoint_beside_numpy(save, trees, plain, tmp_path):
    a, b = map(expected_arrays, trees)
    found = reshard.diff(save(tmp_path / "a", trees[0]), plain)
    tensors = {name.removeprefix("state/"): t for name, t in found.tensors.items()}
    assert tensors.keys() == a.keys()
    for name, tensor in tensors.items():
        check(tensor, a[name], b[name])
    assert sum(t.is_difference for t in tensors.values()) == 5


def check(tensor, a, b):
    unlike = a != b
    assert tensor.elements == np.count_nonzero(unlike), tensor.name
    assert tensor.is_difference == bool(unlike.any())
    if not unlike.any():
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    sizes = np.abs(a - b)
    assert (tensor.largest, tensor.index) == (
        sizes.max(),
        tuple(map(int, np.unravel_index(sizes.argmax(), sizes.shape))),
    )
    norm = np.linalg.norm(a)
    expected = np.linalg.norm(a - b) / norm if norm else math.inf
    assert tensor.relative == pytest.approx(expected, rel=1e-12)


def test_what_stock_orbax_restores_is_what_is_compared(tmp_path):
    a = save_pytree(tmp_path / "a", {"w": np.arange(8.0), "v": np.ones(3)})
    b = save_pytree(
        tmp_path / "b", {"w": np.arange(8.0)[::-1].copy(), "v": np.ones(3)}, chunk_byte_size=8
    )
    found = reshard.diff(a, b).tensors
    one, other = restored(a), restored(b)
    for name, tensor in found.items():
        check(tensor, one[name], other[name])


def test_every_dtype_is_equal_to_itself_and_to_a_converted_one(tmp_path):
    a = save_pytree(tmp_path / "a", dtype_tree())
    reshard.convert(a, tmp_path / "b", mesh="x=2", compression="zstd")
    found = reshard.diff(a, tmp_path / "b")
    assert found.differences == 0
    assert {t.name for t in found.tensors.values()} == set(dtype_tree())


def test_a_cast_checkpoint_differs_by_rounding_only(tmp_path):
    values = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    a = save_standard(tmp_path / "a", {"w": put(values, "data", "model")})
    reshard.convert(a, tmp_path / "b", cast={"w": "bfloat16"}, mesh="data=2,model=4")
    (found,) = reshard.diff(a, tmp_path / "b").tensors.values()
    half = values.astype(jax.numpy.bfloat16).astype(np.float32)
    assert (found.compared_as, found.detail) == ("float64", "dtype float32 in A, bfloat16 in B")
    check(found, values, half)
    (back,) = reshard.diff(tmp_path / "b", tmp_path / "b", select=["w"]).tensors.values()
    assert repr(back) == "TensorDiff('w': equal)"


def test_leaves_that_are_no_tensors(tmp_path):
    common = {"w": np.ones(3), "same": "adam", "empty": {}}
    a = save_pytree(tmp_path / "a", common | {"note": "one", "gone": None, "kind": np.ones(2)})
    b = save_pytree(tmp_path / "b", common | {"note": "two", "kind": "two"})
    found = reshard.diff(a, b)
    assert {n: (x.status, x.a, x.b) for n, x in found.leaves.items() if x.is_difference} == {
        "note": ("different", "'one'", "'two'"),
        "gone": ("only in A", "None", None),
        "kind": ("different", "float64 of shape [2]", "'two'"),
    }
    assert {n for n, x in found.leaves.items() if not x.is_difference} == {"same", "empty"}
    assert found.differences == 3


def test_the_command(small, plain, tmp_path, capsys):
    a = small
    assert run(["diff", str(a), str(plain)]) == 3
    out = capsys.readouterr().out
    assert "different: 5 of 23 tensors, in " in out
    assert f"A = {a}\nB = {plain}\n" in out
    assert run(["diff", str(a), str(a), "--select", "^params/", "--drop", "layers"]) == 0
    assert capsys.readouterr().out.startswith("equal: 3 tensors, bit for bit, in ")
    assert run(["diff", str(a), str(plain), "--all", "--json", "--workers", "1"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["equal"] is False
    assert document["differences"] == sum(t["status"] != "equal" for t in document["tensors"])
    assert run(["diff", str(a), str(plain), "--max-memory", "1MiB"]) == 1
    assert "but 1 MiB are allowed; allow --max-memory of " in capsys.readouterr().err
    assert run(["diff", str(a), str(tmp_path / "nothing")]) == 1
    assert run(["diff", str(a)]) == 2
    assert run(["diff", str(a), str(plain), "--select", "typo"]) == 1
    assert "select 'typo' matches none of the " in capsys.readouterr().err


def test_a_step_of_a_run_and_an_item(tmp_path, capsys):
    w = np.arange(6.0)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2):
            items = {"model": {"w": w * step}, "ema": {"w": w}}
            args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
            manager.save(step, args=ocp.args.Composite(**args))
    other = tmp_path / "run" / "1" / "model"
    found = reshard.diff(tmp_path / "run", other, step="latest", item="model")
    assert found.tensors["w"].relative == 0.5
    words = [str(tmp_path / "run"), str(other), "--item", "model", "--step"]
    assert run(["diff", *words, "1"]) == 0
    assert run(["diff", *words, "2"]) == 3
    assert "w 1 5 83% 5 0.5" in " ".join(capsys.readouterr().out.split())


def test_damage_is_an_error_that_names_the_chunk(tmp_path, capsys):
    a = save_standard(tmp_path / "a", {"w": put(np.arange(64.0).reshape(8, 8), "data", "model")})
    reshard.convert(a, tmp_path / "b", mesh="data=8,model=1")
    (chunk,) = (f for f in (tmp_path / "b").rglob("w/*") if f.name != "zarr.json" and f.is_file())
    data = bytearray(chunk.read_bytes())
    data[3] ^= 1
    chunk.write_bytes(bytes(data))
    assert run(["diff", str(a), str(tmp_path / "b")]) == 1
    err = capsys.readouterr().err
    assert "tensor 'w', chunk [0, 0]: its CRC32C is recorded as" in err
    assert str(chunk) in err


DIFF = """
    import json, sys, reshard
    a, b, memory = sys.argv[1:]
    found = reshard.diff(a, b, max_memory=memory, workers=2)
    print(json.dumps([found.differences, found.tensors["w"].elements]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """96 MiB in float32 by rows in zstd, and one element other by columns."""
    root = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(0).integers(0, 99, (3072, 8192), np.uint8).astype(np.float32)
    save_standard(root / "rows", {"w": put(values, "x", on=LINE)})
    values[3000, 8000] = -1
    save_standard(root / "columns", {"w": put(values, None, "x", on=LINE)})
    yield root
    shutil.rmtree(root)


@pytest.mark.xdist_group("memory")
@pytest.mark.parametrize("mib", rarely([24, 64]))
def test_memory_stays_within_the_budget(large, mib):
    done = run_fresh(DIFF, str(large / "rows"), str(large / "columns"), f"{mib}MiB")
    assert done.printed == [1, 1]
    assert done.peak_bytes <= (128 + mib) * MIB
