"""Damage after a fingerprint: every operation finds it, and verify lists all of it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import CorruptError
from tests.orbax_trees import (
    save_manager_items,
    save_pytree,
    small_tree,
)


@pytest.fixture(scope="module")
def tree():
    return small_tree()


def change(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cast": [("a/w", "bfloat16")]},
        {"rename": [("^a/", "x/")]},
        {"select": ["a/w"]},
        {"compression": "keep"},
    ],
    ids=lambda c: next(iter(c), "as it is"),
)
def test_every_operation_refuses_a_source_that_was_damaged_later(plain, tmp_path, changes):
    change(plain / "a.w" / "0.0")
    with pytest.raises(CorruptError, match=r"'a/w' in .* has digest \w+, but \w+ was recorded"):
        reshard.convert(plain, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CorruptError, match="'a/w'"):
        reshard.restore(plain)
    found = {t.name: t.status for t in reshard.verify(plain).tensors}
    assert found == {"a/w": "different", "b": "recorded"}


def test_chunks_copied_encoded_are_compared_with_the_record_too(tmp_path):
    """A flipped bit that leaves a frame which decodes: only the digest can tell."""
    import zstandard

    values = np.random.default_rng(0).integers(0, 255, 4096).astype(np.uint8)
    path = save_pytree(tmp_path / "c", {"w": values}, use_ocdbt=False, use_zarr3=False)
    reshard.fingerprint(path)
    chunk = path / "w" / "0"
    data = bytearray(zstandard.decompress(chunk.read_bytes()))
    data[7] ^= 1
    chunk.write_bytes(zstandard.ZstdCompressor(level=1).compress(bytes(data)))
    with pytest.raises(CorruptError, match=r"'w' in .* has digest"):
        reshard.convert(path, tmp_path / "out", compression="keep")


def test_all_damage_is_listed(plain, capsys):
    change(plain / "a.w" / "0.0")
    (plain / "b" / "0").unlink()
    change(plain / "commit_success.txt")
    (plain / "_stray").write_bytes(b"x")
    (plain / "_sharding").unlink(missing_ok=True)
    found = reshard.verify(plain)
    assert {t.name: t.status for t in found.tensors} == {"a/w": "different", "b": "damaged"}
    wrong = {f.name: f.status for f in found.files if f.is_difference}
    assert wrong["commit_success.txt"] == "different"
    assert wrong["_stray"] == "unexpected"
    assert run(["verify", str(plain), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["differences"] == found.differences == 2 + len(wrong)
    assert run(["verify", str(plain)]) == 3
    shown = capsys.readouterr().out
    for name in ("a/w", "_stray", "commit_success.txt"):
        assert name in shown


def test_what_cannot_be_opened_any_more_is_damage(plain, capsys):
    (plain / "_METADATA").write_bytes(b"{")
    assert run(["verify", str(plain), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert "cannot be opened as a checkpoint" in document["damage"][0]
    assert [f["name"] for f in document["files"] if f["status"] != "recorded"] == ["_METADATA"]
    shutil.rmtree(plain)
    assert run(["verify", str(plain)]) == 1
    plain.mkdir()
    assert run(["verify", str(plain)]) == 1


def test_a_folder_of_recorded_steps_is_no_damaged_checkpoint(tree, tmp_path, capsys):
    reshard.fingerprint(save_manager_items(tmp_path / "run", tree))
    assert run(["verify", str(tmp_path / "run")]) == 1
    assert "name one of them" in capsys.readouterr().err


def test_two_checkpoints_are_each_compared_with_their_record(plain, tmp_path):
    reshard.convert(plain, tmp_path / "out")
    assert run(["verify", str(plain), str(tmp_path / "out")]) == 0
    change(tmp_path / "out" / "_METADATA")
    change(plain / "a.w" / "0.0")
    found = reshard.verify(plain, tmp_path / "out")
    assert [(f.side, f.name) for f in found.files if f.is_difference] == [("B", "_METADATA")]
    assert run(["verify", str(plain), str(tmp_path / "out")]) == 3


def test_extra_files_are_named_but_are_no_damage(plain, capsys):
    reshard.fingerprint(plain, overwrite=True)
    (plain / "README.md").write_text("kept for the paper")
    found = reshard.verify(plain)
    assert found.differences == 0
    assert [(f.name, f.status) for f in found.files if f.status != "recorded"] == [
        ("README.md", "added")
    ]
    assert run(["verify", str(plain)]) == 0
    assert "'README.md'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["_strings.json", "manifest.ocdbt", ".zgroup", "a.w/extra", "new/zarr.json"]
)
def test_a_file_put_where_readers_look_is_damage(plain, name):
    reshard.fingerprint(plain, overwrite=True)
    (plain / name).parent.mkdir(exist_ok=True)
    (plain / name).write_text("{}")
    found = reshard.verify(plain)
    # A manifest makes it a database, and a broken one: then nobody can tell chunks from other files.
    assert found.damage or [f.name for f in found.files if f.is_difference] == [name]
    assert bool(found.damage) == (name == "manifest.ocdbt")
    assert run(["verify", str(plain)]) == 3


def test_a_file_in_place_of_a_checkpoint_is_none(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    for other in ([], [str(tmp_path / "file")]):
        assert run(["verify", str(tmp_path / "file"), *other]) == 1
        assert (
            "it is a file, expected a safetensors file or the directory of a checkpoint"
            in capsys.readouterr().err
        )
