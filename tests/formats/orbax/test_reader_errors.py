"""Half-written, damaged and hostile checkpoints, each with the text of its error."""

from __future__ import annotations

import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    ReshardError,
    StorageError,
)
from reshard.formats.orbax.reader import open_orbax
from tests.formats.orbax.by_hand import sharded, write_item, write_tree, zarr2, zarr3
from tests.orbax_trees import save_manager, save_manager_items, save_pytree, save_v1

TREE = {"a": np.arange(600, dtype=np.float32), "b": {"c": np.arange(4, dtype=np.int8)}}


def refused(path, error, message):
    with pytest.raises(error) as caught:
        open_orbax(str(path))
    assert message in str(caught.value)


@pytest.fixture
def plain(tmp_path):
    return save_pytree(tmp_path / "c", TREE, use_ocdbt=False)


@pytest.fixture
def ocdbt(tmp_path):
    return save_pytree(tmp_path / "c", TREE, use_compression=False)


# ---- what kind of directory ----


def test_commit_marker_may_be_missing_locally_as_in_orbax(plain):
    (plain / "commit_success.txt").unlink()
    (plain / "_CHECKPOINT_METADATA").unlink()
    assert set(open_orbax(str(plain)).tensors) == {"a", "b/c"}
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert set(checkpointer.restore(plain)) == {"a", "b"}


def test_temporary_folder(plain):
    temporary = plain.rename(plain.with_name("c.orbax-checkpoint-tmp-17"))
    refused(
        temporary,
        IncompleteCheckpointError,
        "is a temporary folder of a save that was never committed",
    )


def test_tree_metadata_is_missing(plain):
    (plain / "_METADATA").unlink()
    refused(
        plain, IncompleteCheckpointError, "should hold _METADATA, since _CHECKPOINT_METADATA says"
    )


def test_item_of_a_step_is_not_finished(tmp_path):
    step = save_manager(tmp_path / "m", TREE)
    (step / "default" / "_METADATA").unlink()
    refused(
        step,
        IncompleteCheckpointError,
        f"{step / 'default'} should hold _METADATA, since it was saved",
    )
    (step / "default").rename(step / "default.orbax-checkpoint-tmp-3")
    refused(step, IncompleteCheckpointError, "saving this item was never finished")
    shutil.rmtree(step / "default.orbax-checkpoint-tmp-3")
    refused(
        step,
        IncompleteCheckpointError,
        "should have the item 'default' that _CHECKPOINT_METADATA names",
    )


def test_v1_without_its_record(tmp_path):
    path = save_v1(tmp_path / "c", TREE)
    (path / "_CHECKPOINT_METADATA").unlink()
    refused(
        path,
        IncompleteCheckpointError,
        "has the marker orbax.checkpoint but no _CHECKPOINT_METADATA",
    )


def test_deletion_under_way(tmp_path):
    path = save_v1(tmp_path / "c", TREE)
    (path / "_CHECKPOINT_DELETION").write_text("{}")
    refused(path, IncompleteCheckpointError, "deleting one of its items was begun and not finished")


def test_no_tree_at_all(tmp_path):
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "json", ocp.args.JsonSave({"a": 1}))
    refused(tmp_path / "json", NotACheckpointError, "which stores no tensors")
    step = save_manager_items(tmp_path / "m", TREE)
    shutil.rmtree(step / "state")
    text = (step / "_CHECKPOINT_METADATA").read_text()
    (step / "_CHECKPOINT_METADATA").write_text(
        text.replace('"state"', '"other"').replace("PyTree", "Py")
    )
    refused(step, NotACheckpointError, "expected _METADATA in at least one of: meta, metrics")


def test_not_a_directory(tmp_path):
    (tmp_path / "f").write_text("")
    refused(tmp_path / "f", StorageError, "is no directory")


# ---- metadata ----


