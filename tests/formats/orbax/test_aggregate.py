"""Values kept in the msgpack file ``checkpoint``: which leaves they are, what is refused, and what is never held in memory.

What real old versions wrote is in ``tests/public/test_old_orbax.py``; here the file is made by Flax's own writer.
"""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.errors import CorruptError, FormatError, MemoryBudgetError, NotACheckpointError
from reshard.formats.orbax.aggregate_file import count_values, is_aggregate
from reshard.formats.orbax.item_tensors import leaf_count
from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate
from tests.equal import assert_same, assert_same_trees
from tests.formats.orbax.by_hand import write_array, zarr2
from tests.formats.orbax.refused import refused
from tests.fresh_process import run_fresh
from tests.old_orbax import stock_restore
from tests.orbax_trees import save_pytree

MIB = 1 << 20
W = np.arange(16, dtype=np.float32).reshape(4, 4)


def write(folder: Path, tree: Any, listed: dict[str, tuple[str, bool]] | None = None) -> Path:
    """A checkpoint with the tree in the file ``checkpoint``; ``listed`` makes ``_METADATA``, from the value type and skip_deserialize
    by keys joined with slashes."""
    folder.mkdir()
    (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(tree))
    if listed is not None:
        entries = {
            str(tuple(name.split("/"))): {
                "key_metadata": [{"key": key, "key_type": 2} for key in name.split("/")],
                "value_metadata": {"value_type": kind, "skip_deserialize": skip},
            }
            for name, (kind, skip) in listed.items()
        }
        text = json.dumps({"tree_metadata": entries, "use_zarr3": False})
        (folder / "_METADATA").write_text(text)
    return folder


def put_array(folder: Path, name: str) -> None:
    write_array(folder, name, W, zarr2([2, 4]), ocdbt=False)


EVERY_KIND = {
    "params": {"w": W, "layers": [np.ones(2, np.int8), {"b": np.zeros((0, 3), np.float16)}]},
    "step": 3, "rate": -0.5, "flag": True, "large": 2**63 + 1, "small": -(2**40), "phase": 1 - 2j, "name": "a text",
    "none": None, "empty": {"dict": {}, "list": []},
}  # fmt: skip


def test_every_kind_is_restored_as_by_stock_orbax_and_so_is_the_target(tmp_path):
    source = write(tmp_path / "src", EVERY_KIND)
    expected = stock_restore(source)
    assert_same_trees(expected, EVERY_KIND)
    assert_same_trees(reshard.restore(source), expected)
    for number, options in enumerate(
        ({}, {"ocdbt": True}, {"compression": "keep"}, {"style": "v1"})
    ):
        target = tmp_path / f"dst{number}"
        reshard.convert(source, target, workers=1, **options)
        item = target / "state" if options.get("style") else target
        assert_same_trees(stock_restore(item), expected)
        assert_same_trees(reshard.restore(target), expected)
        assert reshard.diff(source, target).differences == 0


def test_numpy_scalars_are_arrays_without_dimensions(tmp_path):
    """Orbax has no form for them: as numbers of Python they would lose their dtype."""
    source = write(
        tmp_path / "src", {"a": np.float32(2.5), "b": np.bool_(True), "c": np.array(7, np.uint8)}
    )
    reshard.convert(source, tmp_path / "dst", workers=1)
    for found in (reshard.restore(source), stock_restore(tmp_path / "dst")):
        for name, value in {"a": np.float32(2.5), "b": np.bool_(True), "c": np.uint8(7)}.items():
            assert_same(found[name], np.asarray(value), name)


LISTED = {
    "a": ("jax.Array", True), "b": ("scalar", True), "s": ("string", True), "w": ("jax.Array", False),
    "n": ("None", True), "d": ("Dict", True),
}  # fmt: skip


def test_a_kept_value_counts_more_than_what_the_metadata_says(tmp_path):
    tree = {"a": W, "b": 7, "s": "text", "w": "PLACEHOLDER://w", "n": None, "d": "AGGREGATED://d"}
    source = write(tmp_path / "src", tree, LISTED)
    put_array(source, "w")
    expected = stock_restore(source)
    assert_same_trees(expected, {"a": W, "b": 7, "s": "text", "w": W, "n": None, "d": {}})
    assert_same_trees(reshard.restore(source), expected)
    reshard.convert(source, tmp_path / "dst", workers=1)
    assert_same_trees(stock_restore(tmp_path / "dst"), expected)


def test_a_value_that_is_nowhere_is_an_error(tmp_path):
    for number, value in enumerate(("PLACEHOLDER://b", None, {})):
        source = write(
            tmp_path / f"src{number}",
            {"a": 1, "b": value},
            {"a": ("scalar", True), "b": ("scalar", True)},
        )
        refused(
            source,
            CorruptError,
            f"{source}/_METADATA: the leaf 'b' (scalar) has no array of its own (skip_deserialize), so that its value should be in the msgpack "
            f"file {source}/checkpoint, but it has no value of it; restore that file from a copy, or save the checkpoint again",
        )


