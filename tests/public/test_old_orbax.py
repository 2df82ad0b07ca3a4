"""Checkpoints of old versions of Orbax are read, converted and proved like those of today, whole and bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import flax.serialization
import jax
import numpy as np
import pytest
import safetensors.numpy

import reshard
from reshard.errors import CorruptError
from tests.emulators.buckets import Bucket
from tests.equal import assert_same_trees
from tests.old_orbax import (
    ALL,
    BY_FLAX,
    KEPT_IN_FILE,
    WITH_EXPECTED_TREE,
    expected_tree,
    item_folder,
    stock_restore,
    unpack,
)
from tests.orbax_trees import as_numpy
from tests.public.buckets.uploads import upload

TENSORS = [
    "lr", "opt_state/0/count", "opt_state/0/mu/dense/bias", "opt_state/0/mu/dense/kernel",
    "opt_state/0/nu/dense/bias", "opt_state/0/nu/dense/kernel", "params/dense/bias",
    "params/dense/kernel", "params/emb", "step",
]  # fmt: skip
OTHERS = ["empty", "none", "opt_state/1"]
LAYOUT = {
    "mesh": {"axes": ["data", "model"], "shape": [2, 4]},
    "rules": [{"match": "params/dense/kernel", "axes": ["data", "model"]}],
}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("old"))


def same_types(found: object, expected: object) -> None:
    """The same tree, whose leaves have the same Python types too."""
    assert_same_trees(found, expected)
    kinds = [[type(leaf) for leaf in jax.tree.leaves(tree)] for tree in (found, expected)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", WITH_EXPECTED_TREE)
def test_what_was_saved_is_there(name: str, old: Path) -> None:
    info = reshard.inspect(old / name)
    assert sorted(info.tensors) == TENSORS
    assert sorted(leaf.name for leaf in info.leaves if not leaf.is_tensor) == OTHERS
    assert_same_trees(
        jax.tree.map(as_numpy, reshard.restore(old / name)), jax.tree.map(as_numpy, expected_tree())
    )


@pytest.mark.parametrize("name", ALL)
def test_stock_orbax_restores_the_same_from_the_target(
    name: str, old: Path, tmp_path: Path
) -> None:
    source, target = old / name, tmp_path / "target"
    expected = stock_restore(item_folder(source))
    same_types(reshard.restore(source), expected)
    report = reshard.convert(source, target, layout=LAYOUT, missing_axes="replicate", workers=1)
    assert len(report.tensors) == len(jax.tree.leaves(expected))
    same_types(stock_restore(item_folder(target)), expected)
    verified = reshard.verify(source, target)
    assert verified.differences == 0
    assert not verified.damage
    assert reshard.diff(source, target).differences == 0


@pytest.mark.parametrize("name", ALL)
def test_arrays_and_numbers_become_safetensors(name: str, old: Path, tmp_path: Path) -> None:
    expected = stock_restore(item_folder(old / name))
    options = {"to": "safetensors", "drop": ["^(none|empty|opt_state/1)$"], "workers": 1}
    reshard.convert(old / name, tmp_path / "w.safetensors", **options)
    found = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    leaves, _ = jax.tree_util.tree_flatten_with_path(expected)
    assert len(found) == len(leaves)
    for path, leaf in leaves:
        array = found["/".join(str(getattr(k, "key", getattr(k, "idx", ""))) for k in path)]
        assert (array.dtype, array.shape) == (np.asarray(leaf).dtype, np.shape(leaf))
        assert array.tobytes() == np.asarray(leaf).tobytes()


@pytest.mark.parametrize("name", ["o041/flaxargs", "agg_0.5.9/flaxargs", "o023/run2/3"])
def test_they_are_read_from_buckets(
    name: str, old: Path, gcs_bucket: Bucket, tmp_path: Path
) -> None:
    url = upload(gcs_bucket, old / name, "old/3")
    same_types(reshard.restore(url), reshard.restore(old / name))
    report = reshard.convert(url, tmp_path / "target", workers=1)
    assert report.requests is not None
    files_of_items = sum(p.is_file() for p in (old / name).glob("extra/*"))
    assert report.requests.planned.get >= report.requests.actual.get - files_of_items
    assert reshard.verify(url, tmp_path / "target").differences == 0
    stream = reshard.open_checkpoint(url).stream("params/emb", "2:5")
    assert b"".join(stream) == np.arange(2, 5, dtype=np.int32).tobytes()


@pytest.mark.parametrize("name", KEPT_IN_FILE)
def test_a_changed_value_is_found(name: str, old: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(old / name, tmp_path / "c"))
    reshard.fingerprint(path)
    assert reshard.verify(path).differences == 0
    same_types(stock_restore(item_folder(path)), stock_restore(item_folder(old / name)))
    file = item_folder(path) / "checkpoint"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # the step, which is the last leaf
    verified = reshard.verify(path)
    wrong = {tensor.name for tensor in verified.tensors if tensor.is_difference}
    assert wrong == {"step"}
    assert [f.name for f in verified.files if f.is_difference] == [str(file.relative_to(path))]
    folders = json.loads((item_folder(path) / "slices.json").read_text())
    assert "checkpoint" in folders["data_files"]


def test_of_large_arrays_in_buckets_little_is_asked(gcs_bucket: Bucket, tmp_path: Path) -> None:
    """Six of 2 MiB each, among small ones: a request behind each large one, none for each small one."""
    small = {f"s{i}": np.ones(100, np.float32) for i in range(300)}
    large = {f"w{i}": np.full(1 << 19, i, np.float32) for i in range(6)}
    (tmp_path / "c").mkdir()
    data = flax.serialization.msgpack_serialize({"a": small, "b": large, "c": small})
    (tmp_path / "c" / "checkpoint").write_bytes(data)
    url = upload(gcs_bucket, tmp_path / "c", "c")
    gcs_bucket.emulator.log.clear()
    assert len(reshard.inspect(url).tensors) == 606
    asked = [one for one in gcs_bucket.emulator.log.requests if one.operation == "get"]
    assert len(asked) <= 9
    assert sum(one.bytes_out for one in asked) < 3 << 20
    assert_same_trees(reshard.restore(url), {"a": small, "b": large, "c": small})


def test_a_run_of_flax_has_steps(old: Path) -> None:
    for name in BY_FLAX:
        run = (old / name).parent
        assert reshard.steps(run) == {100: "checkpoint_100"}
        assert len(reshard.inspect(run, step="latest").tensors) == 8


@pytest.mark.parametrize("version", ["o048", "agg_0.5.9"])
def test_a_lost_file_is_an_error_for_every_reader(version: str, old: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(old / version / "flaxargs", tmp_path / "c"))
    (path / "checkpoint").unlink()
    calls = [
        lambda: reshard.inspect(path),
        lambda: reshard.plan(path, workers=1),
        lambda: reshard.convert(path, tmp_path / "t", workers=1),
        lambda: reshard.restore(path),
        lambda: reshard.verify(old / version / "flaxargs", path),
        lambda: reshard.diff(old / version / "flaxargs", path),
        lambda: reshard.fingerprint(path),
        lambda: reshard.open_checkpoint(path),
    ]
    for call in calls:
        with pytest.raises(CorruptError) as caught:
            call()
        assert str(caught.value) == (
            f"{path}/_METADATA: the leaf 'lr' (scalar) has no array of its own (skip_deserialize), so that its value should be in the "
            f"msgpack file {path}/checkpoint, but that file is not there; restore that file from a copy, or save the checkpoint again"
        )
    assert not (tmp_path / "t").exists()
