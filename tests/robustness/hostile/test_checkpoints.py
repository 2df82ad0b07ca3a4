"""Hostile checkpoints one by one, each with its error; every operation ends within seconds."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import reshard
from reshard.errors import CorruptError, FormatError, ReshardError, StorageError
from tests.robustness.hostile.damage_codecs import gzip_bomb, zstd_bomb
from tests.robustness.hostile.damage_json import sealed
from tests.robustness.hostile.damage_ocdbt import leaf_node, replace_root, varint

TIB = 1 << 40


@dataclass(frozen=True)
class Hostile:
    """What is done to a checkpoint of a form, and what is said of it."""

    form: str
    do: Callable[[Path], object]
    error: type[ReshardError]
    text: str


def put(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(data)


def edit(name: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    def do(root: Path) -> None:
        data = (root / name).read_bytes()
        assert old in data
        data = data.replace(old, new, 1)
        (root / name).write_bytes(sealed(data) if name == "slices.json" else data)

    return do


def link(name: str, to: str) -> Callable[[Path], object]:
    def do(root: Path) -> None:
        _clear(root / name)
        (root / name).symlink_to(to)

    return do


def pipe(name: str) -> Callable[[Path], object]:
    def do(root: Path) -> None:
        _clear(root / name)
        os.mkfifo(root / name)

    return do


def sock(name: str) -> Callable[[Path], object]:
    def do(root: Path) -> None:
        _clear(root / name)
        with socket.socket(socket.AF_UNIX) as made:
            here = os.open((root / name).parent, os.O_RDONLY)
            made.bind(f"/proc/self/fd/{here}/{(root / name).name}")
            os.close(here)

    return do


def folder(name: str) -> Callable[[Path], object]:
    def do(root: Path) -> None:
        _clear(root / name)
        (root / name).mkdir()

    return do


def sparse(name: str, size: int = TIB) -> Callable[[Path], object]:
    return lambda root: os.truncate(root / name, size)


def _clear(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def node(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda root: replace_root(root, change)


def values_outside(root: Path) -> None:
    shutil.move(root / "params.kernel", root.parent / "elsewhere")
    (root / "params.kernel").symlink_to(root.parent / "elsewhere")


def item_outside(root: Path) -> None:
    shutil.move(root / "state", root.parent / "state")
    (root / "state").symlink_to(root.parent / "state")


def growing_keys(keys: int) -> bytes:
    """Keys that each share all of the one before: some bytes in the file, gigabytes decoded."""
    shared = b"".join(varint(i % 60_000) for i in range(keys - 1))
    head = b"\0" + varint(0) + varint(keys) + shared + varint(1) * keys
    return head + b"k" * keys + varint(0) * keys + bytes(keys)


def huge_inline_value(size: int) -> bytes:
    return b"".join(
        (b"\0", varint(0), varint(1), varint(1), b"k", varint(size), b"\0", bytes(1000))
    )


def metadata_with(**members: object) -> Callable[[Path], object]:
    def do(root: Path) -> None:
        document = json.loads((root / "_METADATA").read_bytes())
        (root / "_METADATA").write_text(json.dumps({**document, **members}))

    return do


def named(*keys: str) -> Callable[[Path], object]:
    """One more leaf with these keys."""

    def do(root: Path) -> None:
        document = json.loads((root / "_METADATA").read_bytes())
        value = {"value_type": "None", "skip_deserialize": True}
        path = [{"key": key, "key_type": 2} for key in keys]
        document["tree_metadata"]["x"] = {"key_metadata": path, "value_metadata": value}
        (root / "_METADATA").write_text(json.dumps(document))

    return do


KERNEL2, KERNEL3 = "params.kernel/.zarray", "params.kernel/zarr.json"

CASES = {
    "link to a file outside": Hostile("raw-zarr2", link("table/0.0", "/etc/hostname"), FormatError, "to a place outside of"),
    "link of metadata outside": Hostile("raw-zarr2", link("_METADATA", "/etc/hostname"), FormatError, "to a place outside of"),
    "link to a device": Hostile("raw-zarr2", link("_sharding", "/dev/zero"), FormatError, "to a place outside of"),
    "folder outside": Hostile("raw-zarr2", values_outside, FormatError, "to a place outside of"),
    "item outside": Hostile("items", item_outside, FormatError, "to a place outside of"),
    "index outside": Hostile("ocdbt-zarr2", link("manifest.ocdbt", "/etc/hostname"), FormatError, "to a place outside of"),
    "data outside": Hostile("ocdbt-zarr2", link("d", "/etc"), FormatError, "to a place outside of"),
    "link to itself": Hostile("raw-zarr2", link("table", "table"), StorageError, "Too many levels"),
    "loop of a file": Hostile("raw-zarr2", link("table/0.0", "0.0"), StorageError, "Too many levels"),
    "pipe for metadata": Hostile("raw-zarr2", pipe("_METADATA"), FormatError, "should be a plain file"),
    "pipe for slices": Hostile("ours", pipe("slices.json"), FormatError, "should be a plain file"),
    "pipe for a chunk": Hostile("raw-zarr2", pipe("table/0.0"), CorruptError, "should be a plain file"),
    "pipe for a manifest": Hostile("ocdbt-zarr2", pipe("manifest.ocdbt"), FormatError, "should be a plain file"),
    "socket for a chunk": Hostile("raw-zarr2", sock("table/0.0"), CorruptError, "should be a plain file"),
    "folder for a chunk": Hostile("raw-zarr2", folder("table/0.0"), CorruptError, "1 chunk is not stored: 'table' (1 of 1)"),
    "folder for metadata": Hostile("raw-zarr2", folder("_sharding"), FormatError, "should be a plain file"),
    "sparse metadata": Hostile("raw-zarr2", sparse("_METADATA"), FormatError, "bytes of metadata are read"),
    "hole in metadata": Hostile("raw-zarr2", sparse("_METADATA", 1 << 28), CorruptError, "found: a NUL byte"),
    "sparse manifest": Hostile("ocdbt-zarr2", sparse("manifest.ocdbt"), FormatError, "bytes of metadata are read"),
    "sparse chunk": Hostile("raw-zarr2", sparse("table/0.0"), CorruptError, "table"),
    "sparse array metadata": Hostile("raw-zarr2", sparse(KERNEL2), FormatError, "an array's metadata of 1,099,511,627,776"),
    "sparse file of an item": Hostile("items", sparse("meta/metadata", 15 * TIB), StorageError, "contains files of"),
    "deep nesting": Hostile("raw-zarr2", put("_METADATA", b'{"a":' * 100_000), FormatError, "levels deep"),
    "deep array metadata": Hostile("raw-zarr2", put(KERNEL2, b"[" * 100_000), FormatError, "levels deep"),
    "many values": Hostile("raw-zarr2", put("_CHECKPOINT_METADATA", b"[" + b"[]," * 5_000_000 + b"1]"), FormatError, "values, but metadata of at most"),
    "one huge value": Hostile("raw-zarr2", put("_METADATA", b'{"custom_metadata": ["' + b"long" * 6_000_000 + b'"]}'), FormatError, "characters that are read of one value"),
    "many levels of a path": Hostile("raw-zarr2", named(*"s" * 300), FormatError, "nests 300 levels deep"),
    "name with ..": Hostile("raw-zarr2", named(".."), FormatError, "cannot name files"),
    "name that leads up": Hostile("raw-zarr2", named("a/../../b"), FormatError, "cannot name files"),
    "absolute name": Hostile("raw-zarr2", named("/etc/passwd"), FormatError, "cannot name files"),
    "name with NUL": Hostile("raw-zarr2", named("a\0b"), FormatError, "cannot name files"),
    "half a character": Hostile("raw-zarr2", named("\ud800"), FormatError, "cannot name files"),
    "very long name": Hostile("raw-zarr2", named("n" * 5000), FormatError, "has 5,000 characters, but at most 4,096"),
    "huge shape": Hostile("raw-zarr2", edit(KERNEL2, b'"shape":[16,8]', b'"shape":[4611686018427387904,8]'), FormatError, "no storage holds that"),
    "many chunks": Hostile("raw-zarr2", edit(KERNEL2, b'"shape":[16,8]', b'"shape":[16777216,16777216]'), FormatError, "chunks, which is more than is read"),
    "negative chunks": Hostile("raw-zarr2", edit(KERNEL2, b'"chunks":[4,4]', b'"chunks":[-4,4]'), CorruptError, "chunks should contain numbers from 1"),
    "chunks of text": Hostile("raw-zarr2", edit(KERNEL2, b'"chunks":[4,4]', b'"chunks":["4",4]'), CorruptError, "should be of type int"),
    "NaN of a shape": Hostile("raw-zarr2", edit(KERNEL2, b'"shape":[16,8]', b'"shape":[NaN,8]'), CorruptError, "should be of type int"),
    "many dimensions": Hostile("raw-zarr2", edit(KERNEL2, b'"shape":[16,8]', b'"shape":[' + b"1," * 40 + b"1]"), FormatError, "41 dimensions are too many"),
    "zstd bomb": Hostile("plain-zarr2", put("table/0.0", zstd_bomb()), CorruptError, "'table'"),
    "gzip bomb": Hostile("ours-gzip", put("table/c.0.0", gzip_bomb()), CorruptError, "'table'"),
    "absurd window": Hostile("plain-zarr2", put("table/0.0", zstd_bomb(1 << 20, 27)), CorruptError, "needs a window of 134217728 bytes"),
    "node of growing keys": Hostile("ocdbt-zarr2", node(lambda _: growing_keys(200_000)), ReshardError, "restore the folder from a copy"),
    "node of large keys": Hostile("ocdbt-zarr2", node(lambda _: leaf_node(3_000, 60_000)), CorruptError, "at most 134,217,728 are read"),
    "huge value in a node": Hostile("ocdbt-zarr2", node(lambda _: huge_inline_value(1 << 40)), CorruptError, "at most 1,048,576 are read"),
    "mesh of huge numbers": Hostile("ours", edit("slices.json", b'"shape": [2, 2]', b'"shape": [1' + b"0" * 4000 + b", 1" + b"0" * 4000 + b"]"), CorruptError, "to be whole numbers from 1"),
    "slices of huge numbers": Hostile("ours", edit("slices.json", b'"shape": [16, 8]', b'"shape": [1' + b"0" * 4000 + b", 8]"), CorruptError, "to be whole numbers from 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_hostile_checkpoint(name, specimens, tmp_path):
    case = CASES[name]
    src = Path(shutil.copytree(specimens / case.form, tmp_path / "src"))
    case.do(src)
    for operate in (
        lambda: reshard.convert(src, tmp_path / "dst"),
        lambda: reshard.inspect(src),
    ):
        try:
            operate()
        except case.error as error:
            assert case.text in str(error)
            assert len(str(error)) < 5000
        else:
            assert operate.__code__.co_names[-1] == "inspect", "the conversion should be refused"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".dst", "dst"))) == []


def test_links_that_stay_inside_are_followed(specimens, tmp_path):
    src = Path(shutil.copytree(specimens / "raw-zarr2", tmp_path / "src"))
    shutil.move(src / "table", src / "moved")
    (src / "table").symlink_to("moved")
    (src / "moved" / "0.0").rename(src / "chunk")
    (src / "moved" / "0.0").symlink_to("../chunk")
    (tmp_path / "by_link").symlink_to(src)
    reshard.convert(tmp_path / "by_link", tmp_path / "dst")
    assert reshard.verify(specimens / "raw-zarr2", tmp_path / "dst").differences == 0


def test_keys_of_an_unknown_type_stay_keys(specimens, tmp_path):
    """Their data would come back as plain numbers."""
    src = Path(shutil.copytree(specimens / "plain-zarr2", tmp_path / "src"))
    tree = json.loads((src / "_METADATA").read_bytes())
    tree["tree_metadata"]["('key',)"]["value_metadata"]["value_type"] = "jax.Arrayjax.Array"
    (src / "_METADATA").write_text(json.dumps(tree))
    reshard.convert(src, tmp_path / "dst")
    assert reshard.verify(src, tmp_path / "dst").differences == 0


def test_keys_of_a_kind_that_jax_does_not_make_of_their_data(specimens, tmp_path):
    src = Path(shutil.copytree(specimens / "plain-zarr2", tmp_path / "src"))
    edit("array_metadatas/process_0", b"threefry2x32", b"rbg")(src)
    with pytest.raises(
        FormatError,
        match=r"^'key' has PRNG keys of the kind 'rbg', which jax does not make of this data: .*; leave it out \(drop\)",
    ):
        reshard.restore(src)
    assert "key" not in reshard.restore(src, drop=["^key$"])


def test_a_restore_that_no_memory_holds(specimens, tmp_path):
    src = Path(shutil.copytree(specimens / "raw-zarr2", tmp_path / "src"))
    metadata_with(store_array_data_equal_to_fill_value=False)(src)
    shutil.rmtree(src / "array_metadatas")
    (src / "_sharding").unlink()
    edit(KERNEL2, b'"shape":[16,8]', b'"shape":[1099511627776,8]')(src)
    edit(KERNEL2, b'"chunks":[4,4]', b'"chunks":[1073741824,8]')(src)
    with pytest.raises(ReshardError, match=r"refused 32.0 TiB of memory|allow [0-9]+MiB"):
        reshard.restore(src)
