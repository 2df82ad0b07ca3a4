"""The files of a model keep the names by which its loaders find them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.formats.safetensors.files import ModelName, name_of_files, name_of_index
from tests.formats.safetensors.build import TREE, dcp_file
from tests.oracles.oracle import Oracle

USUAL = ModelName()
TENSORS = {f"t{number}": np.full((4, 4), number, np.float32) for number in range(3)}


@pytest.mark.parametrize(
    ("files", "stem", "index"),
    [
        (["model.safetensors"], "model", "model.safetensors.index.json"),
        (["adapter_model.safetensors"], "adapter_model", "adapter_model.safetensors.index.json"),
        (["model.fp16.safetensors"], "model.fp16", "model.safetensors.index.fp16.json"),
        (["diffusion_pytorch_model.bf16.safetensors"], "diffusion_pytorch_model.bf16",
         "diffusion_pytorch_model.safetensors.index.bf16.json"),
        (["qwen2.5.safetensors"], "qwen2.5", "qwen2.5.safetensors.index.json"),
        (["model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"], "model.fp16",
         "model.safetensors.index.fp16.json"),
        (["model-00001-of-000163.safetensors", "model-00002-of-000163.safetensors"], "model", "model.safetensors.index.json"),
        (["model-00001-of-00002.fp16.safetensors", "model-00002-of-00002.fp16.safetensors"], "model.fp16",
         "model.safetensors.index.fp16.json"),
        (["consolidated-00001-of-00001.safetensors"], "consolidated", "consolidated.safetensors.index.json"),
        (["a.safetensors", "b.safetensors"], "model", "model.safetensors.index.json"),
        (["blob"], "model", "model.safetensors.index.json"),
        (["a\nb.safetensors"], "model", "model.safetensors.index.json"),
        (["ü" * 120 + ".safetensors"], "model", "model.safetensors.index.json"),
    ],
)  # fmt: skip
def test_the_name_of_files(files: list[str], stem: str, index: str) -> None:
    assert name_of_files(files) == ModelName(stem, index)


@pytest.mark.parametrize(
    ("index", "stem"),
    [
        ("model.safetensors.index.json", "model"),
        ("diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model"),
        ("model.safetensors.index.fp16.json", "model.fp16"),
        ("model.fp16.safetensors.index.json", "model.fp16"),
    ],
)
def test_the_name_of_an_index_is_kept(index: str, stem: str) -> None:
    assert name_of_index(index) == ModelName(stem, index)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "slices.json")


def in_shards(folder: Path, files: list[str], index: str) -> Path:
    """A folder with a tensor in each file, and their index."""
    folder.mkdir()
    weight_map = dict(zip(TENSORS, files, strict=True))
    for name, file in weight_map.items():
        save_file({name: TENSORS[name]}, folder / file)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def three(stem: str) -> list[str]:
    return [f"{stem}-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("stem", "index"),
    [
        ("adapter_model", "adapter_model.safetensors.index.json"),
        ("diffusion_pytorch_model", "diffusion_pytorch_model.safetensors.index.json"),
        ("model.fp16", "model.safetensors.index.fp16.json"),
    ],
)
def test_one_file_and_shards_become_each_other(tmp_path: Path, stem: str, index: str) -> None:
    (tmp_path / "one").mkdir()
    save_file(TENSORS, tmp_path / "one" / f"{stem}.safetensors")
    reshard.convert(tmp_path / "one", tmp_path / "three", file_bytes=64)
    assert names_in(tmp_path / "three") == sorted([*three(stem), index])
    weight_map = json.loads((tmp_path / "three" / index).read_text())["weight_map"]
    assert list(weight_map.values()) == three(stem)
    reshard.convert(tmp_path / "three", tmp_path / "again", file_bytes=64)
    assert names_in(tmp_path / "again") == names_in(tmp_path / "three")
    reshard.convert(tmp_path / "three", tmp_path / "back")
    assert names_in(tmp_path / "back") == [f"{stem}.safetensors"]
    assert reshard.verify(tmp_path / "one", tmp_path / "back").differences == 0
    assert reshard.verify(tmp_path / "back").differences == 0


def test_an_index_names_the_model_whatever_its_files_are_called(tmp_path: Path) -> None:
    files = ["a.safetensors", "b.safetensors", "c.safetensors"]
    source = in_shards(tmp_path / "in", files, "diffusion_pytorch_model.safetensors.index.json")
    reshard.convert(source, tmp_path / "out")
    assert names_in(tmp_path / "out") == ["diffusion_pytorch_model.safetensors"]


def test_files_of_slices_have_no_name_to_keep(tmp_path: Path) -> None:
    (tmp_path / "dcp").mkdir()
    name, array = next(iter(TREE.items()))
    for number, start in ((1, 0), (2, 6)):
        dcp_file(tmp_path / "dcp", number, {name: (array[start : start + 6], [start, 0])})
    reshard.convert(tmp_path / "dcp", tmp_path / "out", files="shards")
    assert names_in(tmp_path / "out") == ["model.safetensors"]


def test_an_orbax_source_has_the_usual_names(tmp_path: Path) -> None:
    reshard.save(tmp_path / "orbax", TENSORS)
    reshard.convert(tmp_path / "orbax", tmp_path / "out", to="safetensors", file_bytes=64)
    assert names_in(tmp_path / "out") == [*three("model"), "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("pattern", "index"),
    [
        ("diffusion_pytorch_model-{number:05d}-of-{count:05d}.safetensors", "diffusion_pytorch_model.safetensors.index.json"),
        ("model.fp16-{number:05d}-of-{count:05d}.safetensors", "model.safetensors.index.fp16.json"),
        ("weights-{number}.safetensors", "adapter_model.safetensors.index.json"),
    ],
)  # fmt: skip
def test_names_that_are_asked_for_name_the_index(tmp_path: Path, pattern: str, index: str) -> None:
    (tmp_path / "in").mkdir()
    save_file(TENSORS, tmp_path / "in" / "adapter_model.safetensors")
    reshard.convert(tmp_path / "in", tmp_path / "out", file_bytes=64, file_names=pattern)
    assert [name for name in names_in(tmp_path / "out") if name.endswith("json")] == [index]


def test_an_index_of_a_variant_is_of_the_weights(tmp_path: Path) -> None:
    """It is neither carried beside the new weights, nor does it keep a target from being replaced."""
    source = in_shards(tmp_path / "in", three("model.fp16"), "model.safetensors.index.fp16.json")
    (source / "config.json").write_text("{}")
    reshard.convert(source, tmp_path / "out", carry=True)
    assert names_in(tmp_path / "out") == ["config.json", "model.fp16.safetensors"]
    reshard.convert(source, tmp_path / "out", carry=True, file_bytes=64, overwrite=True)
    reshard.convert(source, tmp_path / "out", carry=True, overwrite=True)
    (source / "model.fp16-00003-of-00003.safetensors").unlink()
    with pytest.raises(reshard.MissingError, match=r"index\.fp16\.json says that 't2' is in"):
        reshard.inspect(source)


@pytest.mark.xdist_group("torch")
def test_transformers_loads_a_variant_by_its_name(torch: Oracle, tmp_path: Path) -> None:
    folders = {str(tmp_path / "plain"): "5GB"}
    logits: Any = torch.ask("save_model", kind="llama", folders=folders)
    (tmp_path / "in").mkdir()
    shutil.copy(tmp_path / "plain" / "config.json", tmp_path / "in")
    shutil.copy(
        tmp_path / "plain" / "model.safetensors", tmp_path / "in" / "model.fp16.safetensors"
    )
    for size in (None, "20KB"):
        folder = tmp_path / f"out-{size}"
        reshard.convert(tmp_path / "in", folder, carry=True, file_bytes=size)
        assert (folder / "model.safetensors.index.fp16.json").exists() == (size is not None)
        found = torch.ask("load_model", folder=str(folder), variant="fp16")
        assert found == {"logits": logits, "missing_keys": [], "unexpected_keys": []}
