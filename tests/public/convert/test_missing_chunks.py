"""Chunks that are not stored are counted, by tensor, and refused or filled as asked; filled as stock Orbax fills them."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

import reshard
from reshard.cli.app import run
from reshard.errors import CorruptError, MissingChunksWarning, PlanError
from reshard.storage.location import Location
from tests.orbax_trees import save_pytree

FORMS = {
    "plain-zarr2": {"use_ocdbt": False, "use_zarr3": False},
    "plain-zarr3": {"use_ocdbt": False, "use_zarr3": True},
    "ocdbt-zarr2": {"use_ocdbt": True, "use_zarr3": False},
    "ocdbt-zarr3": {"use_ocdbt": True, "use_zarr3": True},
}
NOT_STORED = "2 chunks are not stored: 'm/w' (2 of 4)"


@pytest.fixture(scope="module", params=FORMS)
def whole(request, tmp_path_factory):
    """A checkpoint that stores every chunk, in four chunks for ``m/w`` and one for ``b``, and says so."""
    tree = {
        "m": {"w": jnp.arange(1.0, 65.0).reshape(8, 8)},
        "b": jnp.arange(3),
        "s": jnp.float32(2),
    }
    path = tmp_path_factory.mktemp("whole") / "c"
    return save_pytree(path, tree, chunk_byte_size=64, **FORMS[request.param])


def lose(path: Path, *chunks: str) -> Path:
    """Removes stored chunks of ``m/w``, whose number begins so."""
    if (path / "manifest.ocdbt").exists():
        store = ts.KvStore.open({"driver": "ocdbt", "base": path.as_uri() + "/"}).result()
        keys = [key for key in store.list().result() if _is_one(key.decode(), chunks)]
        for key in keys:
            store.delete_range(ts.KvStore.KeyRange(key, key + b"\0")).result()
    else:
        keys = [f for f in path.rglob("*") if _is_one(str(f.relative_to(path)), chunks)]
        for file in keys:
            file.unlink()
    assert len(keys) == len(chunks)
    return path


def _is_one(key: str, chunks: tuple[str, ...]) -> bool:
    name, _, number = key.partition("/")
    return name == "m.w" and number.removeprefix("c/").replace("/", ".") in chunks


def unsaid(path: Path) -> Path:
    """The checkpoint as an older version of Orbax writes it, which does not say that it stores every chunk."""
    document = json.loads((path / "_METADATA").read_text())
    del document["store_array_data_equal_to_fill_value"]
    (path / "_METADATA").write_text(json.dumps(document))
    return path


@pytest.fixture
def strict(whole, tmp_path):
    """Two chunks were lost of a checkpoint that stores every chunk."""
    return lose(Path(shutil.copytree(whole, tmp_path / "strict")), *chunk_numbers(whole)[1:3])


@pytest.fixture
def old(strict, tmp_path):
    """The same of an older version of Orbax."""
    return unsaid(Path(shutil.copytree(strict, tmp_path / "old")))


def chunk_numbers(path: Path) -> list[str]:
    """The numbers of the chunks of ``m/w``."""
    shape = reshard.inspect(path).tensors["m/w"].spec.storage.parts
    return [".".join(map(str, index)) for index in np.ndindex(*shape)]


def stock(path: Path) -> dict[str, np.ndarray]:
    """What stock Orbax restores, as numpy."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))


def test_an_old_checkpoint_is_filled_as_stock_orbax_fills_it_and_a_warning_counts(old, tmp_path):
    planned = reshard.plan(old)
    report = reshard.convert(old, tmp_path / "to", check="readback")
    for found in (planned, report):
        assert found.missing_chunks == {"m/w": 2}
        (told,) = [w for w in found.warnings if "stored" in w]
        assert told == (
            f"{str(old)!r}: {NOT_STORED}; the fill value, mostly 0, is taken instead: older versions of Orbax leave out chunks "
            "that hold nothing else. Files that a copy lost look the same, so compare the copy with its original"
        )
    expected = stock(old)["m"]["w"]
    assert (expected == 0).sum() == 32
    assert np.array_equal(stock(tmp_path / "to")["m"]["w"], expected)
    reports = []
    restored = reshard.restore(old, report=reports.append)
    assert np.array_equal(restored["m"]["w"], expected)
    assert reports[0].missing_chunks == {"m/w": 2}
    assert NOT_STORED in reports[0].warnings[0]
    found = reshard.verify(old, tmp_path / "to")
    assert not found.differences
    assert found.missing_chunks == {"A": {"m/w": 2}, "B": {}}
    assert NOT_STORED in " ".join(found.warnings)
    assert NOT_STORED in reshard.diff(old, tmp_path / "to").warnings[0]
    assert NOT_STORED in reshard.fingerprint(old).warnings[0]


