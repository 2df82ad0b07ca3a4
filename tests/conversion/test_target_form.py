"""Options of a format that make no sense, leaves that it cannot hold, and records that do not fit: each by its text."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file

import reshard
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Container
from reshard.formats.file_map import FileMap
from reshard.formats.safetensors.format import SafetensorsForm
from reshard.formats.safetensors.header import with_digest
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import SliceFile, render_slices
from reshard.storage.location import locate

MESH = {"axes": ["x"], "shape": [2]}
LAYOUT = {"mesh": MESH, "rules": [{"match": "w", "axes": ["x"]}]}
PARTED = {"mesh": MESH, "rules": [{"match": "w", "axes": ["x"]}], "partitions": [{"match": "t", "fixed_shards": 2, "axis": 0}]}  # fmt: skip


@pytest.fixture
def orbax(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "orbax", {"w": np.ones((4, 2), np.float32), "t": np.zeros(4, np.int8)})
    return tmp_path / "orbax"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    save_file({"w": np.ones((4, 2), np.float32)}, tmp_path / "hf" / "model.safetensors")
    return tmp_path / "hf"


def refused(source: Path, target: Path, kind: type[Exception], **options: Any) -> str:
    with pytest.raises(kind) as error:
        reshard.convert(source, target, **options)
    assert not target.exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"files": "ranks"}, "no tensor has a mesh; give one (mesh or layout), or ask for others (files)"),
        ({"files": "ranks", "layout": PARTED}, "'t' is partitioned without a mesh; give it mesh axes, or ask for 'dcp' (files)"),
        ({"files": "dcp", "file_bytes": 5}, "file_bytes is the size of shards, but files is 'dcp'"),
        ({"files": "one", "carry": True}, "carry is for a folder of files, but the target is a single file"),
        ({"files": "one", "file_names": "a.safetensors"}, "file_names is for a folder of files, but the target"),
        ({"carry": True}, "and copy the files yourself, or name the folder of the model, whose config and tokenizer are copied then (config)"),
        ({"file_names": "a{x}.safetensors"}, "expected the fields {number}, {rank} and {count}, each with a width"),
        ({"file_names": "a{rank:99d}.safetensors"}, "expected the fields {number}, {rank} and {count}"),
        ({"files": "ranks", "layout": LAYOUT, "file_names": "a.safetensors"}, "which gives several of the 2 files the same name"),
        ({"compression": "zstd"}, "compression is an option of Orbax targets, but the target's format is safetensors"),
        ({"chunk_bytes": "1MiB"}, "chunk_bytes is an option of Orbax targets"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(
    orbax: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    assert words in refused(orbax, tmp_path / "out", reshard.PlanError, to="safetensors", **options)


def test_options_of_safetensors_are_not_for_orbax(orbax: Path, tmp_path: Path) -> None:
    said = refused(orbax, tmp_path / "out", reshard.PlanError, files="shards")
    assert "files is an option of safetensors targets, but the target's format is orbax" in said


def test_a_name_of_a_file_is_no_folder(orbax: Path, tmp_path: Path) -> None:
    said = refused(orbax, tmp_path / "a.safetensors", reshard.PlanError, files="shards")
    assert "files is 'shards', which makes a folder, but the target" in said


def test_what_is_carried_must_be_a_plain_file(model: Path, tmp_path: Path) -> None:
    os.mkfifo(model / "pipe")
    said = refused(model, tmp_path / "out", reshard.FormatError, carry=True)
    assert "is beside the weights and should be carried, but is no plain file; remove it" in said


def test_leaves_that_are_no_tensors_are_listed(tmp_path: Path) -> None:
    reshard.save(tmp_path / "src", {"w": np.ones(2), "n": None, "s": "text", "e": {}})
    said = refused(tmp_path / "src", tmp_path / "out", reshard.FormatError, to="safetensors")
    assert "safetensors files hold tensors only, and cannot hold" in said
    assert all(repr(name) in said for name in "nse")
    reshard.convert(tmp_path / "src", tmp_path / "out", to="safetensors", drop=["^[nse]$"])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("w", "gone"), "'gone' is recorded, but no file holds it"),
        ((), "'w' is stored, but not recorded"),
    ],
)
def test_a_record_of_other_tensors(
    model: Path, tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    reshard.convert(model, tmp_path / "out")
    record = read_slices(locate(tmp_path / "out"))
    assert record is not None
    entries = {name: replace(record.tensors["w"], path=(name,)) for name in names}
    text = render_slices(SliceFile(entries, record.files, conversion=record.conversion))
    (tmp_path / "out" / "slices.json").write_bytes(text)
    with pytest.raises(reshard.CorruptError, match=words):
        reshard.inspect(tmp_path / "out")


def test_rank_files_are_of_one_mesh(orbax: Path, tmp_path: Path) -> None:
    meshes = [reshard.DeviceMesh((count,), ("x",)) for count in (2, 4)]
    layout = dict(zip("wt", (reshard.TensorLayout(("x",), mesh) for mesh in meshes), strict=True))
    said = refused(
        orbax, tmp_path / "out", reshard.PlanError, to="safetensors", files="ranks", layout=layout
    )
    assert "over meshes of 2 devices ('w') and 4 devices ('t'); give one mesh for all" in said


def test_items_that_are_no_trees_are_left_out_and_said(tmp_path: Path) -> None:
    args = ocp.args.Composite(
        model=ocp.args.StandardSave({"w": np.ones(4, np.float32)}), meta=ocp.args.JsonSave({"a": 1})
    )
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, args=args)
    made = reshard.convert(tmp_path / "run" / "1", tmp_path / "out", to="safetensors")
    assert any(
        "the items meta are no trees of tensors, so a safetensors" in w for w in made.warnings
    )


def test_only_a_database_has_chunks_without_places() -> None:
    form = SafetensorsForm()
    files = form.plan(TargetCheckpoint(Container(None, ()), {}, (), {}, form))
    assert (files.database, form.put_bytes(8)) == (None, None)
    with pytest.raises(
        reshard.FormatError, match="'w' is no file that chunks share; this is a defect"
    ):
        FileMap(places=files.places, finish=files.finish).shared_file("w")


def test_a_header_that_was_changed(model: Path, tmp_path: Path) -> None:
    reshard.convert(model, tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"format":"pt"', b'"format":"pd"'))
    with pytest.raises(
        reshard.CorruptError, match="is not what reshard wrote: it records the digest"
    ):
        reshard.inspect(tmp_path / "out")


def test_the_digest_of_a_header_is_that_of_its_bytes_with_zeros(
    model: Path, tmp_path: Path
) -> None:
    reshard.convert(model, tmp_path / "out")
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    digest = json.loads(header[8:])["__metadata__"]["reshard.crc64nvme"]
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert with_digest(header.replace(digest.encode(), b"0" * 16)) == header


@pytest.mark.parametrize(
    ("cast", "is_told"), [({"w": "bfloat16"}, True), ({"w": "float16"}, False), ({}, False)]
)
def test_a_cast_that_a_carried_config_contradicts_is_told(
    tmp_path: Path, cast: dict[str, str], is_told: bool
) -> None:
    """Whatever dtypes the source has besides."""
    folder = tmp_path / "hf"
    folder.mkdir()
    tensors = {"w": np.ones((4, 2), np.float32), "b": np.ones(2, ml_dtypes.bfloat16)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"dtype": "float16"}')
    report = reshard.convert(folder, tmp_path / "out", carry=True, cast=cast)
    told = [text for text in report.warnings if "config.json" in text]
    assert bool(told) == is_told
    assert not told or told[0].startswith(
        "floats were cast to bfloat16, but config.json, which is carried, says float16"
    )


RENAMED = [(r"^(\w+)/kernel$", r"model.\1.weight"), ("^norm/scale$", "model.norm.weight")]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Orbax checkpoint as Flax names it, and one whose names end in .weight already."""
    root = tmp_path_factory.mktemp("kernels")
    names = ("up", "down", "gate", "out")
    reshard.save(
        root / "flax",
        {
            **{name: {"kernel": np.ones((4, 4), np.float32)} for name in names},
            "norm": {"scale": np.ones(4, np.float32)},
        },
    )
    reshard.save(root / "torch", {"model.up.weight": np.ones((4, 4), np.float32)})
    return root


