"""Checkpoints that are written for TensorFlow, referred by it: objects, ShardedVariables, slices across borders, optimizers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.errors import FormatError, PlanError, StorageError, TargetExistsError
from tests.campaigns import singly
from tests.conformance.bundle import read_bundle
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("tensorflow")

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
KEY = f"model/table{VALUE}"
ROWS = 17


def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, 6)).astype(np.float32)


def tree() -> dict[str, Any]:
    kernel = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    return {"model": {"table": table(), "kernel": kernel}, "save_counter": np.int64(1)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "saved", tree())
    return tmp_path / "saved"


def partitioned(shards: int, axis: int = 0) -> dict[str, Any]:
    rule = {"match": "table$", "fixed_shards": shards, "axis": axis}
    return {"partitions": [rule]}


def even(size: int, shards: int) -> list[int]:
    return [len(part) for part in np.array_split(np.zeros(size), shards)]


@pytest.mark.parametrize("written", [1, 2, 3, 7])
def test_a_sharded_variable_restores_it_with_other_shards(
    written: int, saved: Path, tmp_path: Path, tensorflow: Oracle
) -> None:
    made = tmp_path / "ckpt-1"
    reshard.convert(saved, made, to="tensorflow", layout=partitioned(written))
    files = sorted(file.name for file in tmp_path.iterdir() if file.name.startswith("ckpt-1"))
    assert len([name for name in files if ".data-" in name]) == written
    for shards in (1, 2, 3, 7):
        rows = even(ROWS, shards)
        *found, kernel = tensorflow.ask("restored_shards", prefix=str(made), rows=rows, columns=6)
        assert np.concatenate(found).tobytes() == table().tobytes()
        assert kernel.tobytes() == tree()["model"]["kernel"].tobytes()


@pytest.mark.parametrize("axis", [0, 1])
def test_slices_across_borders(axis: int, saved: Path, tmp_path: Path, tensorflow: Oracle) -> None:
    made = tmp_path / "ckpt-1"
    reshard.convert(saved, made, to="tensorflow", layout=partitioned(4, axis))
    boxes = [(0, 17, 0, 6), (3, 9, 1, 4), (16, 1, 5, 1), (0, 1, 0, 6)]
    specs = [f"17 6 {a},{n}:{b},{m}" for a, n, b, m in boxes]
    found = tensorflow.ask(
        "restored_slices", prefix=str(made), key=KEY, dtype="float32", specs=specs
    )
    for array, (a, n, b, m) in zip(found, boxes, strict=True):
        assert array.tobytes() == table()[a : a + n, b : b + m].tobytes()


def test_a_mesh_makes_slices_of_both_dimensions(tmp_path: Path, tensorflow: Oracle) -> None:
    layout = {
        "mesh": {"x": 2, "y": 3},
        "rules": [
            {"match": "kernel$", "axes": ["y", None]},
            {"match": "^w$", "axes": ["x", "y"]},
        ],
    }
    kernel = np.arange(72, dtype=np.float32).reshape(8, 9)
    reshard.save(tmp_path / "wide", {"w": kernel, "kernel": kernel[:6]})
    reshard.convert(tmp_path / "wide", tmp_path / "ckpt", to="tensorflow", layout=layout)
    (found,) = tensorflow.ask(
        "restored_slices",
        prefix=str(tmp_path / "ckpt"),
        key=f"w{VALUE}",
        dtype="float32",
        specs=["8 9 2,5:1,7"],
    )
    assert found.tobytes() == kernel[2:7, 1:8].tobytes()
    assert len(list(tmp_path.glob("ckpt.data-*-of-00006"))) == 6


def test_what_tensorflow_cannot_put_together_is_whole(tmp_path: Path, tensorflow: Oracle) -> None:
    """TensorFlow refuses to restore slices of float16 that were saved in others."""
    half = table().astype(np.float16)
    reshard.save(tmp_path / "saved", {"model": {"table": half}})
    options = {"to": "tensorflow", "layout": partitioned(3)}
    report = reshard.convert(tmp_path / "saved", tmp_path / "ckpt", **options)
    warning = "'model/table' (float16) is stored whole: TensorFlow cannot put slices of this dtype together"
    assert warning in report.warnings
    (found,) = tensorflow.ask("restored_slices", prefix=str(tmp_path / "ckpt"), key=KEY, dtype="float16", specs=[""])  # fmt: skip
    assert found.tobytes() == half.tobytes()


def test_an_optimizer_goes_on(tmp_path: Path, tensorflow: Oracle) -> None:
    """A model of Keras with its slots: TensorFlow, Orbax, TensorFlow."""
    prefix = tensorflow.ask("save_keras", folder=str(tmp_path))
    reshard.convert(prefix, tmp_path / "orbax", to="orbax")
    reshard.convert(tmp_path / "orbax", tmp_path / "again", to="tensorflow")
    wanted = tensorflow.ask("resumed_keras", prefix=prefix)
    found = tensorflow.ask("resumed_keras", prefix=str(tmp_path / "again"))
    assert len(wanted) > 8
    assert [array.tobytes() for array in found] == [array.tobytes() for array in wanted]


def test_variables_of_tensorflow_1_keep_their_names(tmp_path: Path, tensorflow: Oracle) -> None:
    prefix = tensorflow.ask("save_columns", folder=str(tmp_path))
    values = tensorflow.ask("checkpoint_values", prefix=prefix)
    reshard.convert(prefix, tmp_path / "again", to="tensorflow")
    found = tensorflow.ask("restored_by_saver", prefix=str(tmp_path / "again"))
    for name, array in found.items():
        assert array.tobytes() == values[name][2]


@pytest.mark.parametrize("kind", ["dtypes", "names"])
def test_every_value_comes_back(kind: str, tmp_path: Path, tensorflow: Oracle) -> None:
    prefix = tensorflow.ask(f"save_{kind}", folder=str(tmp_path))
    drop = ["^model/(blob|words)$"] * (kind == "names")
    reshard.convert(prefix, tmp_path / "orbax", to="orbax", drop=drop)
    reshard.convert(tmp_path / "orbax", tmp_path / "again", to="tensorflow")
    wanted = tensorflow.ask("checkpoint_values", prefix=prefix)
    assert tensorflow.ask("checkpoint_values", prefix=str(tmp_path / "again")) == wanted


def test_what_is_there_is_left_alone(saved: Path, tmp_path: Path) -> None:
    made = tmp_path / "ckpt"
    reshard.convert(saved, made, to="tensorflow")
    before = {file.name: file.read_bytes() for file in tmp_path.glob("ckpt.*")}
    assert reshard.convert(saved, made, to="tensorflow").already_done
    other = tmp_path / "other"
    reshard.save(other, {"w": np.zeros(3)})
    for overwrite in (False, True):
        with pytest.raises(TargetExistsError) as caught:
            reshard.convert(other, made, to="tensorflow", overwrite=overwrite)
        assert str(caught.value) == (
            f"the target {str(made)!r} exists already, with the file 'ckpt.data-00000-of-00001', and was left untouched; several files "
            "cannot be replaced in one step: choose another name, or remove them"
        )
    with pytest.raises(
        TargetExistsError,
        match="is there already, but it should be what the names of several files begin with",
    ):
        reshard.convert(other, saved, to="tensorflow", overwrite=True)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("ckpt.*")} == before
    (tmp_path / "ckpt-2.data-00000-of-00009").write_bytes(b"")
    with pytest.raises(TargetExistsError, match=r"with the file 'ckpt-2\.data-00000-of-00009'"):
        reshard.convert(other, tmp_path / "ckpt-2", to="tensorflow")


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    reshard.save(tmp_path / "none", {"w": np.zeros(3), "none": None})
    with pytest.raises(
        FormatError,
        match=r"TensorFlow files hold tensors and strings only, and cannot hold 'none' \(None\)",
    ):
        reshard.convert(tmp_path / "none", tmp_path / "ckpt", to="tensorflow")
    reshard.save(tmp_path / "small", {"w": np.zeros(3, ml_dtypes.float8_e8m0fnu)})
    with pytest.raises(
        PlanError, match="'w' is float8_e8m0fnu, which TensorFlow files do not have"
    ):
        reshard.convert(tmp_path / "small", tmp_path / "ckpt", to="tensorflow")
    reshard.save(tmp_path / "text", {"w": np.zeros(3), "text": "\ud800"})
    with pytest.raises(
        PlanError,
        match="'text': the string has a lone surrogate, which TensorFlow files cannot hold",
    ):
        reshard.convert(tmp_path / "text", tmp_path / "ckpt", to="tensorflow")
    assert not list(tmp_path.glob("*ckpt*"))


def test_a_bucket_is_refused(saved: Path, s3_bucket: Any) -> None:
    with pytest.raises(
        StorageError,
        match="is several files, which a bucket cannot show at once; write to a local disk",
    ):
        reshard.convert(saved, f"{s3_bucket.url}/ckpt", to="tensorflow")


KILLED = """
import os, signal, sys
from reshard.storage.local import publishing
link, count = publishing._link, int(sys.argv[3])
def until(staging, name):
    global count
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    count -= 1
    link(staging, name)
