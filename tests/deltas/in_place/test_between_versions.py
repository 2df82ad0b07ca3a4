"""A folder between two versions: no reader takes it, and the next call ends the change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import reshard
from reshard.deltas.in_place import apply_in_place as steps
from tests.delta_layout import stored, write_full
from tests.deltas.in_place.versions import HIDDEN, INDEX, LIKE, V0, V1, V2, write_shards


@pytest.fixture
def halfway(deltas: list[Path], tmp_path: Path) -> Path:
    """A folder between two versions: all bytes are changed, and the call has ended before it said so."""
    return stop_halfway(write_shards(tmp_path / "base", V0), deltas)


def stop_halfway(base: Path, deltas: list[Path]) -> Path:
    def failed(*_: Any) -> None:
        raise reshard.StorageError("the device is gone")

    ended = pytest.raises(reshard.StorageError, match="the device is gone")
    with patch.object(steps, "mark_done", failed), ended:
        reshard.apply_in_place(base, deltas)
    return base


READING: dict[str, Callable[[Path], Any]] = {
    "inspect": reshard.inspect,
    "verify": reshard.verify,
    "convert": lambda base: reshard.convert(base, base.parent / "made"),
    "plan": reshard.plan,
    "apply": lambda base: reshard.apply(base, sorted((base.parent / "published").iterdir()), base.parent / "made"),
    "delta": lambda base: reshard.delta(base, base.parent / "full/v2", base.parent / "weight_v000009"),
    "fingerprint": reshard.fingerprint,
    "identify": reshard.identify,
    "restore": reshard.restore,
    "a file": lambda base: reshard.inspect(base / "model-00001-of-00002.safetensors"),
    "the index": lambda base: reshard.inspect(base / INDEX),
    "the hidden folder": lambda base: reshard.inspect(base / HIDDEN),
}  # fmt: skip


@pytest.mark.parametrize("how", READING)
def test_no_reader_takes_a_folder_between_two_versions(how: str, halfway: Path) -> None:
    with pytest.raises(
        reshard.IncompleteCheckpointError,
        match="is between two versions of its weights: reshard apply --in-place changes it, or was interrupted; wait for it to end, or run the "
        "same command again to finish it",
    ):
        READING[how](halfway)


def test_other_programs_find_no_weights_in_it_and_the_same_call_ends_it(
    halfway: Path, deltas: list[Path]
) -> None:
    assert [one.name for one in halfway.iterdir() if not one.is_dir()] == ["config.json"]
    assert not reshard.is_checkpoint(halfway)
    below = write_full(halfway / "below", V0, LIKE)
    assert reshard.inspect(below)
    shutil.rmtree(below)
    with pytest.raises(reshard.TargetExistsError, match="contains something other than a checkpoint"):  # fmt: skip
        reshard.convert(halfway.parent / "full/v0", halfway, to="safetensors", overwrite=True)
    (halfway / "model-00001-of-00002.safetensors").write_bytes(b"copied")
    with pytest.raises(reshard.StorageError, match=r"was put there while the folder is between two versions, and the file that is changed is .* run again"):  # fmt: skip
        reshard.apply_in_place(halfway, deltas)
    (halfway / "model-00001-of-00002.safetensors").unlink()
    report = reshard.apply_in_place(halfway, deltas)
    assert (report.resumed, report.version, report.written_bytes) == (True, "000002", 0)
    assert stored(halfway) == V2
    assert reshard.inspect(halfway)


def test_a_file_that_something_changed_meanwhile_is_found_and_can_be_brought_back(
    deltas: list[Path], tmp_path: Path
) -> None:
    base = stop_halfway(write_shards(tmp_path / "base", V0), deltas[:1])
    file = base / HIDDEN / "model-00002-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    for at in range(len(data) - 64, len(data)):  # most of them are bytes that no delta changes
        data[at] ^= 1
    file.write_bytes(data)
    where = rf"something else has written to {file.name}; put that file of the version before into .*{HIDDEN}, and run again"
    with pytest.raises(reshard.VerificationError, match=where):
        reshard.apply_in_place(base, deltas[:1])
    file.unlink()
    with pytest.raises(reshard.MissingError, match="is gone while the folder is between two versions; copy it there from the version before"):  # fmt: skip
        reshard.apply_in_place(base, deltas[:1])
    shutil.copy(write_shards(tmp_path / "copy", V0) / file.name, file)
    reshard.apply_in_place(base, deltas[:1])
    assert stored(base) == V1


def test_files_that_are_back_are_not_taken_away_again(deltas: list[Path], tmp_path: Path) -> None:
    """A program may have begun to load the new version."""
    base = write_shards(tmp_path / "base", V0)

    def failed(*_: Any) -> None:
        raise reshard.StorageError("the device is gone")

    with patch.object(steps, "end_change", failed), pytest.raises(reshard.StorageError):
        reshard.apply_in_place(base, deltas)
    assert stored(base) == V2
    nodes = {file.name: file.stat().st_ctime_ns for file in base.glob("*.safetensors")}
    report = reshard.apply_in_place(base, deltas)
    assert (report.resumed, report.written_bytes) == (True, 0)
    assert {file.name: file.stat().st_ctime_ns for file in base.glob("*.safetensors")} == nodes
    assert stored(base) == V2


def test_the_deltas_are_not_needed_to_end_it(halfway: Path, deltas: list[Path]) -> None:
    for delta in deltas:
        shutil.rmtree(delta)
    with pytest.raises(reshard.MissingError, match="expected the folder of a delta"):
        reshard.apply_in_place(halfway, deltas)
    assert stored(halfway) == V2
    assert not (halfway / HIDDEN).exists()
