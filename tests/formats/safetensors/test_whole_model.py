"""Which files of a folder are the model: half of one is never taken for all of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from reshard.errors import MissingError, NotACheckpointError
from tests.formats.safetensors.build import file_of
from tests.formats.safetensors.models import (
    INDEX,
    SHARD,
    A,
    B,
    C,
    equal,
    folder_of,
    index_of,
    refused,
    told,
)


def test_a_shard_without_an_index_that_is_missing_is_named(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src")
    file_of(source, save({"a": A}), SHARD(1, 3))
    file_of(source, save({"c": C}), SHARD(3, 3))
    assert refused(source, MissingError) == (
        f"{source}/{SHARD(2, 3)} is missing; 2 of 3 are there, and no index says that these are all. Copy it there, or restore "
        "the folder from a copy"
    )
    file_of(source, save({"b": B}), SHARD(2, 3))
    equal(reshard.restore(source), {"a": A, "b": B, "c": C})


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["part-0-of-3", "part-1-of-3"], "part-2-of-3"),
        (["part-1-of-3", "part-2-of-3"], "part-3-of-3"),
        (["m_rank_01_of_02"], "m_rank_00_of_02"),
        (["m.fp16-00002-of-00002"], "m.fp16-00001-of-00002"),
        (["m-00001-of-00002.fp16"], "m-00002-of-00002.fp16"),
        (["shard-00001-model-00001-of-00002"], "shard-00001-model-00002-of-00002"),
    ],
)
def test_files_are_counted_from_0_or_1(tmp_path: Path, there: list[str], missing: str) -> None:
    for number, name in enumerate(there):
        file_of(tmp_path, save({str(number): A}), f"{name}.safetensors")
    with pytest.raises(MissingError) as error:
        reshard.inspect(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/{missing}.safetensors is missing; ")


def test_files_of_ranks_of_torch_are_counted_together(tmp_path: Path) -> None:
    """A rank has no piece of some tensors, and so not every file."""
    for number, name in enumerate(["shard-00001-m-00001-of-00002", "shard-00002-m-00002-of-00002"]):
        file_of(tmp_path, save({str(number): A}), f"{name}.safetensors")
    equal(reshard.restore(tmp_path), {"0": A, "1": A})


def test_one_shard_is_no_model(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src")
    one = file_of(source, save({"a": A}), SHARD(1, 2))
    file_of(source, save({"b": B}), SHARD(2, 2))
    index_of(source, {"a": SHARD(1, 2), "b": SHARD(2, 2)})
    assert refused(Path(one)) == (
        f"{one} is one of 2 files of a model, as its name says; name the folder {source} or the index in it, or take what is "
        'in this file alone (unlisted="include")'
    )
    equal(reshard.restore(one, unlisted="include"), {"a": A})
    assert list(reshard.inspect(file_of(source, save({"a": A}), SHARD(1, 1))).tensors) == ["a"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["model", "model-00001-of-00002", "model-00002-of-00002"],
         "model-00001-of-00002.safetensors and 1 more like it; model.safetensors"),
        (["consolidated", "model"], "consolidated.safetensors; model.safetensors"),
        (["model", "model.fp16"], "model.fp16.safetensors; model.safetensors"),
        (["m-1-of-2", "m-1-of-3", "m-2-of-2"],
         "m-1-of-2.safetensors and 1 more like it; m-1-of-3.safetensors"),
    ],
)  # fmt: skip
def test_several_models_without_an_index_are_refused(
    tmp_path: Path, names: list[str], shown: str
) -> None:
    source = folder_of(tmp_path / "src")
    for name in names:
        file_of(source, save({name: A}), f"{name}.safetensors")
    said = refused(source)
    assert said.startswith(
        f"{source} has safetensors files that may be different models, and no index that says which belong together: {shown}; "
        f"name the file to read, such as {source}/"
    )
    assert said.endswith(
        "; move the other models to folders of their own, or take all files as one model "
        '(unlisted="include")'
    )


def test_a_file_of_several_models_can_be_named_and_all_can_be_taken(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, consolidated={"b": B})
    equal(reshard.restore(source / "model.safetensors"), {"a": A})
    equal(reshard.restore(source, unlisted="include"), {"a": A, "b": B})


@pytest.mark.parametrize("names", [["rank0", "rank1"], ["part_1", "part_2"], ["w.00", "w.01"]])
def test_files_that_differ_in_numbers_are_one_model(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        file_of(tmp_path, save({name: A}), f"{name}.safetensors")
    equal(reshard.restore(tmp_path), dict.fromkeys(names, A))


def test_several_indexes_are_refused_and_one_can_be_named(tmp_path: Path) -> None:
    """As transformers and diffusers save a variant beside a model."""
    source = folder_of(tmp_path / "src", model={"a": A}, model__fp16={"a": B})
    whole = index_of(source, {"a": "model.safetensors"})
    variant = index_of(source, {"a": "model.fp16.safetensors"}, "model.safetensors.index.fp16.json")
    assert refused(source) == (
        f"{source} holds 2 indexes of safetensors files: {variant.name}, {INDEX}; name the one to read, such as {variant}"
    )
    equal(reshard.restore(whole), {"a": A})
    equal(reshard.restore(variant), {"a": B})
    assert told(variant) == []  # the file of the other index is not left out, but of another model


def test_an_index_is_a_source_of_every_function(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src")
    file_of(source, save({"a": A}), SHARD(1, 2))
    file_of(source, save({"b": B}), SHARD(2, 2))
    (source / "config.json").write_text("{}")
    index = index_of(source, {"a": SHARD(1, 2), "b": SHARD(2, 2)})
    assert reshard.checkpoint_format(index) == "safetensors"
    out = tmp_path / "out"
    reshard.convert(index, out, carry=True, check="readback")
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "model.safetensors", "slices.json",
    ]  # fmt: skip
    assert reshard.verify(index, out).differences == 0
    assert reshard.convert(index, out, carry=True).already_done
    opened = reshard.open_checkpoint(index)
    assert b"".join(opened.stream("b")) == B.tobytes()
    file_of(source, save({"a": B}), SHARD(1, 2))
    with pytest.raises(reshard.StorageError, match="is not the checkpoint that was opened"):
        opened.stream("b")
    with pytest.raises(reshard.TargetExistsError):  # another source
        reshard.convert(index, out, carry=True)
    with pytest.raises(
        reshard.FormatError, match="is an index, and a record of digests belongs to its folder"
    ):
        reshard.fingerprint(index)


def part(folder: Path, number: int, offset: list[int], rows: int, **info: Any) -> None:
    """A file of torch's distributed checkpoint that holds rows of ``w``."""
    told = {"w": {"saved_offsets": offset, **info}}
    metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(told)}
    data = save({"w": np.zeros((rows, 3), "float32")}, metadata)
    file_of(folder, data, f"shard-0000{number}-model-00001-of-00001.safetensors")