@pytest.mark.parametrize(
    ("source", "rename", "told"),
    [
        ("flax", RENAMED, "4 renamed tensors of two or more dimensions end in .weight ('model.down.weight', 'model.gate.weight', "
         "'model.out.weight', …) and kept"),
        ("flax", [("^up/kernel$", "up.weight")], "1 renamed tensor of two or more dimensions ends in .weight ('up.weight') and kept"),
        ("flax", [("^norm/scale$", "norm.weight")], ""),
        ("flax", [], ""),
        ("torch", [], ""),
    ],
)  # fmt: skip
def test_kernels_that_become_weights_are_told(
    kernels: Path, tmp_path: Path, source: str, rename: list[tuple[str, str]], told: str
) -> None:
    report = reshard.convert(kernels / source, tmp_path / "out", to="safetensors", rename=rename)
    found = [text for text in report.warnings if ".weight" in text]
    assert len(found) == bool(told)
    assert not told or found[0] == (
        f"{told} the order of dimensions: where one is a kernel [in, out], torch expects [out, in], and a square one loads "
        "without an error and computes nonsense; transpose kernels before you load them"
    )


def test_weights_that_were_safetensors_are_not_told(kernels: Path, tmp_path: Path) -> None:
    reshard.convert(kernels / "torch", tmp_path / "hf", to="safetensors")
    report = reshard.convert(tmp_path / "hf", tmp_path / "out", rename=[("up", "down")])
    assert not [text for text in report.warnings if ".weight" in text]
