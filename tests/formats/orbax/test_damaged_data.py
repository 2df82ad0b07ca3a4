"""Damaged chunks, databases and shards, each with the text of its error."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from reshard.errors import (
    CorruptError,
    FormatError,
    ReshardError,
)
from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate
from tests.equal import assert_same
from tests.formats.orbax.by_hand import sharded, write_item, zarr2, zarr3
from tests.formats.orbax.decode import read_tensor
from tests.formats.orbax.refused import TREE, refused
from tests.orbax_trees import save_pytree


def test_missing_chunk(plain):
    (plain / "a" / "0").unlink()
    reader = open_orbax(locate(plain).view())
    with pytest.raises(CorruptError) as caught:
        reader.locate("a", (0,))
    assert str(caught.value) == (
        "tensor 'a', chunk [0]: not stored; expected it under 'a/0', since this checkpoint stores every "
        "chunk, those of fill values too; restore it from a copy, or take the fill value in its place "
        '(missing_chunks="allow")'
    )


@pytest.mark.parametrize(("name", "index"), [("a", (1,)), ("a", (-1,)), ("a", (0, 0)), ("a", ())])
def test_no_such_chunk(plain, name, index):
    with pytest.raises(
        FormatError, match=re.escape(f"'a' has no chunk {list(index)}; its grid has [1]")
    ):
        open_orbax(locate(plain).view()).locate(name, index)


def test_no_such_tensor(plain):
    with pytest.raises(FormatError, match="has no tensor named 'nope'"):
        open_orbax(locate(plain).view()).locate("nope", (0,))


def test_truncated_data_file(ocdbt):
    reader = open_orbax(locate(ocdbt).view())
    file = type(ocdbt)(reader.locate("a", (0,)).path)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CorruptError) as caught:
        open_orbax(locate(ocdbt).view()).locate("a", (0,))
    assert "tensor 'a', chunk [0]: truncated: expected 2,400 bytes from offset" in str(caught.value)
    assert f"of {file}, which has only 1,000; restore the file from a copy" in str(caught.value)
    file.unlink()
    with pytest.raises(CorruptError, match=f"chunk \\[0\\]: the data file {file} is missing"):
        open_orbax(locate(ocdbt).view()).locate("a", (0,))


def test_damaged_manifest_and_nodes(ocdbt):
    manifest = ocdbt / "manifest.ocdbt"
    whole = manifest.read_bytes()
    for broken, text in (
        (b"", f"{manifest} is not a manifest of a database; restore the folder from a copy"),
        (whole[:40], f"{manifest} says that it has {len(whole)} bytes (stored are 40), format 0 "),
        (b"x" * 100, f"{manifest} is not a manifest of a database; restore the folder from a copy"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), f"{manifest}: its CRC32C is recorded as "),
    ):
        manifest.write_bytes(broken)
        refused(ocdbt, CorruptError, text)
    manifest.write_bytes(whole)
    (node,) = (ocdbt / "d").iterdir()
    node.write_bytes(node.read_bytes()[:-3] + b"abc")
    refused(ocdbt, CorruptError, "(node d/")
    node.unlink()
    refused(ocdbt, CorruptError, f"the data file {node} is missing; restore it from a copy")


def test_processes_that_disagree(ocdbt, tmp_path):
    other = save_pytree(
        tmp_path / "o", {**TREE, "b": {"c": np.arange(9, dtype=np.int8)}}, use_compression=False
    )
    shutil.move(other / "ocdbt.process_0", ocdbt / "ocdbt.process_1")
    (ocdbt / "manifest.ocdbt").unlink()
    refused(
        ocdbt,
        CorruptError,
        "the key b'b.c/0' is in several databases with different values (4 and 9 bytes)",
    )


def test_unmerged_databases_with_codecs_for_tensorstore(tmp_path):
    metadata = zarr2((4, 4), compressor={"id": "bz2", "level": 1})
    array = np.arange(16, dtype=np.int8).reshape(4, 4)
    write_item(tmp_path / "c", {"x": (array, metadata)}, ocdbt=True)
    for process in ("0", "1"):
        target = tmp_path / "c" / f"ocdbt.process_{process}"
        target.mkdir()
        shutil.copy(tmp_path / "c" / "manifest.ocdbt", target)
        shutil.copytree(tmp_path / "c" / "d", target / "d")
    (tmp_path / "c" / "manifest.ocdbt").unlink()
    reader = open_orbax(locate(tmp_path / "c").view())
    assert reader.tensors["x"].encoding.compressor == "tensorstore"
    assert_same(read_tensor(reader, "x"), array)


@pytest.fixture
def shard(tmp_path):
    array = np.arange(32, dtype=np.int64).reshape(4, 8)
    return write_item(tmp_path / "c", {"x": (array, zarr3((4, 8), sharded((2, 4))))})


def rewritten(path, table):
    """The shard's file with other offsets and lengths in its index, and a CRC that fits."""
    from tests.formats.orbax.decode import crc32c

    file = path / "x" / "c" / "0" / "0"
    data = np.array(table, np.uint64).tobytes()
    file.write_bytes(
        file.read_bytes()[: -len(data) - 4] + data + crc32c(data).to_bytes(4, "little")
    )
    return open_orbax(locate(path).view())


def test_inner_chunk_beyond_its_shard(shard):
    for bad in ([250, 100], [0, 1 << 63], [(1 << 64) - 1, 5], [(1 << 64) - 64, 64]):
        reader = rewritten(shard, [bad, [64, 64], [128, 64], [192, 64]])
        with pytest.raises(CorruptError) as caught:
            reader.locate("x", (0, 0))
        assert (
            f"the shard's index names {bad[1]:,} bytes from offset {bad[0]:,}, but the shard"
            in str(caught.value)
        )
        assert reader.locate("x", (0, 1)).length == 64


def test_inner_chunk_that_is_missing(shard):
    reader = rewritten(shard, [[(1 << 64) - 1] * 2, [64, 64], [128, 64], [192, 64]])
    with pytest.raises(CorruptError, match=r"tensor 'x', chunk \[0, 0\]: not stored"):
        reader.locate("x", (0, 0))


def test_shard_index_is_damaged(shard):
    file = shard / "x" / "c" / "0" / "0"
    data = bytearray(file.read_bytes())
    data[-10] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        CorruptError, match=r"chunk \[0, 0\]: the index of the shard in .* should have the CRC32C"
    ):
        open_orbax(locate(shard).view()).locate("x", (0, 0))
    file.write_bytes(data[:50])
    with pytest.raises(
        CorruptError, match=r"truncated: the shard in .* has 50 bytes, but its index alone takes 68"
    ):
        open_orbax(locate(shard).view()).locate("x", (0, 0))


def test_random_damage_never_gives_a_foreign_error(ocdbt):
    rng = np.random.default_rng(0)
    files = [p for p in ocdbt.rglob("*") if p.is_file()]
    for _ in range(300):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        file.write_bytes(data[: rng.integers(len(data) + 1)] if rng.integers(2) else data)
        try:
            reader = open_orbax(locate(ocdbt).view())
            for name, tensor in reader.tensors.items():
                for index in tensor.spec.storage.indices():
                    reader.locate(name, index)
        except ReshardError:
            pass
        finally:
            file.write_bytes(whole)
