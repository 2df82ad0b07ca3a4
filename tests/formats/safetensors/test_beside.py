"""What lies beside the weights: files, and small folders, are carried; large folders are named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.errors import FormatError, TargetExistsError
from reshard.formats.safetensors import model_folder as module
from reshard.formats.safetensors.model_folder import beside
from reshard.storage.location import locate
from tests.emulators.buckets import Bucket
from tests.formats.safetensors.build import snapshot_of

BESIDE = {
    "config.json": b"{}",
    "1_Pooling/config.json": b'{"mean": true}',
    "tokenizer/deep/er/vocab.txt": b"a\nb\n",
    "1_Dense/model.safetensors": b"not looked at",
    ".gitattributes": b"*.safetensors filter=lfs",
}
HIDDEN = {".git/config": b"x", ".cache/huggingface/lock": b""}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write(tmp_path / "model", BESIDE | HIDDEN)
    save_file({"w": np.arange(8, dtype=np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def small_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLDER_BYTES", 1 << 20)
    monkeypatch.setattr(module, "MOST_FOLDER_FILES", 5)


def carried(folder: Path) -> dict[str, bytes]:
    own = ("model.safetensors", "slices.json")
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in own}


def test_files_and_small_folders_are_carried_with_their_digests(
    model: Path, tmp_path: Path
) -> None:
    report = reshard.convert(model, tmp_path / "out", carry=True)
    assert carried(tmp_path / "out") == BESIDE
    assert not [text for text in report.warnings if "not carried" in text]
    assert reshard.verify(tmp_path / "out").differences == 0
    (tmp_path / "out" / "1_Pooling" / "config.json").write_bytes(b"changed")
    (found,) = (f for f in reshard.verify(tmp_path / "out").files if f.is_difference)
    assert (found.name, found.status) == ("1_Pooling/config.json", "different")


def test_nothing_is_carried_unless_asked_for(model: Path, tmp_path: Path) -> None:
    reshard.convert(model, tmp_path / "out")
    assert carried(tmp_path / "out") == {}


@pytest.mark.usefixtures("small_folders")
def test_large_folders_are_named(model: Path, tmp_path: Path) -> None:
    write(model, {"original/consolidated.00.pth": bytes((1 << 20) + 1)})
    write(model, {f"onnx/{number}.json": b"" for number in range(6)})
    (model / "linked").symlink_to("1_Pooling")
    report = reshard.convert(model, tmp_path / "out", carry=True)
    (warning,) = (text for text in report.warnings if "not carried" in text)
    assert warning == (
        "the folders 'linked', 'onnx', 'original' beside the weights are not carried: only folders of at most 1 MiB and 5 files "
        "are; copy them yourself where the model needs it"
    )
    assert carried(tmp_path / "out") == BESIDE
    assert warning in reshard.plan(model, tmp_path / "other", carry=True).warnings


@pytest.mark.parametrize("in_folder", ["", "1_Pooling/"])
def test_what_is_no_plain_file_is_refused(model: Path, tmp_path: Path, in_folder: str) -> None:
    os.mkfifo(model / f"{in_folder}pipe")
    with pytest.raises(FormatError) as error:
        reshard.convert(model, tmp_path / "out", carry=True)
    assert str(error.value) == (
        f"{model}/{in_folder}pipe is beside the weights and should be carried, but is no plain file; remove it, or leave carry out"
    )


@pytest.mark.parametrize("in_folder", ["", "1_Pooling/"])
def test_a_link_that_leads_out_is_refused(model: Path, tmp_path: Path, in_folder: str) -> None:
    (tmp_path / "secret").write_text("x")
    (model / f"{in_folder}link").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="is a symbolic link to a place outside of"):
        reshard.convert(model, tmp_path / "out", carry=True)


def test_a_snapshot_of_the_hub_is_carried(model: Path, tmp_path: Path) -> None:
    """Its files are links to blobs, those in folders too."""
    for name in BESIDE | HIDDEN:
        if "/" in name:
            (model / name).unlink()
            parent = (model / name).parent
            while parent != model:
                parent.rmdir()
                parent = parent.parent
    snapshot = snapshot_of(model, tmp_path / "models--a--b")
    (snapshot / "tokenizer").mkdir()
    (tmp_path / "models--a--b" / "blobs" / "vocab").write_bytes(b"v")
    (snapshot / "tokenizer" / "vocab.txt").symlink_to("../../../blobs/vocab")
    reshard.convert(snapshot, tmp_path / "out", carry=True)
    assert carried(tmp_path / "out")["tokenizer/vocab.txt"] == b"v"


def test_a_target_with_carried_folders_may_be_replaced_and_others_not(
    model: Path, tmp_path: Path
) -> None:
    reshard.convert(model, tmp_path / "out", carry=True)
    reshard.convert(model, tmp_path / "out", overwrite=True)
    reshard.convert(model, tmp_path / "out", carry=True, overwrite=True)
    write(tmp_path / "out", {"1_Pooling/mine.txt": b"", "1_Pooling/mine.safetensors": b""})
    with pytest.raises(TargetExistsError, match="contains something other than a checkpoint"):
        reshard.convert(model, tmp_path / "out", overwrite=True)


def test_fingerprint_records_what_would_be_carried(model: Path) -> None:
    reshard.fingerprint(model)
    names = {file.name for file in reshard.verify(model).files}
    assert names == {"slices.json", *BESIDE}


def test_carried_from_bucket_to_bucket_without_the_marker(
    gcs_bucket: Bucket, model: Path, tmp_path: Path
) -> None:
    first, second = f"{gcs_bucket.url}/first", f"{gcs_bucket.url}/second"
    reshard.convert(model, first, carry=True)
    reshard.convert(first, second, carry=True)
    found = beside(locate(second))
    assert set(found.files) == set(BESIDE)
    reshard.convert(second, tmp_path / "local", carry=True)
    assert carried(tmp_path / "local") == BESIDE
    assert reshard.verify(second).differences == 0
