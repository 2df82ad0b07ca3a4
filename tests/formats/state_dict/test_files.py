"""Which files of a folder are the model, what a hint says of others, and files that only look like state dicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

import reshard
from reshard.errors import CorruptError, FormatError, MissingError, NotACheckpointError
from tests.state_files import state_archive, write_state

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4)
SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
INDEX = "pytorch_model.bin.index.json"


def refusal(place: Path, kind: type[Exception]) -> str:
    """The message, without the folder of the test."""
    with pytest.raises(kind) as error:
        reshard.inspect(place)
    return str(error.value).replace(str(place), "PLACE")


def shards(folder: Path, **listed: int) -> Path:
    """A model of two files, and an index that says in which of them each name is."""
    write_state(folder / SHARDS[0], {"a": A, "both": B, "count": 3})
    write_state(folder / SHARDS[1], {"b": B, "both": A})
    weight_map = {name: SHARDS[number] for name, number in listed.items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("name", ["pytorch_model.bin", "diffusion_pytorch_model.bin", "adapter_model.bin"])  # fmt: skip
def test_the_model_of_a_folder_is_read(tmp_path: Path, name: str) -> None:
    write_state(tmp_path / name, {"a": A})
    for other in ("optimizer.pt", "training_args.bin", "config.json"):
        (tmp_path / other).write_bytes(b"anything")
    assert reshard.restore(tmp_path)["a"].tolist() == A.tolist()


def test_an_index_decides(tmp_path: Path) -> None:
    folder = shards(tmp_path, a=0, both=1)
    info = reshard.inspect(folder)
    assert list(info.tensors) == ["a", "both"]
    assert info.tensors["both"].spec.shape == A.shape
    assert info.warnings[0] == (
        f"{folder / INDEX} does not list 'both' in {SHARDS[0]}, 'count' in {SHARDS[0]}, 'b' in {SHARDS[1]} of its files, left out here; take "
        'them with (unlisted="include")'
    )
    found = reshard.restore(folder, unlisted="include")
    assert (found["count"], found["b"].tolist(), found["both"].shape) == (3, B.tolist(), A.shape)


def test_index_and_files_must_fit(tmp_path: Path) -> None:
    shards(tmp_path, a=0, b=0)
    assert refusal(tmp_path, CorruptError) == (
        f"PLACE/{INDEX} says that 'b' is in '{SHARDS[0]}', which does not hold it; index and files are not of one checkpoint"
    )
    (tmp_path / SHARDS[0]).unlink()
    assert refusal(tmp_path, MissingError) == (
        f"PLACE/{INDEX} says that 'a' is in '{SHARDS[0]}', but PLACE has no such file; copy it there, or restore the folder from a copy"
    )
    (tmp_path / INDEX).unlink()
    assert refusal(tmp_path, MissingError) == (
        "PLACE has files pytorch_model-…-of-….bin, but no index that says what is in them; expected pytorch_model.bin.index.json: copy it "
        "there"
    )
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "../x"}}')
    assert "is '../x'; expected the name of a file in this folder" in refusal(tmp_path, CorruptError)  # fmt: skip


def test_two_models_in_a_folder_are_told_apart(tmp_path: Path) -> None:
    shards(tmp_path, a=0)
    write_state(tmp_path / "pytorch_model.bin", {"w": B})
    assert refusal(tmp_path, NotACheckpointError) == (
        f"PLACE holds 2 models: pytorch_model.bin, {INDEX}; name the one to read, such as PLACE/pytorch_model.bin"
    )
    assert list(reshard.inspect(tmp_path / "pytorch_model.bin").tensors) == ["w"]
    assert list(reshard.inspect(tmp_path / INDEX).tensors) == ["a"]


def test_safetensors_are_read_first(tmp_path: Path) -> None:
    write_state(tmp_path / "pytorch_model.bin", {"w": B})
    save_file({"s": A}, tmp_path / "model.safetensors")
    assert list(reshard.inspect(tmp_path).tensors) == ["s"]


def test_other_files_are_named_by_a_hint(tmp_path: Path) -> None:
    write_state(tmp_path / "consolidated.00.pth", {"w": B})
    assert refusal(tmp_path, NotACheckpointError).endswith(
        "; it holds a file of torch.save, so name that: PLACE/consolidated.00.pth"
    )
    assert "which reshard does not read" not in refusal(tmp_path, NotACheckpointError)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    shards(tmp_path / "model", a=0)
    (tmp_path / "model" / SHARDS[0]).rename(tmp_path / "elsewhere.bin")
    (tmp_path / "model" / SHARDS[0]).symlink_to(tmp_path / "elsewhere.bin")
    for place in (tmp_path / "model", tmp_path / "model" / INDEX):
        assert "link" in refusal(place, FormatError)


def test_steps_are_finished_where_their_files_end(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write_state(tmp_path / f"checkpoint-{step}" / "pytorch_model.bin", {"w": B})
    file = tmp_path / "checkpoint-30" / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-30])
    assert list(reshard.steps(tmp_path)) == [10, 20]
    assert list(reshard.inspect(tmp_path, step="latest").tensors) == ["w"]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
WHOLE = state_archive({"a": A})
OTHERS: dict[str, tuple[bytes, type[Exception], str]] = {
    "safetensors": (
        save({"a": A}), FormatError,
        "PLACE is a safetensors file by its content, whatever its name says; name the file itself, or give it a name that ends in .safetensors",
    ),
    "pointer": (
        POINTER, FormatError,
        "PLACE is a Git LFS pointer, a small text in place of the file: it was cloned without git-lfs; run 'git lfs install' and 'git lfs pull' "
        "in the clone, or download the file itself",
    ),
    "cut short": (
        WHOLE[:-40], CorruptError,
        "PLACE should be an archive of torch.save, but it does not end as an archive does; restore the file from a copy",
    ),
    "the start alone": (
        WHOLE[:10], CorruptError,
        "PLACE should be an archive of torch.save, but it does not begin as an archive does; restore the file from a copy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("in_folder", [False, True])
def test_what_is_in_place_of_a_state_dict_is_named(
    tmp_path: Path, case: str, in_folder: bool
) -> None:
    data, kind, said = OTHERS[case]
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(data)
    if case == "safetensors" and not in_folder:
        assert reshard.inspect(file).format == "safetensors"
        return
    with pytest.raises(kind) as error:
        reshard.inspect(tmp_path if in_folder else file)
    assert str(error.value).replace(str(file), "PLACE") == said


@pytest.mark.parametrize("data", [b"", b"text", b"\x80\x04}.", bytes(100)])
def test_other_files_with_such_names_are_not_looked_into(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(data)
    assert "PLACE is not a checkpoint of a known format" in refusal(file, NotACheckpointError)


def test_a_model_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").mkdir()
    options: Any = {"match": "is not a checkpoint of a known format"}
    with pytest.raises(NotACheckpointError, **options):
        reshard.inspect(tmp_path)
