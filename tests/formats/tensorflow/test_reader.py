"""Checkpoints that TensorFlow saved, read without it: every bit, name and slice, in other layouts and formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import FormatError
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = [
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
]

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
NO_SAFETENSORS = ("model/complex128", "model/int4")
UNREAD = ["^model/(blob|words)$"]
KINDS: dict[str, Callable[[Oracle, Path], str]] = {
    "dtypes": lambda tf, folder: tf.ask("save_dtypes", folder=str(folder)),
    "names": lambda tf, folder: tf.ask("save_names", folder=str(folder)),
    "one shard": lambda tf, folder: tf.ask("save_shards", folder=str(folder), rows=[8]),
    "three shards": lambda tf, folder: tf.ask("save_shards", folder=str(folder), rows=[3, 3, 2]),
    "many shards": lambda tf, folder: tf.ask("save_shards", folder=str(folder), rows=[2] * 70),
    "columns": lambda tf, folder: tf.ask("save_columns", folder=str(folder)),
    "loose": lambda tf, folder: tf.ask("save_loose", folder=str(folder)),
    "keras": lambda tf, folder: tf.ask("save_keras", folder=str(folder)),
}


Saved = dict[str, tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def saved(tensorflow: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The prefix of each checkpoint, and its values by their keys as TensorFlow reads them."""
    found = {}
    for kind, save in KINDS.items():
        prefix = save(tensorflow, tmp_path_factory.mktemp("tf"))
        found[kind] = (prefix, tensorflow.ask("checkpoint_values", prefix=prefix))
    return found


def plain(key: str) -> str:
    """The name of a key without odd characters."""
    return key.removesuffix(VALUE)


def others(prefix: str) -> list[str]:
    """The leaves that are no tensors."""
    return [leaf.name for leaf in reshard.inspect(prefix).leaves if not leaf.is_tensor]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "names"])
def test_every_bit_is_as_tensorflow_reads_it(kind: str, saved: Saved) -> None:
    prefix, values = saved[kind]
    opened = reshard.open_checkpoint(prefix)
    tensors = reshard.inspect(prefix).tensors
    assert tensors.keys() == {plain(key) for key in values}
    for key, (dtype, shape, data) in values.items():
        spec = tensors[plain(key)].spec
        assert (spec.dtype, list(spec.shape)) == (dtype, shape), key
        assert b"".join(opened.stream(plain(key))) == data, key


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("to", ["orbax", "safetensors"])
def test_it_becomes_other_formats(kind: str, to: str, saved: Saved, tmp_path: Path) -> None:
    prefix, values = saved[kind]
    left_out = [*others(prefix), "model/complex128", "model/int4"] if to == "safetensors" else []
    left_out = [name for name in left_out if kind == "dtypes" or name in others(prefix)]
    drop = [f"^{re.escape(name)}$" for name in left_out] or UNREAD * (kind == "names")
    reshard.convert(prefix, tmp_path / "made", to=to, drop=drop)
    assert not reshard.verify(prefix, tmp_path / "made", drop=drop).differences
    made = reshard.inspect(tmp_path / "made").tensors
    nbytes = [len(data) for key, (_, _, data) in values.items() if plain(key) not in left_out]
    assert sum(tensor.spec.nbytes for tensor in made.values()) == sum(nbytes)


def test_names_are_those_of_the_objects(saved: Saved, tmp_path: Path) -> None:
    prefix, values = saved["names"]
    names = set(reshard.inspect(prefix).tensors)
    assert {"model/odd/a.b/c", "model/odd/..", "model/odd/ü", "save_counter"} <= names
    assert {f"model/layers/{n}" for n in range(12)} <= names
    assert len(names) == len(values)
    reshard.convert(prefix, tmp_path / "made", to="orbax", drop=UNREAD)
    made = reshard.restore(tmp_path / "made")
    assert made["model"]["odd"].keys() == {"a.b/c", "..", "ü"}  # one key each
    assert made["model"]["text"] == "grüße"


