"""Whole conversions: stock Orbax saves, this project converts, stock Orbax restores the same bits."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1

import reshard
from tests.campaigns import singly
from tests.equal import assert_same_trees
from tests.orbax_trees import (
    DTYPES,
    mesh,
    put,
    random_array,
    save_half_merged,
    save_manager_items,
    save_modes,
    save_pytree,
    save_standard,
    save_unmerged,
    save_v1,
    small_tree,
)
from tests.orbax_warnings import warnings_of
from tests.public.convert.restored import main_item, restore_tree

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


MODES = save_modes()


LINE = mesh((8,), ("x",))


LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [
        {"match": "kernel|layers/0|other_mesh", "axes": ["x"]},
        {"match": "layers/1", "axes": [None, "x"]},
    ],
    "unmatched": "replicate",
}


SPLIT_ROWS = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": ".", "axes": ["x"]}]}


SPLIT_COLUMNS = {**SPLIT_ROWS, "rules": [{"match": ".", "axes": [None, "x"]}]}


@pytest.fixture(scope="module")
def tree():
    return small_tree()


@pytest.fixture(scope="module")
def restored(small):
    """The tree that stock Orbax restores of ``small``."""
    return restore_tree(small)


@pytest.mark.parametrize("save", [s for _, s in MODES], ids=[i for i, _ in MODES])
def test_every_mode_of_saving_is_converted(save, tree, tmp_path):
    source = save(tmp_path / "source", tree)
    report = reshard.convert(source, tmp_path / "target", layout=LAYOUT, max_memory="64MiB")
    assert {t.proof for t in report.tensors} == {"written"}
    assert all(t.source_digest == t.target_digest for t in report.tensors)
    if save in (
        save_unmerged,
        save_half_merged,
    ):  # stock Orbax itself reads only what it has merged
        source = save_pytree(tmp_path / "merged", tree)
    found = restore_tree(tmp_path / "target")
    assert_same_trees(found, restore_tree(source))
    kernel = found["params"]["dense"]["kernel"]
    assert kernel.sharding == NamedSharding(LINE, PartitionSpec("x", None))
    assert found["params"]["a.b"]["c/d"].sharding == NamedSharding(LINE, PartitionSpec())
    assert reshard.verify(tmp_path / "target").differences == 0


@pytest.mark.parametrize("use_zarr3", [False, True])
@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_every_dtype_is_converted(use_zarr3, use_ocdbt, tmp_path):
    arrays = {n: put(a, "data", "model") for n, a in dtype_arrays().items()}
    save_pytree(
        tmp_path / "source", arrays, use_zarr3=use_zarr3, use_ocdbt=use_ocdbt, chunk_byte_size=16
    )
    reshard.convert(tmp_path / "source", tmp_path / "target", layout=SPLIT_COLUMNS)
    found = restore_tree(tmp_path / "target")
    assert_same_trees(found, arrays)
    columns = NamedSharding(LINE, PartitionSpec(None, "x"))
    assert {n for n, a in found.items() if a.sharding != columns} == set()


def dtype_arrays():
    """As jax holds them: without 64 bits."""
    rng = np.random.default_rng(2)
    wide = ("int64", "uint64", "float64", "complex128")
    return {d: random_array(rng, (12, 16), d) for d in DTYPES if d not in wide}


def test_sixty_four_bits_are_converted(tmp_path):
    rng = np.random.default_rng(2)
    arrays = {
        d: random_array(rng, (12, 16), d) for d in ("int64", "uint64", "float64", "complex128")
    }
    save_pytree(tmp_path / "source", arrays)
    reshard.convert(tmp_path / "source", tmp_path / "target")
    assert_same_trees(restore_tree(tmp_path / "target"), arrays)


@pytest.mark.parametrize(
    ("compression", "ocdbt"),
    singly(["none", "zstd", "zstd:9", "gzip", "blosc", "keep"], [False, True]),
)
def test_every_compression_and_packing_is_restored(compression, ocdbt, small, restored, tmp_path):
    target = tmp_path / "target"
    reshard.convert(small, target, layout=LAYOUT, compression=compression, ocdbt=ocdbt)
    assert (target / "manifest.ocdbt").exists() == ocdbt
    assert_same_trees(restore_tree(target), restored)
    assert reshard.verify(small, target).differences == 0


@pytest.mark.parametrize("save", [save_standard, save_v1, partial(save_pytree, use_zarr3=True)])
def test_identical_chunks_are_copied_encoded_and_proved_when_read_back(save, tree, tmp_path):
    source = save(tmp_path / "source", tree)
    report = reshard.convert(source, tmp_path / "target", compression="keep", check="readback")
    assert {t.strategy for t in report.tensors if t.nbytes} == {"copy"}
    assert {t.proof for t in report.tensors} == {"proved"}
    assert_same_trees(restore_tree(tmp_path / "target"), restore_tree(source))


@pytest.mark.parametrize("style", ["v0", "v1"])
@pytest.mark.parametrize("save", [save_standard, save_v1], ids=["from v0", "from v1"])
def test_either_style_is_written_from_either(save, style, tree, tmp_path):
    source = save(tmp_path / "source", tree)
    reshard.convert(source, tmp_path / "target", layout=LAYOUT, style=style)
    expected = restore_tree(source)
    assert_same_trees(restore_tree(tmp_path / "target"), expected)
    assert_same_trees(v1.load(tmp_path / "target"), expected)


@pytest.mark.parametrize("restore", ["v0", "v1"])
@pytest.mark.parametrize("save", [save_standard, save_v1], ids=["from v0", "from v1"])
def test_a_target_brings_namedtuples_and_keys_back(save, restore, tree, tmp_path):
    source = save(tmp_path / "source", tree)
    reshard.convert(source, tmp_path / "target", layout=LAYOUT)
    target = jax.tree.map(on_line, tree)
    if restore == "v1":
        found = v1.load(tmp_path / "target", target)
    else:
        found = ocp.StandardCheckpointer().restore(main_item(tmp_path / "target"), target)
    assert isinstance(found["opt"][0], optax.ScaleByAdamState)
    assert jnp.issubdtype(found["keys"].dtype, jax.dtypes.prng_key)
    assert found["other_mesh"].sharding == NamedSharding(LINE, PartitionSpec("x"))
    assert_same_trees(found, tree)


def on_line(leaf):
    """The leaf as a target on the mesh of eight."""
    if not isinstance(leaf, jax.Array):
        return leaf
    split = leaf.ndim and leaf.shape[0] % 8 == 0
    sharding = NamedSharding(LINE, PartitionSpec("x") if split else PartitionSpec())
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def test_a_step_with_several_items_is_read_by_the_manager(tree, tmp_path):
    source = save_manager_items(tmp_path / "source", tree)
    reshard.convert(source, tmp_path / "target/12", layout=LAYOUT)
    with ocp.CheckpointManager(tmp_path / "target", item_names=("state", "meta")) as manager:
        assert manager.all_steps() == [12]
        found = manager.restore(
            12, args=ocp.args.Composite(state=ocp.args.PyTreeRestore(), meta=ocp.args.JsonRestore())
        )
        assert manager.metrics(12) == {"loss": 0.5}
    assert found.meta == {"epoch": 2}
    assert_same_trees(found.state, restore_tree(source))


def test_two_trees_in_one_step_are_both_converted(tmp_path):
    trees = {
        "params": {"w": put(np.arange(64, dtype=np.float32), "data")},
        "ema": {"w": put(np.ones(8))},
    }
    with ocp.CheckpointManager(tmp_path / "source") as manager:
        args = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        manager.save(1, args=ocp.args.Composite(**args))
        manager.wait_until_finished()
    layout = {
        **SPLIT_ROWS,
        "rules": [{"match": "^params/w$", "axes": ["x"]}],
        "unmatched": "replicate",
    }
    reshard.convert(tmp_path / "source/1", tmp_path / "target/1", layout=layout)
    with ocp.CheckpointManager(tmp_path / "target") as manager:
        args = {name: ocp.args.StandardRestore() for name in trees}
        found = manager.restore(1, args=ocp.args.Composite(**args))
    assert_same_trees({name: found[name] for name in trees}, trees)
    assert found.params["w"].sharding == NamedSharding(LINE, PartitionSpec("x"))
    assert found.ema["w"].sharding == NamedSharding(LINE, PartitionSpec(None))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_select_drop_rename_and_cast_in_one_pass(compression, tree, small, tmp_path):
    report = reshard.convert(
        small,
        tmp_path / "target",
        layout=SPLIT_ROWS,
        select=["^params/"],
        drop=["a\\.b"],
        rename={"^params/(.*)": r"serving/\1"},
        cast={"kernel": "bfloat16", "layers": "float16"},
        compression=compression,
    )
    found = restore_tree(tmp_path / "target")
    params = tree["params"]
    expected = {
        "dense": {
            "kernel": np.asarray(params["dense"]["kernel"]).astype(ml_dtypes.bfloat16),
            "bias": np.asarray(params["dense"]["bias"]),
        },
        "layers": [np.asarray(a).astype(np.float16) for a in params["layers"]],
    }
    assert_same_trees(found, {"serving": expected})
    kernel = next(t for t in report.tensors if t.target == "serving/dense/kernel")
    assert (kernel.source, kernel.source_dtype, kernel.target_dtype) == (
        "params/dense/kernel",
        "float32",
        "bfloat16",
    )
    assert 0 < kernel.cast.largest_relative_error <= 2**-8
    assert (kernel.cast.overflows, kernel.cast.nans) == (0, 0)
    assert reshard.verify(tmp_path / "target").differences == 0


def test_small_target_chunks_and_an_uneven_partition_are_restored(small, restored, tmp_path):
    layout = {
        "mesh": {"axes": ["x"], "shape": [8]},
        "partitions": [{"match": "dense/kernel", "fixed_shards": 6, "axis": 0}],
        "unmatched": "replicate",
    }
    reshard.convert(small, tmp_path / "target", layout=layout, chunk_bytes=512)
    assert_same_trees(restore_tree(tmp_path / "target"), restored)
    files = [p for p in (tmp_path / "target/params.dense.kernel").rglob("*") if p.is_file()]
    assert max(p.stat().st_size for p in files) <= 1024


def test_stock_warns_of_nothing_new(tree, tmp_path):
    for style, save in (("v0", save_standard), ("v1", save_v1)):
        save(tmp_path / "own" / style, tree)
        reshard.convert(tmp_path / "own" / style, tmp_path / "new" / style, layout=LAYOUT)
        reshard.convert(
            tmp_path / "own" / style, tmp_path / "packed" / style, layout=LAYOUT, ocdbt=True
        )
    paths = [tmp_path / who / style for who in ("own", "new", "packed") for style in ("v0", "v1")]
    said = warnings_of(*paths)
    own, new, packed = (said[n] | said[n + 1] for n in (0, 2, 4))
    assert any("Sharding info not provided" in line for line in own)
    assert (new - own, packed - own) == (set(), set())


def test_any_executor_carries_a_conversion_out(small, restored, tmp_path):
    target = tmp_path / "target"
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        reshard.convert(small, target, layout=LAYOUT, executor=executor)
        assert_same_trees(restore_tree(target), restored)
        refusal = "an OCDBT database is written by one process, but the tasks run in others; leave"
        with pytest.raises(reshard.PlanError, match=refusal):
            reshard.convert(small, tmp_path / "db", layout=LAYOUT, executor=executor, ocdbt=True)


def test_progress_grows_to_the_end(small, tmp_path):
    seen = []
    reshard.convert(
        small, tmp_path / "target", layout=LAYOUT, progress=seen.append, check="readback"
    )
    assert [k for k, _ in itertools.groupby(p.stage for p in seen)] == [
        "copying",
        "reading back",
        "syncing",
    ]
    for _, group in itertools.groupby(seen, lambda p: p.stage):
        steps = list(group)
        assert all(a.moved_bytes <= b.moved_bytes for a, b in itertools.pairwise(steps))
        assert steps[-1].moved_bytes == steps[-1].total_bytes


def test_progress_counts_every_copy_of_a_slice(tmp_path):
    """Files of ranks hold what is replicated once for each device; reading back compares all of them."""
    source, seen = save_standard(tmp_path / "source", {"w": np.ones((64, 32), np.float32)}), []
    layout = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": []}
    options = {"layout": layout, "to": "safetensors", "files": "ranks", "check": "readback"}
    reshard.convert(source, tmp_path / "target", progress=seen.append, **options)
    once, copies = 64 * 32 * 4, 4
    back = [p for p in seen if p.stage == "reading back"]
    assert {p.total_bytes for p in back} == {once + copies * once}
    assert [back[0].moved_bytes, back[-1].moved_bytes] == [once, once + copies * once]
    seen.clear()
    reshard.verify(tmp_path / "target", progress=seen.append)
    read = [p for p in seen if p.stage == "reading"]
    assert (read[-1].moved_bytes, read[-1].total_bytes) == (5 * once, 5 * once)
