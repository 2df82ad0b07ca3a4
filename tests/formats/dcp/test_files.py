"""The files of a distributed checkpoint: missing, cut short, of other programs, or not of one checkpoint."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
)
from reshard.formats.dcp import files
from reshard.formats.dcp.items import ArchiveWindow, ItemFiles
from reshard.formats.dcp.metadata import ItemPlace
from reshard.storage.location import locate
from tests.dcp_files import (
    cut,
    tensor_archive,
    tensor_entry,
    write_dcp,
    write_items,
)
from tests.formats.dcp.small import LISTED, WHOLE, W, refusal
from tests.robustness.hostile.damage_json import sealed


def test_files_that_are_missing_or_cut_short(tmp_path: Path) -> None:
    write_dcp(tmp_path, {"w": cut(W, 4)}, files=3)
    last = tmp_path / "__2_0.distcp"
    data = last.read_bytes()
    last.write_bytes(data[:-1])
    assert refusal(tmp_path) == (
        f"DIR/__2_0.distcp ends after {len(data) - 1:,} bytes, but the piece [1:2, 0:3] of 'w' is in {len(data):,} bytes from 0 on; it was cut "
        "short, so restore it from a copy"
    )
    last.unlink()
    (tmp_path / "__1_0.distcp").unlink()
    assert refusal(tmp_path, MissingError) == (
        "DIR: the metadata says that tensors are in '__1_0.distcp' and 1 more, but the folder has no such file; copy it there, or restore the "
        "folder from a copy"
    )


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    shutil.move(folder / "__0_0.distcp", tmp_path / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link to a place outside of" in refusal(folder, FormatError)


def test_one_file_of_it_is_named_by_its_folder(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    for name in (".metadata", "__0_0.distcp"):
        with pytest.raises(NotACheckpointError) as error:
            reshard.inspect(folder / name)
        assert str(error.value) == (
            f"{folder / name} is one file of a distributed checkpoint of torch; name its folder, {folder}"
        )


def test_without_its_metadata_the_save_did_not_finish(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    (folder / ".metadata").unlink()
    assert refusal(folder, IncompleteCheckpointError).startswith(
        "DIR has .distcp files but no .metadata, which torch writes last: the save did not finish"
    )


def test_nothing_overwrites_it(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W})
    reshard.save(tmp_path / "orbax", {"w": W})
    with pytest.raises(reshard.StorageError, match="contains something other than a checkpoint"):
        reshard.convert(tmp_path / "orbax", folder, overwrite=True)
    assert (reshard.restore(folder)["w"] == W).all()


def test_a_record_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": W, "v": W})
    reshard.fingerprint(folder)
    reshard.inspect(folder)
    listed = {"w": LISTED["w"]}
    write_items(folder, listed, [WHOLE])
    assert "digest" in refusal(folder)
    assert reshard.verify(folder).differences
    reshard.fingerprint(folder, overwrite=True)
    record = json.loads((folder / "slices.json").read_bytes())
    record["tensors"]["x"] = record["tensors"].pop("w") | {"path": ["x"]}
    (folder / "slices.json").write_bytes(sealed(json.dumps(record).encode()))
    assert "'x' is recorded, but no file holds it" in refusal(folder)
    record["tensors"].pop("x")
    (folder / "slices.json").write_bytes(sealed(json.dumps(record).encode()))
    assert "'w' is stored, but not recorded" in refusal(folder)


def test_ranks_that_contradict_each_other(tmp_path: Path) -> None:
    write_items(tmp_path, LISTED, [WHOLE], metadata="__0.metadata")
    other = {"w": tensor_entry("int64", (4, 3), [((0, 0), (4, 3))])}
    write_items(tmp_path, other, [WHOLE], metadata="__1.metadata")
    assert refusal(tmp_path) == (
        "DIR/__0.metadata and the files of other ranks have 'w' with different shapes or dtypes; the files are not of one checkpoint"
    )


def test_metadata_of_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dcp(tmp_path, {"w": W})
    nbytes = (tmp_path / ".metadata").stat().st_size
    monkeypatch.setattr(files, "MAX_PICKLE_BYTES", nbytes - 1)
    assert refusal(tmp_path, FormatError) == (
        f"DIR has {nbytes:,} bytes of metadata; at most {nbytes - 1:,} are read"
    )


def test_metadata_of_one_rank_that_is_missing(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_items(tmp_path, LISTED, [WHOLE], metadata=f"__{rank}.metadata")
    assert refusal(tmp_path, IncompleteCheckpointError) == (
        "DIR has the metadata of 2 ranks, up to 2, but not __1.metadata: that rank did not finish its save, or the file was not copied"
    )


def test_what_is_read_of_an_archive_ends_where_it_ends(tmp_path: Path) -> None:
    nbytes = len(WHOLE.archive)
    (tmp_path / "x").write_bytes(WHOLE.archive + b"more")
    window = window_of(tmp_path, ItemPlace("x", 0, nbytes))
    assert window.read(nbytes - 4, 4) == WHOLE.archive[-4:]
    with pytest.raises(CorruptError) as error:
        window.read(nbytes - 3, 4)
    assert str(error.value) == (
        f"{tmp_path}/x: it ends after {nbytes:,} bytes, but a part of it should be at {nbytes - 3:,}; restore the file from a copy"
    )


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path: Path) -> None:
    data = tensor_archive(np.zeros(5000, np.int32))
    (tmp_path / "x").write_bytes(data)
    window = window_of(tmp_path, ItemPlace("x", 0, len(data)))
    (tmp_path / "x").write_bytes(data[:6000])
    with pytest.raises(CorruptError) as error:
        window.read(5000, 2000)
    assert str(error.value) == (
        f"{tmp_path}/x: it: the file ends at byte 6,000; restore it from a copy"
    )


def window_of(folder: Path, place: ItemPlace) -> ArchiveWindow:
    opened = ItemFiles(locate(str(folder)), [place.file])
    with closing(opened):
        ((_, window),) = opened.windows([place], {place: ("it", True)})
    return window
