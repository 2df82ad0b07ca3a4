"""Half-written and hostile checkpoints and their metadata, each with the text of its error."""

from __future__ import annotations

import json
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
    StorageError,
)
from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate
from tests.formats.orbax.by_hand import write_tree
from tests.formats.orbax.refused import TREE, refused
from tests.orbax_trees import save_manager, save_manager_items, save_pytree, save_v1


def test_commit_marker_may_be_missing_locally_as_in_orbax(plain):
    (plain / "commit_success.txt").unlink()
    (plain / "_CHECKPOINT_METADATA").unlink()
    assert set(open_orbax(locate(plain).view()).tensors) == {"a", "b/c"}
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
        plain,
        IncompleteCheckpointError,
        "should contain _METADATA, since _CHECKPOINT_METADATA says",
    )


def test_item_of_a_step_is_not_finished(tmp_path):
    step = save_manager(tmp_path / "m", TREE)
    (step / "default" / "_METADATA").unlink()
    refused(
        step,
        IncompleteCheckpointError,
        f"{step / 'default'} should contain _METADATA, since it was saved",
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
    refused(path, IncompleteCheckpointError, "the deletion of one of its items was not finished")


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
    refused(tmp_path / "f", StorageError, "is not a directory")


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
            open_orbax(locate(plain).view())


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
    refused(tmp_path, FormatError, "cannot name files: it has an empty part, '.', '..', a NUL")


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
    refused(plain, CorruptError, ".zarray should be a plain file, but is not")
