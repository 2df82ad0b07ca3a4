"""Fingerprints of stock Orbax's checkpoints: nothing else changes, Orbax does not mind, damage is found."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1
from safetensors.numpy import save_file

import reshard
from reshard.cli.app import run
from reshard.errors import CorruptError, StorageError, TargetExistsError
from reshard.formats.slices.parse import read_slices
from reshard.storage.local import files as local_files
from reshard.storage.location import locate
from tests.checkpoint_files import files_of
from tests.orbax_trees import (
    expected_arrays,
    save_manager_items,
    save_modes,
    save_pytree,
    save_standard,
    save_v1,
    small_tree,
)

MODES = save_modes()


@pytest.fixture(scope="module")
def tree():
    return small_tree()


@pytest.mark.parametrize("save", [s for _, s in MODES], ids=[i for i, _ in MODES])
def test_every_way_of_saving_is_recorded_whole(save, tree, tmp_path):
    path = save(tmp_path / "c", tree)
    before = files_of(path)
    found = reshard.fingerprint(path)
    after = files_of(path)
    assert {name: after[name] for name in before} == before
    added = {name for name in after if name not in before}
    assert added == {p.removeprefix(f"{path}/") for p in found.written}
    assert {name.rpartition("/")[2] for name in added} == {"slices.json"}
    assert set(found.tensors) == set(reshard.inspect(path).tensors)
    verified = reshard.verify(path)
    assert {t.status for t in verified.tensors} == {"recorded"}
    assert {f.status for f in verified.files} == {"recorded"}
    assert verified.differences == 0


def test_the_digests_are_those_of_the_arrays(tree, tmp_path):
    from awscrt.checksums import crc64nvme

    path = save_standard(tmp_path / "c", tree)
    found = reshard.fingerprint(path).tensors
    for name, array in expected_arrays(tree).items():
        if name in found:
            assert found[name] == f"{crc64nvme(np.ascontiguousarray(array).tobytes()):016x}", name
    assert len(found) > 10


def said_while(restore, path, caplog):
    """Warnings and log lines of a restore, without paths."""
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        restored = restore(path)
    texts = [str(w.message) for w in caught] + [r.getMessage() for r in caplog.records]
    return restored, sorted(text.replace(str(path.parent), "") for text in texts)


def by_standard(path):
    return ocp.StandardCheckpointer().restore(path)


def by_pytree(path):
    return ocp.PyTreeCheckpointer().restore(path)


def by_manager(path):
    with ocp.CheckpointManager(path.parent, item_names=("state", "meta", "metrics")) as manager:
        assert manager.all_steps() == [12]
        assert manager.item_metadata(12) is not None
        assert manager.metrics(12) == {"loss": 0.5}
        args = ocp.args.Composite(state=ocp.args.PyTreeRestore(), meta=ocp.args.JsonRestore())
        return dict(manager.restore(12, args=args))


def by_manager_bare(path):
    with ocp.CheckpointManager(path.parent, item_names=("state", "meta", "metrics")) as manager:
        return sorted(manager.item_metadata(12).keys())


def by_v1(path):
    v1.metadata(path)
    return v1.load(path)


@pytest.mark.parametrize(
    ("save", "restore"),
    [
        (save_standard, by_standard),
        (save_standard, by_pytree),
        (save_standard, by_v1),
        (save_manager_items, by_manager),
        (save_manager_items, by_manager_bare),
        (save_v1, by_v1),
    ],
)
def test_stock_orbax_restores_as_before_and_says_nothing_new(save, restore, tree, tmp_path, caplog):
    path = save(tmp_path / "c", tree)
    expected, said_before = said_while(restore, path, caplog)
    reshard.fingerprint(path)
    found, said_after = said_while(restore, path, caplog)
    assert said_after == said_before
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert str(a) == str(b)


def change(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


@pytest.fixture
def plain(tmp_path):
    rng = np.random.default_rng(0)
    tree = {
        "a": {"w": rng.normal(size=(64, 64)).astype(np.float32)},
        "b": np.arange(99, dtype=np.int32),
    }
    path = save_pytree(tmp_path / "c", tree, use_ocdbt=False, use_compression=False)
    reshard.fingerprint(path)
    return path


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


def test_a_record_is_replaced_only_with_overwrite(plain):
    before = (plain / "slices.json").read_bytes()
    with pytest.raises(TargetExistsError, match=r"slices.json' is there already and was left"):
        reshard.fingerprint(plain)
    assert (plain / "slices.json").read_bytes() == before
    change(plain / "a.w" / "0.0")
    reshard.fingerprint(plain, overwrite=True)
    assert reshard.verify(plain).differences == 0
    assert (plain / "slices.json").read_bytes() != before


def test_a_new_record_keeps_the_recorded_layouts(tmp_path):
    table = (
        reshard.ShardedVariable.from_full if hasattr(reshard.ShardedVariable, "from_full") else None
    )
    del table
    reshard.save(tmp_path / "c", {"w": np.arange(12.0)})
    old = read_slices(locate(tmp_path / "c"))
    reshard.fingerprint(tmp_path / "c", overwrite=True)
    assert read_slices(locate(tmp_path / "c")) == old


def test_damage_that_is_there_already_is_not_recorded(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": np.arange(512)}, use_ocdbt=False)
    (path / "w" / "0").write_bytes(b"no frame")
    with pytest.raises(CorruptError, match="tensor 'w'"):
        reshard.fingerprint(path)
    assert not [p for p in path.rglob("*") if "slices" in p.name]


def test_a_folder_that_cannot_be_written_is_refused_before_it_is_read(plain, monkeypatch):
    (plain / "slices.json").unlink()
    before = files_of(plain)

    def read_only(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(local_files.os, "open", read_only)
    with pytest.raises(StorageError, match="Read-only file system"):
        reshard.fingerprint(plain)
    monkeypatch.undo()
    assert files_of(plain) == before


def test_nothing_half_done_stays_where_reading_fails(plain, monkeypatch):
    (plain / "slices.json").unlink()
    before = files_of(plain)

    def full(_):
        raise StorageError("cannot sync: No space left on device")

    monkeypatch.setattr("reshard.storage.local.store.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        reshard.fingerprint(plain)
    assert files_of(plain) == before


def test_the_command_says_what_was_recorded(plain, capsys):
    (plain / "slices.json").unlink()
    assert run(["inspect", str(plain)]) == 0
    assert f"reshard fingerprint {plain}" in " ".join(capsys.readouterr().out.split())
    assert run(["fingerprint", str(plain)]) == 0
    shown = capsys.readouterr().out
    assert "recorded 2 tensors" in shown
    assert run(["fingerprint", str(plain)]) == 1
    assert run(["fingerprint", str(plain), "--overwrite", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "fingerprint"
    assert [t["name"] for t in document["tensors"]] == ["a/w", "b"]


def test_a_source_without_a_record_is_named_in_plans_and_reports(plain, tmp_path):
    assert reshard.plan(plain, tmp_path / "out").warnings == ()
    (plain / "slices.json").unlink()
    expected = (
        f"{str(plain)!r} carries no checksum of its data, so damage from before now cannot be seen; "
        f"reshard fingerprint {plain} records digests, by which later damage is found"
    )
    assert reshard.plan(plain, tmp_path / "out").warnings == (expected,)
    assert reshard.convert(plain, tmp_path / "out").warnings == (expected,)
    assert reshard.inspect(plain).warnings == (expected,)
    assert reshard.verify(plain).warnings == (expected,)
    assert reshard.inspect(tmp_path / "out").warnings == ()
    # The digests that the conversion recorded vouch for a source that still agrees with them.
    assert reshard.verify(plain, tmp_path / "out").warnings == ()
    assert reshard.verify(tmp_path / "out", plain).warnings == ()


def test_a_single_safetensors_file_takes_no_record(plain, tmp_path):
    file = tmp_path / "m.safetensors"
    save_file({"w": np.zeros(4, "float32")}, file)
    with pytest.raises(reshard.FormatError) as error:
        reshard.fingerprint(file)
    assert str(error.value) == (
        f"{file} is a single safetensors file, which has no room for a record of digests; put it into a folder and record "
        "that, or convert it, which records them; a file that reshard wrote has its record in the header"
    )
    assert reshard.inspect(file).warnings == (
        f"{str(file)!r} carries no checksum of its data, so damage from before now cannot be seen; compare the files "
        "with the SHA-256 sums that are published where they come from",
    )
    (plain / "slices.json").unlink()
    assert reshard.verify(file, plain).warnings[-1] == (
        f"neither {str(file)!r} nor {str(plain)!r} carries a checksum of all its data, so damage from before now cannot "
        f"be seen; reshard fingerprint {plain} records digests, by which later damage is found"
    )


def test_a_folder_of_safetensors_is_recorded(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    save_file({"w": np.arange(4, dtype="float32")}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    assert "reshard fingerprint" in reshard.inspect(folder).warnings[0]
    made = reshard.fingerprint(folder)
    assert (made.written, made.files) == ((str(folder / "slices.json"),), 1)
    assert reshard.inspect(folder).warnings == ()
    assert reshard.verify(folder).differences == 0
    with pytest.raises(reshard.TargetExistsError, match="is there already and was left untouched"):
        reshard.fingerprint(folder)
    save_file({"w": np.arange(1, 5, dtype="float32")}, folder / "model.safetensors")
    (folder / "config.json").write_text("{ }")
    found = reshard.verify(folder)
    assert [v.name for v in found.tensors if v.status != "equal"] == ["w"]
    assert [f.name for f in found.files if f.is_difference] == ["config.json"]
    reshard.fingerprint(folder, overwrite=True)
    assert reshard.verify(folder).differences == 0


def test_the_notice_is_given_once_per_command(plain, tmp_path, capsys):
    (plain / "slices.json").unlink()
    other = shutil.copytree(plain, tmp_path / "other")
    words = [str(plain), *(w for n in "pqr" for w in ("--target", f"={tmp_path / n}"))]
    for command in (["plan", *words], ["convert", *words], ["inspect", str(plain)],
                    ["verify", str(plain), str(other)]):  # fmt: skip
        assert run(command) == 0
        assert " ".join(capsys.readouterr().out.split()).count("damage from before now") == 1
    assert run(["verify", str(plain)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("damage from before now") == 1
    assert "no digest was recorded" not in out
    text = (
        f"neither {str(plain)!r} nor {str(other)!r} carries a checksum of all its data, so damage from before now "
        "cannot be seen; reshard fingerprint records digests, by which later damage is found"
    )
    assert reshard.verify(plain, other).warnings == (text,)


def test_once_it_is_acknowledged_nothing_is_said(plain, tmp_path, capsys):
    reshard.fingerprint(plain, overwrite=True)
    for command in (["plan", str(plain)], ["convert", str(plain), str(tmp_path / "o")], ["inspect", str(plain)],
                    ["verify", str(plain)], ["verify", str(plain), str(tmp_path / "o")]):  # fmt: skip
        assert run(command) == 0
        assert "warning" not in capsys.readouterr().out


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


def test_to_record_digests_changes_no_conversion(tree, tmp_path):
    source = save_manager_items(tmp_path / "run", tree)
    reshard.convert(source, tmp_path / "out")
    reshard.fingerprint(source)
    assert reshard.convert(source, tmp_path / "out").already_done