def test_a_file_that_holds_no_tree_has_no_value(tmp_path):
    source = write(tmp_path / "src", {"a": 1}, {"a": ("scalar", True)})
    (source / "checkpoint").write_bytes(b"\0" * 100)
    refused(
        source, CorruptError, f"the msgpack file {source}/checkpoint, but it holds no tree; restore"
    )


def test_a_value_that_is_no_leaf_is_an_error(tmp_path):
    source = write(tmp_path / "src", {"a": 1, "b": {"c": 2}}, {"a": ("scalar", True)})
    refused(
        source, CorruptError,
        f"{source}/checkpoint keeps a value of 'b/c', which is no leaf in _METADATA; restore both files from a copy",
    )  # fmt: skip


def test_an_array_that_the_file_promises_must_be_there(tmp_path):
    source = write(tmp_path / "src", {"params": {"w": "PLACEHOLDER://params.w"}})
    refused(
        source, CorruptError,
        f"{source}: the tensor 'params/w' is in checkpoint, but its metadata (params.w/.zarray or zarr.json) is not stored",
    )  # fmt: skip


def test_an_array_under_another_name_is_refused(tmp_path):
    source = write(tmp_path / "src", {"params": {"w": "PLACEHOLDER://other"}})
    put_array(source, "other")
    refused(
        source, FormatError,
        "the leaf 'params/w' should be stored under the name 'params.w', as stock Orbax looks for it, but the file says 'other'; restore it "
        "with the version of Orbax that saved it",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a.b": {"c": 1}, "a": {"b.c": 2}}, "both become 'a.b.c' once joined"),
        ({"a/b": 1, "a": {"b": 2}}, "both become 'a/b' once joined"),
        ({"../x": 1}, "cannot name files"),
        ({"/etc": 1}, "cannot name files"),
        ({"x" * 5000: 1}, "has 5,000 characters, but at most 4,096 are read"),
    ],
)  # fmt: skip
def test_names_are_checked_as_in_the_metadata(tree, text, tmp_path):
    refused(write(tmp_path / "src", tree), FormatError, text)


@pytest.mark.parametrize(
    "tree",
    [
        {"version": 3, "optimizer": {"target": {"encoder": {}}, "state": {"step": 1}}},
        {"params": {"w": {"driver": "zarr", "kvstore": {"driver": "file", "path": "w"}, "metadata": {"shape": [4]}}}},
    ],
)  # fmt: skip
def test_t5x_is_refused_by_name(tree, tmp_path):
    source = write(tmp_path / "src", tree)
    refused(
        source, FormatError,
        f"{source}/checkpoint is the state of a checkpoint of T5X, which is not read: its arrays are specs of TensorStore; restore it "
        "with T5X and save it with Orbax",
    )  # fmt: skip


OTHER_FILES = {
    "tensorflow": b'model_checkpoint_path: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-1"\n',
    "pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "zip": b"PK\x03\x04\x00\x00", "hdf5": b"\x89HDF\r\n\x1a\n", "png": b"\x89PNG\r\n\x1a\n", "empty": b"", "one byte": b"\x81",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_files_of_that_name_are_no_checkpoint(name, tmp_path):
    (tmp_path / "checkpoint").write_bytes(OTHER_FILES[name])
    assert not is_aggregate(locate(tmp_path))
    assert not reshard.is_checkpoint(tmp_path)
    with pytest.raises(NotACheckpointError):
        reshard.inspect(tmp_path)


def test_such_a_file_beside_a_tree_is_left_alone(tmp_path):
    source = save_pytree(tmp_path / "c", {"w": W})
    (source / "checkpoint").write_bytes(OTHER_FILES["tensorflow"])
    assert_same_trees(reshard.restore(source), {"w": W})


def test_a_leaf_of_that_name_is_read_and_written_where_stock_orbax_finds_it(tmp_path):
    """Stock Orbax reads the file before anything else, and fails on a folder."""
    plain = save_pytree(tmp_path / "plain", {"checkpoint": W}, use_ocdbt=False)
    with pytest.raises(IsADirectoryError), ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.restore(plain)
    assert_same_trees(reshard.restore(plain), {"checkpoint": W})
    with pytest.raises(
        FormatError,
        match=r"folder 'checkpoint', which the checkpoint's own metadata needs; rename it or write with ocdbt",
    ):
        reshard.convert(plain, tmp_path / "t", workers=1)
    reshard.convert(plain, tmp_path / "ocdbt", ocdbt=True, workers=1)
    assert_same_trees(stock_restore(tmp_path / "ocdbt"), {"checkpoint": W})


def test_a_file_that_was_put_beside_a_recorded_tree_is_found(tmp_path):
    source = save_pytree(tmp_path / "c", {"w": W}, use_ocdbt=False)
    reshard.convert(source, tmp_path / "t", workers=1)
    data = flax.serialization.msgpack_serialize({"w": W + 1})
    (tmp_path / "t" / "checkpoint").write_bytes(data)
    with pytest.raises(
        CorruptError,
        match=r"t/checkpoint is not recorded in slices\.json, so it was put there later",
    ):
        reshard.restore(tmp_path / "t")


def test_arrays_in_pieces_are_converted_and_read_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 1000)
    big = np.random.default_rng(0).normal(size=(33, 5, 7)).astype(np.float32)
    source = write(tmp_path / "src", {"big": big, "step": 1})
    layout = {"mesh": {"axes": ["x"], "shape": [3]}, "rules": [{"match": "big", "axes": ["x"]}]}
    reshard.convert(source, tmp_path / "dst", layout=layout, workers=2)
    assert_same(stock_restore(tmp_path / "dst")["big"], big)
    assert_same(reshard.restore(source)["big"], big)
    stream = reshard.open_checkpoint(source).stream("big", "3:17,1:4,2:6")
    assert b"".join(stream) == np.ascontiguousarray(big[3:17, 1:4, 2:6]).tobytes()


