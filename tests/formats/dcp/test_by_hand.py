"""Distributed checkpoints written by hand, as torch writes them and as it may: they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.dcp_files import (
    RECORDS,
    Item,
    Part,
    Tensor,
    archive,
    cut,
    entry,
    turned,
    value_archive,
    write_dcp,
    write_items,
)
from tests.formats.dcp.small import W
from tests.pickled import Call, Global, New, pickled


def test_a_checkpoint_by_hand_is_read(tmp_path: Path) -> None:
    tree = {"w": cut(W, 3), "t": np.asfortranarray(W), "rate": 0.5, "name": "adam", "s": np.array(3)}  # fmt: skip
    write_dcp(tmp_path, tree, files=2)
    found = reshard.restore(tmp_path)
    assert (found["rate"], found["name"], int(found["s"])) == (0.5, "adam", 3)
    assert found["w"].tobytes() == found["t"].tobytes() == W.tobytes()


def test_pieces_of_any_form_and_order(tmp_path: Path) -> None:
    cube = np.arange(210, dtype=np.int16).reshape(5, 6, 7)
    parts = [
        Part((2, 0, 3), np.asfortranarray(cube[2:, :, 3:])),
        Part((0, 0, 0), cube[:2]),
        Part((2, 0, 0), turned(cube[2:, :, :3], (1, 2, 0))),
        Part((5, 0, 0), cube[5:]),  # a rank without elements
    ]
    folder = write_dcp(tmp_path / "x", {"c": Tensor("int16", cube.shape, parts)})
    assert (reshard.restore(folder)["c"] == cube).all()
    reshard.convert(folder, tmp_path / "orbax", to="orbax")
    assert (reshard.restore(tmp_path / "orbax")["c"] == cube).all()


def test_a_tree_that_torch_did_not_keep_is_flat(tmp_path: Path) -> None:
    write_dcp(tmp_path, {"a.b": W, "a.c": W}, paths={"a.b": ("a", "b")})
    assert list(reshard.inspect(tmp_path).tensors) == ["a/b", "a.c"]


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("axis", [0, 1])
def test_pieces_become_shards_of_a_variable(tmp_path: Path, strategy: str, axis: int) -> None:
    rows = np.arange(70, dtype=np.float32).reshape(10, 7)
    write_dcp(tmp_path, {"w": cut(rows, 3)})
    made = reshard.restore(tmp_path, partition=4, axis=axis, partition_strategy=strategy)["w"]
    places = np.arange(rows.shape[axis])
    wanted = np.array_split(places, 4) if strategy == "div" else [places[n::4] for n in range(4)]
    for variable, one in zip(made.variables, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), rows.take(one, axis))


def test_values_that_differ_between_ranks_are_told_of(tmp_path: Path) -> None:
    for rank, value in enumerate([1, 1, 2]):
        items = [Item("v", None, value_archive(value), f"__{rank}_0.distcp")]
        write_items(tmp_path, {"v": entry(1)}, items, metadata=f"__{rank}.metadata")
        told = "'v': the ranks saved different values; that of the first is taken"
        assert (told in reshard.inspect(tmp_path).warnings) == (rank == 2)
    assert reshard.restore(tmp_path) == {"v": 1}


def test_names_of_torch_2_2(tmp_path: Path) -> None:
    """As its files have them: a test with real ones needs that version."""
    old = "torch.distributed._shard.sharded_tensor.metadata"
    write_dcp(tmp_path, {"w": W})
    data = (tmp_path / ".metadata").read_bytes()
    for now, then in (("TensorProperties", "TensorProperties"), ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING")):  # fmt: skip
        data = data.replace(f"c{RECORDS}\n{now}\n".encode(), f"c{old}\n{then}\n".encode())
    assert data.count(old.encode()) == 2
    (tmp_path / ".metadata").write_bytes(data)
    assert (reshard.restore(tmp_path)["w"] == W).all()


def test_the_folder_of_the_writer_is_not_used(tmp_path: Path) -> None:
    write_dcp(tmp_path, {"w": W})
    path = Call(Global("pathlib", "PosixPath"), ("/", "tmp", "run"))
    meta = New(Global(RECORDS, "StorageMeta"), {"checkpoint_id": path, "save_id": "1"})
    data = (tmp_path / ".metadata").read_bytes()
    assert data.endswith(b"1.0.0ub.")
    (tmp_path / ".metadata").write_bytes(data[:-3] + pickled("storage_meta")[2:-1] + pickled(meta)[2:-1] + b"ub.")  # fmt: skip
    assert list(reshard.inspect(tmp_path).tensors) == ["w"]


def test_other_opcodes_in_a_value_are_told_of(tmp_path: Path) -> None:
    folder = write_items(tmp_path, {"v": entry(1)}, [Item("v", None, archive(b"\x80\x02U\1a."))])
    assert reshard.inspect(folder).warnings[0].startswith("'v' is an object: such")