def test_without_a_report_a_restore_and_a_stream_warn(old):
    with pytest.warns(MissingChunksWarning) as caught:
        reshard.restore(old)
    assert NOT_STORED in str(caught[0].message)
    assert caught[0].filename == __file__
    opened = reshard.open_checkpoint(old)
    with pytest.warns(
        MissingChunksWarning, match=r"2 chunks of the stream of 'm/w' are not stored"
    ):
        stream = opened.stream("m/w")
    assert stream.missing_chunks == 2
    assert np.array_equal(np.frombuffer(b"".join(stream), np.float32), stock(old)["m"]["w"].ravel())
    with pytest.warns(MissingChunksWarning, match="of the stream of shard 0 are not stored"):
        assert opened.stream_shard(0, mesh="x=1").missing_chunks == 2


def test_what_is_allowed_is_counted_and_not_told(old, tmp_path):
    allowed = {"missing_chunks": "allow"}
    report = reshard.convert(old, tmp_path / "to", **allowed)
    assert report.missing_chunks == {"m/w": 2}
    assert "stored" not in " ".join(report.warnings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reshard.restore(old, **allowed)
        reshard.open_checkpoint(old).stream("m/w", **allowed)
    assert "stored" not in " ".join(reshard.verify(old, tmp_path / "to", **allowed).warnings)


def test_what_is_refused_leaves_no_target(old, tmp_path):
    refused = {"missing_chunks": "refuse"}
    text = r"'.*old': 2 chunks are not stored: 'm/w' \(2 of 4\); restore the checkpoint from a copy, or take the fill value"
    for call in (
        lambda: reshard.plan(old, **refused),
        lambda: reshard.convert(old, tmp_path / "to", **refused),
        lambda: reshard.restore(old, **refused),
    ):
        with pytest.raises(CorruptError, match=text):
            call()
    assert not (tmp_path / "to").exists()
    with pytest.raises(
        CorruptError, match=r"tensor 'm/w', chunk \[.*\]: not stored, as are 2 of all 4"
    ):
        reshard.open_checkpoint(old).stream("m/w", **refused)
    verdicts = {t.name: t.status for t in reshard.verify(old, old, **refused).tensors}
    assert verdicts["m/w"] == "damaged"
    assert verdicts["b"] == "equal"


def test_where_every_chunk_should_be_stored_they_are_refused(strict, tmp_path):
    for call in (
        lambda: reshard.plan(strict),
        lambda: reshard.convert(strict, tmp_path / "to"),
    ):
        with pytest.raises(
            CorruptError, match="though the checkpoint records that it stores every"
        ):
            call()
    with pytest.raises(CorruptError, match=r"chunk \[.*\]: not stored, as are 2 of all 4"):
        reshard.restore(strict)
    assert [t.name for t in reshard.verify(strict, strict).tensors if t.is_difference] == ["m/w"]
    assert reshard.restore(strict, drop=["m/w"])["b"].tolist() == [0, 1, 2]
    reshard.convert(strict, tmp_path / "rest", drop=["m/w"])


def test_where_every_chunk_should_be_stored_they_can_be_allowed(strict, old, tmp_path):
    expected = stock(old)["m"]["w"]
    allowed = {"missing_chunks": "warn"}
    report = reshard.convert(strict, tmp_path / "to", **allowed)
    assert report.missing_chunks == {"m/w": 2}
    assert NOT_STORED in " ".join(report.warnings)
    assert np.array_equal(stock(tmp_path / "to")["m"]["w"], expected)
    with pytest.warns(MissingChunksWarning):
        assert np.array_equal(reshard.restore(strict, **allowed)["m"]["w"], expected)
    found = reshard.verify(strict, tmp_path / "to", **allowed)
    assert not found.differences
    assert found.missing_chunks == {"A": {"m/w": 2}, "B": {}}


def test_each_of_several_targets_has_its_own_rule(old, tmp_path):
    both = [
        reshard.Target(tmp_path / "a", missing_chunks="allow"),
        reshard.Target(tmp_path / "b", missing_chunks="refuse"),
    ]
    with pytest.raises(CorruptError, match="2 chunks are not stored"):
        reshard.convert_all(old, both)
    both[1] = reshard.Target(tmp_path / "b", select=["^b$"], missing_chunks="refuse")
    reports = reshard.convert_all(old, both).reports
    assert [r.missing_chunks for r in reports] == [{"m/w": 2}, {}]


def test_a_tensor_of_zeros_of_which_older_orbax_stores_nothing(tmp_path):
    path = save_pytree(tmp_path / "c", {"z": jnp.zeros((4, 4))}, use_ocdbt=False)
    (path / "z" / "0.0").unlink()
    found = reshard.plan(unsaid(path))
    assert found.missing_chunks == {"z": 1}
    assert np.array_equal(reshard.restore(path, missing_chunks="allow")["z"], np.zeros((4, 4)))


def test_the_names_of_many_tensors_are_counted(tmp_path):
    path = save_pytree(tmp_path / "c", {f"t{i}": jnp.ones(2) for i in range(5)}, use_ocdbt=False)
    for i in range(5):
        (path / f"t{i}" / "0").unlink()
    (told,) = [w for w in reshard.plan(unsaid(path)).warnings if "stored" in w]
    assert (
        "5 chunks are not stored: 't0' (1 of 1), 't1' (1 of 1), 't2' (1 of 1) and 2 more tensors;"
        in told
    )


def test_what_is_beside_the_chunks_is_not_counted_for_one(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": jnp.arange(64.0)}, use_ocdbt=False, chunk_byte_size=64)
    (path / "w" / "3").rename(path / "w" / "4")
    for name in ("03", "3.0", "x", "-1"):
        (path / "w" / name).write_bytes(b"")
    assert reshard.plan(unsaid(path)).missing_chunks == {"w": 1}


def test_an_unknown_rule_is_refused(old, tmp_path):
    for call in (
        lambda: reshard.plan(old, missing_chunks="fill"),
        lambda: reshard.convert(old, tmp_path / "to", missing_chunks="fill"),
        lambda: reshard.restore(old, missing_chunks="fill"),
        lambda: reshard.verify(old, missing_chunks="fill"),
        lambda: reshard.open_checkpoint(old).stream("m/w", missing_chunks="fill"),
    ):
        with pytest.raises(PlanError, match="missing_chunks is 'fill'; expected"):
            call()


def test_a_plan_lists_and_does_not_look_up_chunks(old, monkeypatch):
    listed = []
    files = Location.files
    monkeypatch.setattr(Location, "files", lambda place: listed.append(place.name) or files(place))
    reshard.plan(old)
    is_plain = not (old / "manifest.ocdbt").exists()
    assert sorted(listed) == (["b", "m.w", "old", "s"] if is_plain else [])


def test_the_command_line_says_its_own_words(old, tmp_path, capsys):
    assert run(["convert", str(old), str(tmp_path / "to"), "--missing-chunks", "refuse"]) == 1
    assert "mostly 0, in their place (--missing-chunks allow)" in capsys.readouterr().err
    assert run(["plan", str(old), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_chunks"] == {"m/w": 2}
    assert run(["convert", str(old), str(tmp_path / "to"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_chunks"] == {"m/w": 2}
    assert run(["verify", str(old), str(tmp_path / "to"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_chunks"] == {"A": {"m/w": 2}, "B": {}}