publishing._link = until
import reshard
reshard.convert(sys.argv[1], sys.argv[2], to="tensorflow", layout={"partitions": [{"match": "table$", "fixed_shards": 2}]})
"""


@pytest.mark.parametrize(("linked", "then"), singly(range(4), ["again", "clean"]))
def test_killed_between_two_names(linked: int, then: str, saved: Path, tmp_path: Path) -> None:
    """Nothing is a checkpoint before the index has its name; a second run goes on, and clean takes the other names away."""
    made = tmp_path / "ckpt"
    words = [sys.executable, "-c", KILLED, str(saved), str(made), str(linked)]
    done = subprocess.run(
        words, check=False, env=os.environ | {"PYTHONPATH": str(Path.cwd())}, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    names = sorted(file.name for file in tmp_path.glob("ckpt.*"))
    assert len(names) == linked
    assert "ckpt.index" not in names
    with pytest.raises(reshard.ReshardError):
        reshard.inspect(made)
    if then == "clean":
        reshard.clean(made)
        assert not list(tmp_path.glob("*ckpt*"))
    reshard.convert(saved, made, to="tensorflow", layout=partitioned(2))
    assert read_bundle(made)["model/table"].tobytes() == table().tobytes()
    assert not list(tmp_path.glob(".ckpt*"))
    assert reshard.verify(saved, made).differences == 0