@pytest.mark.parametrize(
    "name", ["_METADATA", "_sharding", "_CHECKPOINT_METADATA", "array_metadatas/process_0"]
)
def test_truncated_and_garbage_metadata(name, tmp_path):
    path = save_v1(tmp_path / "c", {"a": jnp.arange(4)})
    file = path / name if (path / name).exists() else path / "state" / name
    data = file.read_bytes()
    for broken in (data[: len(data) // 2], b"", b"\x00\x01", b"[]", b"null", b'{"a"}'):
        file.write_bytes(broken)
        refused(path, CorruptError, str(file))


def test_every_truncation_of_the_metadata_is_refused(plain):
    data = (plain / "_METADATA").read_bytes()
    for end in range(0, len(data), 7):
        (plain / "_METADATA").write_bytes(data[:end])
        with pytest.raises(CorruptError, match="_METADATA, line 1, column"):
            open_orbax(str(plain))


LEAF = {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False}}  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (7, "the entry of 'x': it should be of type dict, but is 7"),
        ({}, "the entry of 'x': value_metadata should be of type dict, but is None"),
        ({**LEAF, "key_metadata": 5}, "key_metadata should be of type list, but is 5"),
        ({**LEAF, "key_metadata": [5]}, "a part of key_metadata should be of type dict, but is 5"),
        (
            {**LEAF, "key_metadata": [{"key": 1, "key_type": 2}]},
            "key should be of type str, but is 1",
        ),
        (
            {**LEAF, "key_metadata": [{"key": "a", "key_type": 3}]},
            "the key_type of 'a' is 3; known are 1",
        ),
        (
            {**LEAF, "key_metadata": [{"key": "a", "key_type": True}]},
            "should be of type int, but is True",
        ),
        (
            {**LEAF, "key_metadata": [{"key": "a", "key_type": 2}] * 300},
            "'x' nests 300 levels deep",
        ),
        (
            {**LEAF, "value_metadata": {"value_type": "jax.Array"}},
            "skip_deserialize should be of type bool",
        ),
        (
            {**LEAF, "value_metadata": {"value_type": 1}},
            "value_type should be of type str, but is 1",
        ),
    ],
)
def test_entries_that_contradict_the_format(entry, message, tmp_path):
    document = {"tree_metadata": {"x": entry}}
    (tmp_path / "_METADATA").write_text(json.dumps(document))
    refused(tmp_path, FormatError, message)


def test_tree_metadata_without_a_tree(tmp_path):
    (tmp_path / "_METADATA").write_text('{"use_ocdbt": true}')
    refused(tmp_path, CorruptError, "expected a list of leaves (tree_metadata), found none")
    (tmp_path / "_METADATA").write_text('{"tree_metadata": {}, "use_zarr3": 1}')
    refused(tmp_path, CorruptError, "use_zarr3 should be of type bool, but is 1")


@pytest.mark.parametrize(
    "name", ["..", "../x", "/etc/passwd", "a/../b", "a//b", "a/.", "nul\0", "\ud800"]
)
def test_names_that_lead_elsewhere(name, tmp_path):
    write_tree(tmp_path, [[name]])
    refused(
        tmp_path, FormatError, "cannot name files: as a path it has an empty part, '.', '..', a NUL"
    )


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (["a.b", "c"], ["a", "b.c"], "a.b.c"),
        (["a/b", "c"], ["a", "b/c"], "a/b/c"),
        (["a", "b"], ["a.b"], "a.b"),
    ],
)
def test_names_that_collide(first, second, joined, tmp_path):
    write_tree(tmp_path, [first, ["z"], second])
    paths = ["(" + ", ".join(map(repr, p)) + ")" for p in (first, second)]
    refused(
        tmp_path,
        FormatError,
        f"the paths {paths[0]} and {paths[1]} both become {joined!r} once joined, so their files",
    )


def test_what_stock_orbax_mixes_up_is_refused(tmp_path):
    save_pytree(tmp_path / "c", {"a.b": {"c": np.arange(3)}, "a": {"b.c": np.arange(3) + 5}})
    refused(tmp_path / "c", FormatError, "both become 'a.b.c' once joined")