OPEN = (
    "'w': torch recorded where the parts begin, but no full shape, so that the last parts cannot be proved to be there; compare "
    "the shapes with the model's, in case a file behind shard-0000{}-model-00001-of-00001.safetensors is lost"
)


def test_the_last_part_of_torch_may_be_lost(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src")
    part(source, 1, [0, 0], 2)
    assert told(source) == [OPEN.format(1)]
    part(source, 2, [2, 0], 2)
    part(source, 3, [4, 0], 0)  # 2 + 2 + 0 rows
    assert told(source) == [OPEN.format(3)]
    assert reshard.inspect(source).tensors["w"].spec.shape == (4, 3)


def test_a_number_that_no_file_of_torch_has_is_told(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src")
    part(source, 1, [0, 0], 2)
    part(source, 3, [2, 0], 2)
    assert told(source) == [
        OPEN.format(3),
        "no file is named shard-00002-…, though files with higher numbers are there: rank 1 had nothing to write, or its "
        "file is lost",
    ]


def test_the_full_shape_proves_that_a_part_is_lost(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src")
    part(source, 1, [0, 0], 2, global_shape=[4, 3])
    said = refused(source, reshard.CorruptError)
    assert "'w' of shape [4, 3]: no piece holds [2:4, 0:3]" in said
    assert "so a part of the checkpoint is missing" in said
    part(source, 2, [2, 0], 2, global_shape=[4, 3])
    assert told(source) == []
    part(source, 2, [2, 0], 2)  # one file of an older torch
    assert told(source) == []


def test_what_this_project_wrote_for_torch_is_known_to_be_whole(tmp_path: Path) -> None:
    reshard.save(tmp_path / "orbax", {"w": np.zeros((4, 3), "float32")})
    dcp = tmp_path / "dcp"
    reshard.convert(
        tmp_path / "orbax", dcp, to="safetensors", files="dcp", mesh="a=2", missing_axes="replicate"
    )
    assert reshard.inspect(dcp).warnings == ()


def test_a_step_counts_once_all_of_its_files_are_there(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    one = folder_of(run_folder / "checkpoint-500", model={"a": A})
    two = folder_of(run_folder / "checkpoint-1000")
    (two / "config.json").write_text("{}")
    assert reshard.steps(run_folder) == {500: "checkpoint-500"}
    file_of(two, save({"a": B}), SHARD(1, 2))
    assert reshard.steps(run_folder) == {500: "checkpoint-500"}
    file_of(two, save({"b": B}), SHARD(2, 2))
    assert reshard.steps(run_folder) == {500: "checkpoint-500", 1000: "checkpoint-1000"}
    index_of(two, {"a": SHARD(1, 2), "b": SHARD(2, 2)})
    equal(reshard.restore(run_folder, step="latest"), {"a": B, "b": B})
    (two / SHARD(1, 2)).unlink()
    assert reshard.locate(run_folder, step="latest") == str(one)
    with pytest.raises(
        reshard.IncompleteCheckpointError, match=r"step 1000 of .* was never committed"
    ):
        reshard.inspect(run_folder, step=1000)
    with pytest.raises(NotACheckpointError, match="is a training run's folder with step 500"):
        reshard.inspect(run_folder)
    assert not reshard.is_checkpoint(two)


def test_a_file_that_is_being_written_makes_no_step(tmp_path: Path) -> None:
    step = folder_of(tmp_path / "run" / "step_7", model={"a": A})
    file = step / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for end in (0, 4, 8 + length - 1, 8 + length, len(data) - 1):
        file.write_bytes(data[:end])
        assert reshard.steps(tmp_path / "run") == {}, end
    file.write_bytes(data)
    assert reshard.steps(tmp_path / "run") == {7: "step_7"}


def test_a_model_beside_its_steps_is_not_one_of_them(tmp_path: Path) -> None:
    """As transformers' Trainer leaves its output: the last model at the top."""
    source = folder_of(tmp_path / "run", model={"a": C})
    folder_of(source / "checkpoint-1", model={"a": A})
    equal(reshard.restore(source), {"a": C})
    equal(reshard.restore(source, step="latest"), {"a": A})
