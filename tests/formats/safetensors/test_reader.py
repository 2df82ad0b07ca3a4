"""Safetensors as a source: one file, shards with an index, and the folders of Hugging Face's cache."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import save

import reshard
from reshard.errors import CorruptError, FormatError, MissingError, NotACheckpointError, PlanError
from reshard.formats.safetensors.reader import (
    OPENED_TENSOR_BYTES,
    leaf_count,
    open_safetensors,
)
from reshard.storage.location import locate
from tests.campaigns import singly
from tests.formats.safetensors.build import TREE, entry, file_of, packed, sharded, snapshot_of

PARSER_BYTES = 1 << 20
"""The check of a JSON text's depth works on blocks of it, whatever its length."""


def equal(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes(), name


def test_a_file_is_a_checkpoint(tmp_path: Path) -> None:
    path = file_of(tmp_path, save(TREE), "model.safetensors")
    info = reshard.inspect(path)
    assert (info.format, set(info.tensors)) == ("safetensors", set(TREE))
    equal(reshard.restore(path), TREE)


def test_any_name_of_a_file_will_do(tmp_path: Path) -> None:
    equal(reshard.restore(file_of(tmp_path, save(TREE), "weights")), TREE)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_it_becomes_an_orbax_checkpoint(tmp_path: Path, is_sharded: bool) -> None:
    source = tmp_path / "hf"
    if is_sharded:
        sharded(source)
    else:
        source.mkdir()
        file_of(source, save(TREE), "model.safetensors")
    layout = {
        "mesh": {"axes": ["model"], "shape": [8]},
        "rules": [{"match": "weight", "axes": [None, "model"]}],
        "unmatched": "replicate",
    }
    report = reshard.convert(source, tmp_path / "out", to="orbax", layout=layout, check="readback")
    assert all(tensor.proof == "proved" for tensor in report.tensors)
    assert reshard.verify(source, tmp_path / "out").differences == 0
    equal(reshard.restore(tmp_path / "out", layout=None), reshard.restore(source))
    found = ocp.StandardCheckpointer().restore(tmp_path / "out")
    equal({name: np.asarray(array) for name, array in found.items()}, TREE)
    again = reshard.convert(source, tmp_path / "out", to="orbax", layout=layout, check="readback")
    assert again.already_done


def test_names_can_be_made_a_tree(tmp_path: Path) -> None:
    path = file_of(tmp_path, save({"a.b.c": TREE["flag"], "a.b.d": TREE["flag"]}), "m.safetensors")
    reshard.convert(path, tmp_path / "out", to="orbax", rename=[(r"^a\.b\.(\w)$", r"a/b/\1")])
    assert set(reshard.restore(tmp_path / "out")["a"]["b"]) == {"c", "d"}


def test_a_changed_file_is_another_source(tmp_path: Path) -> None:
    path = file_of(tmp_path, save({"w": np.zeros(4, "float32")}), "m.safetensors")
    reshard.convert(path, tmp_path / "out", to="orbax")
    file_of(tmp_path, save({"w": np.ones(4, "float32")}), "m.safetensors")
    os.utime(path, ns=(1, 1))
    with pytest.raises(reshard.TargetExistsError):
        reshard.convert(path, tmp_path / "out", to="orbax")


def test_a_folder_of_safetensors_is_never_overwritten(tmp_path: Path) -> None:
    path = file_of(tmp_path, save(TREE), "m.safetensors")
    sharded(tmp_path / "hf")
    with pytest.raises(
        reshard.TargetExistsError, match="contains something other than a checkpoint"
    ):
        reshard.convert(path, tmp_path / "hf", overwrite=True)
    assert (tmp_path / "hf" / "config.json").exists()


def test_links_of_the_cache_of_hugging_face_are_followed(tmp_path: Path) -> None:
    snapshot = snapshot_of(sharded(tmp_path / "hf"), tmp_path / "models--a--b")
    equal(reshard.restore(snapshot), TREE)


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("a safetensors file", "model-00001-of-00002.safetensors"),
        ("the index", "model.safetensors.index.json"),
    ],
)
def test_other_links_out_of_the_folder_are_refused(tmp_path: Path, what: str, file: str) -> None:
    folder = sharded(tmp_path / "hf")
    (folder / file).rename(tmp_path / "elsewhere")
    (folder / file).symlink_to("../elsewhere")
    assert refused(folder, FormatError) == (
        f"{what}: {folder}/{file} is a symbolic link to a place outside of {folder}; links that lead out of a checkpoint "
        "are not followed, so replace it by the file that it points to"
    )


def test_slices_are_streamed(tmp_path: Path) -> None:
    opened = reshard.open_checkpoint(file_of(tmp_path, save(TREE), "m.safetensors"))
    data = b"".join(opened.stream("model.embed.weight", "3:5,1:4"))
    assert data == TREE["model.embed.weight"][3:5, 1:4].tobytes()


def test_a_tree_without_items_has_no_item(tmp_path: Path) -> None:
    path = file_of(tmp_path, save(TREE), "m.safetensors")
    with pytest.raises(
        PlanError, match="is a single tree without items, so it has no item 'model'"
    ):
        reshard.inspect(path, item="model")