def test_strings_are_missing(tmp_path):
    save_pytree(tmp_path / "c", {"s": "text", "a": np.arange(3)})
    strings = tmp_path / "c" / "_strings.json"
    strings.write_text('{"t": "text"}')
    refused(tmp_path / "c", CorruptError, "the text of 's' should be of type str, but is None")
    strings.unlink()
    refused(tmp_path / "c", CorruptError, "is missing, but 1 leaves are strings, 's' among them")


def test_array_metadata_is_missing(plain):
    shutil.rmtree(plain / "b.c")
    refused(
        plain,
        CorruptError,
        "the tensor 'b/c' is in _METADATA, but its metadata (b.c/.zarray or zarr.json)",
    )
    (plain / "b.c" / ".zarray").mkdir(parents=True)
    refused(plain, CorruptError, ".zarray should be a plain file, but is none")


# ---- chunks ----


def test_missing_chunk(plain):
    (plain / "a" / "0").unlink()
    reader = open_orbax(str(plain))
    with pytest.raises(CorruptError) as caught:
        reader.locate("a", (0,))
    assert str(caught.value) == (
        "tensor 'a', chunk [0]: not stored; expected it under 'a/0', since this checkpoint stores every "
        "chunk, those of fill values too; restore it from a copy"
    )


@pytest.mark.parametrize(("name", "index"), [("a", (1,)), ("a", (-1,)), ("a", (0, 0)), ("a", ())])
def test_no_such_chunk(plain, name, index):
    with pytest.raises(
        FormatError, match=re.escape(f"'a' has no chunk {list(index)}; its grid has [1]")
    ):
        open_orbax(str(plain)).locate(name, index)


def test_no_such_tensor(plain):
    with pytest.raises(FormatError, match="has no tensor named 'nope'"):
        open_orbax(str(plain)).locate("nope", (0,))


def test_truncated_data_file(ocdbt):
    reader = open_orbax(str(ocdbt))
    file = type(ocdbt)(reader.locate("a", (0,)).path)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CorruptError) as caught:
        open_orbax(str(ocdbt)).locate("a", (0,))
    assert "tensor 'a', chunk [0]: truncated: expected 2,400 bytes from offset" in str(caught.value)
    assert f"of {file}, which has only 1,000; restore the file from a copy" in str(caught.value)
    file.unlink()
    with pytest.raises(CorruptError, match=f"chunk \\[0\\]: the data file {file} is missing"):
        open_orbax(str(ocdbt)).locate("a", (0,))


# ---- databases ----


def test_damaged_manifest_and_nodes(ocdbt):
    manifest = ocdbt / "manifest.ocdbt"
    whole = manifest.read_bytes()
    for broken, text in (
        (b"", f"{manifest} is no manifest of a database; restore the folder from a copy"),
        (whole[:40], f"{manifest} says that it has {len(whole)} bytes (stored are 40), format 0 "),
        (b"x" * 100, f"{manifest} is no manifest of a database; restore the folder from a copy"),
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
    metadata = zarr2((4, 4), order="F")
    write_item(tmp_path / "c", {"x": (np.zeros((4, 4), np.int8), metadata)}, ocdbt=True)
    for process in ("0", "1"):
        target = tmp_path / "c" / f"ocdbt.process_{process}"
        target.mkdir()
        shutil.copy(tmp_path / "c" / "manifest.ocdbt", target)
        shutil.copytree(tmp_path / "c" / "d", target / "d")
    (tmp_path / "c" / "manifest.ocdbt").unlink()
    refused(
        tmp_path / "c",
        FormatError,
        "its codecs need TensorStore, which cannot read databases that were never merged",
    )


# ---- shards ----


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
    return open_orbax(str(path))


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
        open_orbax(str(shard)).locate("x", (0, 0))
    file.write_bytes(data[:50])
    with pytest.raises(
        CorruptError, match=r"truncated: the shard in .* has 50 bytes, but its index alone takes 68"
    ):
        open_orbax(str(shard)).locate("x", (0, 0))


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
            reader = open_orbax(str(ocdbt))
            for name, tensor in reader.tensors.items():
                for index in tensor.spec.storage.indices():
                    reader.locate(name, index)
        except ReshardError:
            pass
        finally:
            file.write_bytes(whole)