CONVERT = """
    import json, sys
    import reshard
    source, target = sys.argv[1:]
    layout = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": [None, "x"]}]}
    report = reshard.convert(source, target, layout=layout, max_memory="32MiB", workers=2)
    print(json.dumps(len(report.tensors)))
"""


def test_large_arrays_stay_in_the_file(tmp_path):
    """One of 128 MiB in pieces of 64 MiB, and one of 48 MiB, within a budget of 32 MiB and the 128 MiB of the process."""
    tree = {"w": np.ones((4096, 8192), np.float32), "v": np.ones((6 * MIB, 2), np.float32)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 64 * MIB)
        source = write(tmp_path / "src", {"w": tree["w"], "v": tree["v"]})
    found = run_fresh(CONVERT, str(source), str(tmp_path / "dst"))
    assert found.printed == 2
    assert found.peak_bytes < (32 + 128) * MIB
    assert reshard.verify(source, tmp_path / "dst").differences == 0
    shutil.rmtree(tmp_path)


def test_leaves_are_counted_and_priced_before_they_are_read(tmp_path):
    source = write(tmp_path / "src", {f"w{i}": np.ones(2, np.float32) for i in range(6000)})
    assert count_values(locate(source)) == leaf_count(locate(source)) == 6000
    with pytest.raises(MemoryBudgetError, match=r"6,000 leaves in") as caught:
        reshard.convert(source, tmp_path / "dst", max_memory="12MiB", workers=1)
    reshard.plan(source, max_memory=caught.value.smallest_bytes, workers=1)
    write(tmp_path / "src" / "item", {"a": 1, "b": [2, 3]})
    assert leaf_count(locate(source)) == 6003
    assert count_values(locate(tmp_path)) == 0


def test_the_memory_of_many_leaves_is_not_more_than_is_said(tmp_path):
    import tracemalloc

    tree = {
        f"layer_{i}": {f"name_{j}": np.ones(4, np.float32) for j in range(8)} for i in range(500)
    }
    source = write(tmp_path / "src", {"params": tree})
    open_orbax(locate(source))
    gc.collect()  # empties the lists of freed objects, from which some would be taken unseen
    tracemalloc.start()
    try:
        reader = open_orbax(locate(source))
        gc.collect()  # what is garbage is not kept
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    said = reader.chunks.items[""].metadata_bytes
    assert 0.7 * said < used < said


def test_items_and_steps_of_old_runs(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for step in (5, 12):
        (run / f"checkpoint_{step}").mkdir()
        write(run / f"checkpoint_{step}" / "state", {"w": W + step})
    write(run / "7", {"w": W})
    assert reshard.steps(run) == {7: "7"}
    shutil.rmtree(run / "7")
    assert reshard.steps(run) == {5: "checkpoint_5", 12: "checkpoint_12"}
    info = reshard.inspect(run, step="latest", item="state")
    assert list(info.tensors) == ["w"]
    assert_same(reshard.restore(run, step=5)["w"], W + 5)
    (run / "checkpoint_12" / "other").mkdir()
    (run / "checkpoint_12" / "other" / "metadata").write_text('{"a": 1}')
    reshard.convert(run, tmp_path / "dst", step=12, workers=1)
    assert (tmp_path / "dst" / "other" / "metadata").read_text() == '{"a": 1}'
    assert_same(jax.tree.leaves(stock_restore(tmp_path / "dst" / "state"))[0], W + 12)
