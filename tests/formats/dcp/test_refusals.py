"""Distributed checkpoints whose metadata or items are wrong in one way, written by hand: one clear error each."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import reshard
from reshard.errors import (
    FormatError,
)
from reshard.formats.dcp import metadata, reader
from reshard.formats.registry import open_reader
from reshard.formats.torch.pickle_interpreter import UnknownNameError
from tests.dcp_files import (
    RECORDS,
    Item,
    archive,
    entry,
    metadata_of,
    rebuilt,
    tensor_archive,
    tensor_entry,
    value_archive,
    write_dcp,
    write_items,
)
from tests.formats.dcp.small import LISTED, WHOLE, W, refusal
from tests.pickled import Call, Global, New, pickled

ROWS = [((0, 0), (2, 3)), ((2, 0), (2, 3))]
TOP, LOW = Item("w", (0, 0), tensor_archive(W[:2])), Item("w", (2, 0), tensor_archive(W[2:]))


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
            {"w": New(Global(RECORDS, "TensorStorageMetadata"), {"properties": New(Global(RECORDS, "TensorProperties"), (1,))})}, [WHOLE],
            "DIR/.metadata: tensor 'w': its properties should begin with a dtype",
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
    of_path = "DIR/.metadata: the path of 'w' should be "
    assert refusal(tmp_path).startswith(
        (f"{of_path}1 to 256 names and positions, but is ", f"{of_path}a tuple, but is [")
    )


@pytest.mark.parametrize("stored", [WHOLE.archive, value_archive(1)])
def test_a_tensor_and_a_value_at_the_same_place(tmp_path: Path, stored: bytes) -> None:
    items = [Item("w", (0, 0), stored), Item("v", None, stored, start=0)]
    write_items(tmp_path, LISTED | {"v": entry(1)}, items)
    assert refusal(tmp_path) == (
        "DIR/__0_0.distcp: the metadata has the piece [0:4, 0:3] of 'w' and the value 'v' at the same place; restore it from a copy"
    )


@pytest.mark.parametrize(
    ("module", "most", "said"),
    [
        (metadata, 1, "DIR/.metadata lists 2 entries; at most 1 are read"),
        (reader, 3, "DIR/.metadata has more than 3 leaves, the most that is read"),
    ],
    ids=["entries", "leaves"],
)
def test_too_many_leaves(
    module: ModuleType, most: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dcp(tmp_path, {"w": W, "v": [1, 2, 3]})
    monkeypatch.setattr(module, "MAX_LEAVES", most)
    assert refusal(tmp_path, FormatError) == said


@pytest.mark.parametrize(
    ("name", "said"),
    [("v", " has no tensor named 'v'"), ("empty", ": 'empty' has no chunk [0, 0]")],
)
def test_a_chunk_that_is_not_there(name: str, said: str, tmp_path: Path) -> None:
    write_dcp(tmp_path, {"w": W, "empty": W[:0]})
    reader = open_reader(str(tmp_path))
    with pytest.raises(FormatError) as error:
        reader.locate(name, (0, 0))
    assert str(error.value) == f"{tmp_path}{said}"