def test_a_checkpoint_has_no_steps(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "hf")
    with pytest.raises(
        PlanError, match="is a checkpoint, not the folder of a training run, but a step is given"
    ):
        reshard.inspect(folder, step=1)
    reshard.save(folder / "1", {"w": TREE["flag"]})
    assert set(reshard.inspect(folder, step=1).tensors) == {"w"}


def refused(folder: Path, kind: type[Exception]) -> str:
    with pytest.raises(kind) as error:
        reshard.inspect(folder)
    return str(error.value)


def rewrite_index(folder: Path, **changed: str | None) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for name, file in changed.items():
        index["weight_map"][name] = file
        if file is None:
            del index["weight_map"][name]
    path.write_text(json.dumps(index))


def test_a_file_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "hf")
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refused(folder, MissingError) == (
        f"{folder}/model.safetensors.index.json says that 'model.norm/scale' is in 'model-00002-of-00002.safetensors', "
        f"but {folder} has no such file; copy it there, or restore the folder from a copy"
    )


def test_a_tensor_that_the_index_names_must_be_in_its_file(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "hf")
    rewrite_index(folder, more="model-00002-of-00002.safetensors")
    assert refused(folder, CorruptError) == (
        f"{folder}/model.safetensors.index.json says that 'more' is in 'model-00002-of-00002.safetensors', which does "
        "not hold it; index and files are not of one checkpoint"
    )


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/etc/passwd", "", "..", "a/b.safetensors"]
)
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, file: str) -> None:
    folder = sharded(tmp_path / "hf")
    rewrite_index(folder, flag=file)
    assert f"the file of 'flag' is {file!r}; expected the name of a file in this folder" in refused(
        folder, CorruptError
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON, found:"),
        ("[]", "the index should be of type dict"),
        ("{}", "weight_map should be of type dict, but is None"),
        ('{"weight_map": {}}', "weight_map is empty"),
        ('{"weight_map": {"w": 1}}', "the file of 'w' should be of type str, but is 1"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, text: str, said: str) -> None:
    folder = sharded(tmp_path / "hf")
    (folder / "model.safetensors.index.json").write_text(text)
    assert said in refused(folder, CorruptError)


def test_an_index_alone_is_enough_to_be_known(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "hf")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert "has no such file" in refused(folder, MissingError)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.ckpt"])
def test_a_pickle_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    import pickle

    path = file_of(tmp_path, pickle.dumps({"w": 1}), name)
    assert refused(Path(path), NotACheckpointError).endswith(
        "; it is a pickle, which reshard does not read; loading one can run any code: where you trust it, load it with "
        "torch.load(weights_only=True) and write it with safetensors.torch.save_file"
    )


@pytest.mark.parametrize(("rank", "files"), singly([0, 1, 4, 16], [0, 1, 2, 16]))
def test_the_memory_of_an_open_checkpoint_is_not_underestimated(
    tmp_path: Path, rank: int, files: int
) -> None:
    """``files`` hold a row of each tensor; 0 for one file that does not say so."""
    names = [f"model.layers.{i}.weight" for i in range(2000 // max(1, files))]
    shape, full = [1] * rank, [max(1, files), *[1] * (rank - 1)][:rank]
    cut = files and rank
    for shard in range(files if cut else 1):
        header: dict[str, object] = {n: entry("U8", shape, i, i + 1) for i, n in enumerate(names)}
        if cut:
            place = {"offset": [shard, *[0] * (rank - 1)], "full_shape": full}
            slices = {
                "version": 1,
                "shard": shard,
                "shards": files,
                "tensors": dict.fromkeys(names, place),
            }
            header["__metadata__"] = {"reshard.slices": json.dumps(slices)}
        file_of(tmp_path, packed(header, bytes(len(names))), f"{shard}.safetensors")
    open_safetensors(locate(tmp_path).view())  # what is made once is not counted
    tracemalloc.start()
    try:
        reader = open_safetensors(locate(tmp_path).view())
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pieces = len(names) * (files if cut else 1)
    assert kept <= reader.metadata_bytes <= 3 * kept
    assert rank > 4 or most <= pieces * OPENED_TENSOR_BYTES + PARSER_BYTES


def test_leaves_of_a_folder_that_cannot_be_read_are_not_counted(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "hf")
    assert leaf_count(locate(folder)) == len(TREE)
    (folder / "other.safetensors.index.json").write_text("{}")
    assert leaf_count(locate(folder)) == 0
    assert leaf_count(locate(tmp_path / "nothing")) == 0


def test_a_tensor_of_more_than_the_budget_is_read_in_ranges(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, 96 << 20, "uint8")
    path = file_of(tmp_path, packed({"w": entry("U8", [96 << 20], 0, 96 << 20)}, data.tobytes()))
    reshard.convert(
        path,
        tmp_path / "out",
        to="orbax",
        mesh="model=8",
        missing_axes="replicate",
        max_memory="32MiB",
    )
    assert reshard.verify(path, tmp_path / "out", max_memory="32MiB").differences == 0