def test_a_variable_and_its_slots_are_beside_each_other(saved: Saved, tmp_path: Path) -> None:
    prefix, values = saved["columns"]
    assert {
        "dense/kernel",
        "dense/kernel/Adam",
        "dense/kernel/Adam_1",
        "beta1_power",
    } <= values.keys()
    reshard.convert(prefix, tmp_path / "made", to="orbax")
    made = reshard.restore(tmp_path / "made")
    assert {"kernel", "kernel/Adam", "kernel/Adam_1", "bias"} <= made["dense"].keys()


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_shards_become_other_shards(shards: int, saved: Saved) -> None:
    prefix, values = saved["three shards"]
    made = reshard.restore(prefix, partition={"table": reshard.FixedShardsPartitioner(shards)})
    table = made["model"]["table"]
    assert [len(shard) for shard in np.array_split(np.zeros(8), shards)] == [
        v.shape[0] for v in table.variables
    ]
    whole = np.concatenate([np.asarray(v) for v in table.variables])
    assert whole.tobytes() == values[f"model/table{VALUE}"][2]


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [("three shards", "model/table", (8, 6)), ("columns", "dense/kernel", (4, 10))],
)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_slices_become_shards_along_any_axis(
    kind: str,
    name: str,
    shape: tuple[int, int],
    axis: int,
    strategy: str,
    shards: int,
    saved: Saved,
) -> None:
    prefix, values = saved[kind]
    key = name if name in values else f"{name}{VALUE}"
    whole = np.frombuffer(values[key][2], np.float32).reshape(shape)
    made = reshard.restore(
        prefix, select=[f"^{name}$"], partition=shards, axis=axis, partition_strategy=strategy
    )
    for part in name.split("/"):
        made = made[part]
    rows = np.arange(shape[axis])
    wanted = np.array_split(rows, shards) if strategy == "div" else [rows[n::shards] for n in range(shards)]  # fmt: skip
    found = [np.asarray(variable) for variable in made.variables]
    assert len(found) == shards
    for one, places in zip(found, wanted, strict=True):
        assert one.tobytes() == whole.take(places, axis).tobytes()


def test_variables_of_parameter_servers(tmp_path: Path, tensorflow: Oracle) -> None:
    """TensorFlow does not put its own shards of float16 together; what this project makes of them it reads."""
    prefix = tensorflow.ask("save_servers", folder=str(tmp_path))
    assert (
        len(list(tmp_path.glob("ckpt-1.data-*"))) == 3
    )  # one of each server, and one of the coordinator
    table = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
    half = np.arange(14, dtype=np.float16)
    found = reshard.restore(prefix, select=["table", "half", "step"])
    assert found["table"].tobytes() == table.tobytes()
    assert found["half"].tobytes() == half.tobytes()
    assert found["step"] == 3
    assert reshard.inspect(prefix).tensors["table"].partition == {
        "strategy": "fixed_shards", "axis": 0, "shards": 3,
    }  # fmt: skip
    with pytest.raises(RefusedError, match="Dtype half not supported"):
        tensorflow.ask("checkpoint_values", prefix=prefix)
    layout = {"partitions": [{"match": "table|half", "fixed_shards": 2}]}
    report = reshard.convert(prefix, tmp_path / "two", layout=layout)
    assert report.warnings == (
        "'half' (float16) is stored whole: TensorFlow cannot put slices of this dtype together",
    )
    values = tensorflow.ask("checkpoint_values", prefix=str(tmp_path / "two"))
    assert values[f"table{VALUE}"] == ["float32", [10, 6], table.tobytes()]
    assert values[f"half{VALUE}"] == ["float16", [14], half.tobytes()]


def test_what_is_not_read_is_named(saved: Saved, tmp_path: Path) -> None:
    prefix, _ = saved["names"]
    with pytest.raises(
        FormatError, match=r"Orbax cannot hold 'model/blob' \(bytes\), 'model/words' \(3 strings\)"
    ):
        reshard.convert(prefix, tmp_path / "made", to="orbax")
    assert not (tmp_path / "made").exists()
    with pytest.raises(FormatError, match=r"'model/blob' \(bytes\) and 1 more is not restored"):
        reshard.restore(prefix)
