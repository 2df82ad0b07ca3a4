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
            assert (
                found[name].digest == f"{crc64nvme(np.ascontiguousarray(array).tobytes()):016x}"
            ), name
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


def test_the_command_says_what_was_recorded(plain, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    (plain / "slices.json").unlink()
    assert run(["inspect", str(plain)]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("warning: ")]
    assert (
        line == f"warning: {str(plain)!r} carries no checksum; reshard fingerprint records digests"
    )
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
    expected = f"{str(plain)!r} carries no checksum; reshard fingerprint records digests"
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
        f"{str(file)!r} carries no checksum; compare it with the published SHA-256",
    )
    (plain / "slices.json").unlink()
    assert reshard.verify(file, plain).warnings[-1] == (
        f"neither {str(file)!r} nor {str(plain)!r} carries a checksum of all data; reshard fingerprint records digests"
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
        assert " ".join(capsys.readouterr().out.split()).count("records digests") == 1
    assert run(["verify", str(plain)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("records digests") == 1
    assert "no digest was recorded" not in out
    text = f"neither {str(plain)!r} nor {str(other)!r} carries a checksum of all data; reshard fingerprint records digests"
    assert reshard.verify(plain, other).warnings == (text,)


def test_once_it_is_acknowledged_nothing_is_said(plain, tmp_path, capsys):
    reshard.fingerprint(plain, overwrite=True)
    for command in (["plan", str(plain)], ["convert", str(plain), str(tmp_path / "o")], ["inspect", str(plain)],
                    ["verify", str(plain)], ["verify", str(plain), str(tmp_path / "o")]):  # fmt: skip
        assert run(command) == 0
        assert "warning" not in capsys.readouterr().out


def test_to_record_digests_changes_no_conversion(tree, tmp_path):
    source = save_manager_items(tmp_path / "run", tree)
    reshard.convert(source, tmp_path / "out")
    reshard.fingerprint(source)
    assert reshard.convert(source, tmp_path / "out").already_done
