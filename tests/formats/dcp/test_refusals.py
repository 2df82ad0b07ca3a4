"""Distributed checkpoints that are wrong in one way, written by hand: one clear error each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
)
from reshard.formats.pickle.interpreter import UnknownNameError
from tests.dcp_files import (
    RECORDS,
    Item,
    Part,
    Tensor,
    archive,
    cut,
    entry,
    metadata_of,
    rebuilt,
    tensor_archive,
    tensor_entry,
    turned,
    value_archive,
    whole,
    write_dcp,
    write_items,
)
from tests.pickled import Call, Global, New, pickled
from tests.robustness.hostile.damage_json import sealed

W = np.arange(12, dtype=np.int32).reshape(4, 3)
ROWS = [((0, 0), (2, 3)), ((2, 0), (2, 3))]
TOP, LOW = Item("w", (0, 0), tensor_archive(W[:2])), Item("w", (2, 0), tensor_archive(W[2:]))
WHOLE = Item("w", (0, 0), tensor_archive(W))
LISTED = {"w": entry(whole(W))}


def refusal(folder: Path, kind: type[FormatError] | type[MissingError] = CorruptError) -> str:
    """The message, without the folder."""
    with pytest.raises(kind) as error:
        reshard.inspect(folder)
    return str(error.value).replace(str(folder), "DIR")


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


@pytest.mark.parametrize(
    ("listed", "items", "said"),
    [
        (
            {"w": tensor_entry("int32", (4, 3), ROWS[:1])}, [TOP],
            "DIR/.metadata: 'w' of shape [4, 3]: no piece holds [2:4, 0:3]; expected each element in exactly one piece, so a part of the "
            "checkpoint is missing or belongs to another one",
        ),
        (
            {"w": tensor_entry("int32", (4, 3), [((0, 0), (3, 3)), ((2, 0), (2, 3))])},
            [Item("w", (0, 0), tensor_archive(W[:3])), LOW],
            "DIR/.metadata: 'w' of shape [4, 3]: pieces [0:3, 0:3] of __0_0.distcp and [2:4, 0:3] of __0_0.distcp overlap; expected each "
            "element in exactly one piece, so a part of the checkpoint is missing or belongs to another one",
        ),
        (
            {"w": tensor_entry("int32", (4, 3), [((2, 0), (4, 3))])}, [LOW],
            "DIR/.metadata: 'w' of shape [4, 3]: piece [2:6, 0:3] of __0_0.distcp is out of bounds, expected 0 <= start <= stop <= size in "
            "each dimension; correct or drop the record of that piece",
        ),
        (
            {"w": tensor_entry("int32", (4, 3), ROWS)}, [TOP],
            "DIR/.metadata lists the piece [2:4, 0:3] of 'w', but does not say where it is stored; restore the file from a copy",
        ),
        (
            {"v": entry(1)}, [TOP],
            "DIR/.metadata lists the value 'v', but does not say where it is stored; restore the file from a copy",
        ),
        (
            {"w": tensor_entry("int32", (4, 3), [((0,), (4,))])}, [WHOLE],
            "DIR/.metadata: tensor 'w' has 2 dimensions, but a chunk at [0] of size [4]",
        ),
        (
            {"w": tensor_entry("float32", (4, 3), [((0, 0), (4, 3))])}, [WHOLE],
            "DIR/__0_0.distcp: the piece [0:4, 0:3] of 'w' should be float32 of shape [4, 3], but is int32 of shape [4, 3]; the files are not "
            "of one checkpoint",
        ),
        (
            {"w": tensor_entry("int32", (3, 4), [((0, 0), (3, 4))])}, [WHOLE],
            "DIR/__0_0.distcp: the piece [0:3, 0:4] of 'w' should be int32 of shape [3, 4], but is int32 of shape [4, 3]; the files are not "
            "of one checkpoint",
        ),
        (
            LISTED, [Item("w", (0, 0), value_archive(3))],
            "DIR/__0_0.distcp: the piece [0:4, 0:3] of 'w' holds something else than a tensor; the files are not of one checkpoint",
        ),
        (
            {"v": entry(1)}, [Item("v", None, tensor_archive(W))],
            "DIR/__0_0.distcp: the value 'v' holds a tensor, but the metadata lists another value; the files are not of one checkpoint",
        ),
        (
            LISTED, [Item("w", (0, 0), archive(pickled(rebuilt("int32", (4, 3), (3, 1))), bytes(47)))],
            "DIR/__0_0.distcp: the piece [0:4, 0:3] of 'w' has 47 bytes of elements; expected 48, so restore the file from a copy",
        ),
        (
            LISTED, [WHOLE._replace(archive=WHOLE.archive[:-30])],
            "DIR/__0_0.distcp: the piece [0:4, 0:3] of 'w' should be an archive of torch.save, but it does not end as an archive does; restore "
            "the file from a copy",
        ),
        (
            LISTED, [WHOLE._replace(file="../x")],
            "DIR/.metadata: the file of 'w' is '../x'; expected the name of a file in this folder",
        ),
        (
            {"w": 5}, [WHOLE],
            "DIR/.metadata: 'w' should be a tensor or a value, but is 5",
        ),
        (
            {"w": New(Global(RECORDS, "TensorStorageMetadata"), {})}, [WHOLE],
            "DIR/.metadata: tensor 'w': properties should be a TensorProperties, but is None",
        ),
        (
            {1: entry(1)}, [WHOLE],
            "DIR/.metadata: the name of an entry should be a str, but is 1",
        ),
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_contradictions_are_damage(
    tmp_path: Path, listed: Any, items: list[Item], said: str
) -> None:
    (tmp_path / "x").mkdir()
    write_items(tmp_path / "x" / "y", listed, items)
    assert refusal(tmp_path / "x" / "y") == said


@pytest.mark.parametrize(
    ("listed", "of_place", "said"),
    [
        (
            LISTED, {"transform_descriptors": ["stream.zstd/1"]},
            "DIR/.metadata: 'w' is stored transformed (['stream.zstd/1']), which is not read; save the checkpoint without extensions of its "
            "writer, such as compression",
        ),
        (
            {"w": tensor_entry("qint8", (4, 3), [((0, 0), (4, 3))])}, {},
            "DIR/.metadata: tensor 'w' is torch.qint8, quantised; leave it out where it is saved, or save it as plain numbers (dequantize, "
            "to)",
        ),
        (
            {"w": tensor_entry("int32", (4, 3), [], "torch.sparse_coo")}, {},
            "DIR/.metadata: tensor 'w' has the layout ('torch.sparse_coo',), which is not read; expected torch.strided: save it after "
            "to_dense()",
        ),
        (
            {"w" * 5000: LISTED["w"]}, {},
            "DIR/.metadata has an entry 'wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww'… of 5,000 characters; "
            "expected at most 4,096, and none that is NUL",
        ),
        (
            {"w": tensor_entry("int32", (1,) * 33, [])}, {},
            "DIR/.metadata: tensor 'w': its size has 33 dimensions; at most 32 are supported",
        ),
        (
            {"w": tensor_entry("int32", (2**40, 2**40), [])}, {},
            "DIR/.metadata: 'w' has more than 2^62 bytes",
        ),
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_what_is_not_read_is_named(
    tmp_path: Path, listed: Any, of_place: dict[str, Any], said: str
) -> None:
    write_items(tmp_path, listed, [WHOLE], **of_place)
    assert refusal(tmp_path, FormatError) == said


def test_a_poisoned_metadata_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    folder = write_items(tmp_path / "x", LISTED, [WHOLE])
    canary = tmp_path / "canary"
    poison = Call(Global("posix", "system"), (f"touch {canary}",))
    (folder / ".metadata").write_bytes(pickled(metadata_of(LISTED, [], poison)))
    for read in (reshard.inspect, reshard.restore, reshard.verify):
        with pytest.raises(UnknownNameError) as error:
            read(folder)
        assert str(error.value) == (
            f"{folder}/.metadata names 'posix.system', which is not on the list of names that are read; nothing of it was run. Where you "
            "trust it, load it with the program that wrote it, and save plain tensors, numbers and text"
        )
    assert not canary.exists()


def test_a_poisoned_value_is_told_of_and_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    poison = Call(Global("posix", "system"), (f"touch {canary}",))
    folder = write_dcp(tmp_path / "x", {"w": W, "v": poison})
    (warning, *_) = reshard.inspect(folder).warnings
    assert warning.startswith("'v' is an object of posix.system: such values are not read")
    reshard.convert(folder, tmp_path / "orbax", to="orbax", drop=["^v$"])
    assert not canary.exists()


def test_a_poisoned_tensor_is_refused(tmp_path: Path) -> None:
    poison = archive(pickled(Call(Global("posix", "system"), ("true",))), bytes(48))
    write_items(tmp_path, LISTED, [Item("w", (0, 0), poison)])
    assert refusal(tmp_path, UnknownNameError).startswith(
        "DIR/__0_0.distcp: the piece [0:4, 0:3] of 'w' names 'posix.system', which is not on the list"
    )


def test_other_opcodes_in_a_value_are_told_of(tmp_path: Path) -> None:
    folder = write_items(tmp_path, {"v": entry(1)}, [Item("v", None, archive(b"\x80\x02U\1a."))])
    assert reshard.inspect(folder).warnings[0].startswith("'v' is an object: such")


def test_files_that_are_missing_or_cut_short(tmp_path: Path) -> None:
    write_dcp(tmp_path, {"w": cut(W, 4)}, files=3)
    last = tmp_path / "__2_0.distcp"
    data = last.read_bytes()
    last.write_bytes(data[:-1])
    assert refusal(tmp_path) == (
        f"DIR/__2_0.distcp ends after {len(data) - 1:,} bytes, but the piece [1:2, 0:3] of 'w' is in {len(data):,} bytes from 0 on; it was cut "
        "short, so restore it from a copy"
    )
    last.unlink()
    (tmp_path / "__1_0.distcp").unlink()
    assert refusal(tmp_path, MissingError) == (
        "DIR: the metadata says that tensors are in '__1_0.distcp' and 1 more, but the folder has no such file; copy it there, or restore the "
        "folder from a copy"
    )


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    shutil.move(folder / "__0_0.distcp", tmp_path / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link to a place outside of" in refusal(folder, FormatError)


def test_names_that_collide_once_they_are_joined(tmp_path: Path) -> None:
    paths = {"a.b": ("a", "b"), "c": ("a/b",)}
    write_dcp(tmp_path, {"a.b": W, "c": W}, paths=paths)
    assert refusal(tmp_path, FormatError) == (
        "DIR/.metadata: two leaves are named 'a/b' once their keys are joined, such as 'c'; rename one where the checkpoint is saved"
    )


def test_names_that_orbax_could_not_read_are_refused(tmp_path: Path) -> None:
    """Of leaves without files, too."""
    paths = {"t": ("a", "//", "b"), "w": ("w",)}
    folder = write_dcp(tmp_path / "x", {"t": "text", "w": W}, paths=paths)
    with pytest.raises(FormatError) as error:
        reshard.convert(folder, tmp_path / "orbax", to="orbax")
    assert str(error.value) == (
        "the leaf 'a////b': the name 'a.//.b' cannot name files: it has an empty part, '.', '..', a NUL or a lone surrogate (half of a UTF-16 "
        "character); rename that key in the program that saves the checkpoint"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    reshard.convert(folder, tmp_path / "orbax", to="orbax", rename=[("^a////b$", "a/b")])
    assert reshard.restore(tmp_path / "orbax")["a"] == {"b": "text"}


def test_a_leaf_below_a_leaf(tmp_path: Path) -> None:
    write_dcp(tmp_path, {"a": W, "b": W}, paths={"a": ("x", 0), "b": ("x", 0, "y")})
    assert refusal(tmp_path, FormatError) == (
        "DIR/.metadata: the leaf 'x/0/y' is below 'x/0', which is a leaf itself; rename one where the checkpoint is saved"
    )


@pytest.mark.parametrize("path", [(), (None,), ("a",) * 300, ["a"]])
def test_paths_are_names_and_positions(tmp_path: Path, path: Any) -> None:
    write_dcp(tmp_path, {"w": W}, paths={"w": path})
    assert refusal(tmp_path).startswith("DIR/.metadata: the path of 'w' should be ")


def test_a_tree_that_torch_did_not_keep_is_flat(tmp_path: Path) -> None:
    write_dcp(tmp_path, {"a.b": W, "a.c": W}, paths={"a.b": ("a", "b")})
    assert list(reshard.inspect(tmp_path).tensors) == ["a/b", "a.c"]


def test_ranks_that_contradict_each_other(tmp_path: Path) -> None:
    write_items(tmp_path, LISTED, [WHOLE], metadata="__0.metadata")
    other = {"w": tensor_entry("int64", (4, 3), [((0, 0), (4, 3))])}
    write_items(tmp_path, other, [WHOLE], metadata="__1.metadata")
    assert refusal(tmp_path) == (
        "DIR/__0.metadata and the files of other ranks have 'w' with different shapes or dtypes; the files are not of one checkpoint"
    )


def test_values_that_differ_between_ranks_are_told_of(tmp_path: Path) -> None:
    for rank, value in enumerate([1, 1, 2]):
        items = [Item("v", None, value_archive(value), f"__{rank}_0.distcp")]
        write_items(tmp_path, {"v": entry(1)}, items, metadata=f"__{rank}.metadata")
        told = "'v': the ranks saved different values; that of the first is taken"
        assert (told in reshard.inspect(tmp_path).warnings) == (rank == 2)
    assert reshard.restore(tmp_path) == {"v": 1}


@pytest.mark.parametrize("stored", [WHOLE.archive, value_archive(1)])
def test_a_tensor_and_a_value_at_the_same_place(tmp_path: Path, stored: bytes) -> None:
    items = [Item("w", (0, 0), stored), Item("v", None, stored, start=0)]
    write_items(tmp_path, LISTED | {"v": entry(1)}, items)
    assert "at the same place; restore it from a copy" in refusal(tmp_path)


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


def test_one_file_of_it_is_named_by_its_folder(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    for name in (".metadata", "__0_0.distcp"):
        with pytest.raises(NotACheckpointError) as error:
            reshard.inspect(folder / name)
        assert str(error.value) == (
            f"{folder / name} is one file of a distributed checkpoint of torch; name its folder, {folder}"
        )


def test_without_its_metadata_the_save_did_not_finish(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    (folder / ".metadata").unlink()
    assert refusal(folder, IncompleteCheckpointError).startswith(
        "DIR has .distcp files but no .metadata, which torch writes last: the save did not finish"
    )


def test_nothing_overwrites_it(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    reshard.save(tmp_path / "orbax", {"w": W})
    with pytest.raises(reshard.StorageError, match="contains something other than a checkpoint"):
        reshard.convert(tmp_path / "orbax", folder, overwrite=True)
    assert (reshard.restore(folder)["w"] == W).all()


def test_a_record_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W, "v": W})
    reshard.fingerprint(folder)
    reshard.inspect(folder)
    listed = {"w": LISTED["w"]}
    write_items(folder, listed, [WHOLE])
    assert "digest" in refusal(folder)
    assert reshard.verify(folder).differences
    reshard.fingerprint(folder, overwrite=True)
    record = json.loads((folder / "slices.json").read_bytes())
    record["tensors"]["x"] = record["tensors"].pop("w") | {"path": ["x"]}
    (folder / "slices.json").write_bytes(sealed(json.dumps(record).encode()))
    assert "'x' is recorded, but no file holds it" in refusal(folder)
    record["tensors"].pop("x")
    (folder / "slices.json").write_bytes(sealed(json.dumps(record).encode()))
    assert "'w' is stored, but not recorded" in refusal(folder)
