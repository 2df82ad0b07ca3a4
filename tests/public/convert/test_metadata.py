"""What other programs keep beside the tensors comes through every conversion, or is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import reshard
from reshard.errors import PlanError

LORA = {
    "format": "pt",
    "lora_adapter_metadata": json.dumps({"unet.r": 4, "unet.lora_alpha": 8}, indent=2),
    "modelspec.title": 'é "quoted" \\ \n 日本',
}
"""As diffusers writes it; a loader takes alpha for the rank where it is missing, without a word."""

WEIGHTS = {
    "unet.down.lora_A.weight": np.arange(32, dtype=np.float32).reshape(4, 8),
    "unet.down.lora_B.weight": np.arange(32, dtype=np.float32).reshape(8, 4),
}


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    save_file(WEIGHTS, tmp_path / "lora.safetensors", metadata=LORA)
    return tmp_path / "lora.safetensors"


def header(file: Path) -> dict[str, str]:
    """What another program finds in the header, by its own library."""
    with safe_open(file, "np") as opened:
        found = opened.metadata() or {}
    return {key: text for key, text in found.items() if not key.startswith("reshard.")}


def told(warnings: tuple[str, ...], word: str = "metadata") -> list[str]:
    return [text for text in warnings if word in text]


@pytest.mark.parametrize(
    "options", [{}, {"cast": {"float": "bfloat16"}}, {"carry": True}, {"select": ["lora_A"]}]
)
def test_one_file_keeps_the_metadata_of_its_header(
    lora: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    report = reshard.convert(lora, tmp_path / "made.safetensors", **options)
    assert header(tmp_path / "made.safetensors") == LORA
    assert not told(report.warnings)


@pytest.mark.parametrize("files", ["shards", "ranks", "dcp"])
def test_every_file_of_a_folder_has_the_metadata(lora: Path, tmp_path: Path, files: str) -> None:
    made = tmp_path / "made"
    small = {"file_bytes": "128B"} if files == "shards" else {"mesh": "x=2"}
    reshard.convert(lora, made, to="safetensors", files=files, **small)
    found = [header(file) for file in made.glob("*.safetensors")]
    assert len(found) > 1 or files == "dcp"
    of_torch = ("DCP_VERSION", "DCP_SHARDING_INFO")
    assert all({k: v for k, v in one.items() if k not in of_torch} == LORA for one in found)
    reshard.convert(made, tmp_path / "one.safetensors")
    assert header(tmp_path / "one.safetensors") == LORA
    assert not reshard.verify(lora, made).warnings


@pytest.mark.parametrize(
    ("to", "name"),
    [("orbax", "step"), ("dcp", "step"), ("tensorflow", "ckpt"), ("keras", "made.weights.h5")],
)
def test_the_record_of_another_format_keeps_it(
    lora: Path, tmp_path: Path, to: str, name: str
) -> None:
    through = tmp_path / "through" / name
    reshard.convert(lora, through, to=to)
    reshard.convert(through, tmp_path / "back.safetensors")
    assert header(tmp_path / "back.safetensors") == LORA
    for a, b in ((lora, through), (through, tmp_path / "back.safetensors")):
        assert not told(reshard.verify(a, b).warnings)
        assert not told(reshard.diff(a, b).warnings)


def test_the_members_of_an_index_are_kept(lora: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    reshard.convert(lora, sharded, to="safetensors", file_bytes="128B")
    index = next(sharded.glob("*.index.json"))
    document = json.loads(index.read_text())
    assert document["metadata"] == {"total_size": 256}
    more = {"total_parameters": 64, "note": {"é": [1, None]}}
    document["metadata"] |= more | {"version": "000007"}
    index.write_text(json.dumps(document))
    (sharded / "slices.json").unlink()
    reshard.convert(sharded, tmp_path / "one.safetensors", cast={"float": "float16"})
    reshard.convert(tmp_path / "one.safetensors", tmp_path / "step", to="orbax")
    report = reshard.convert(
        tmp_path / "step", tmp_path / "again", to="safetensors", file_bytes="64B"
    )
    made = json.loads(next((tmp_path / "again").glob("*.index.json")).read_text())
    assert made["metadata"] == more | {"total_size": 128}
    assert not told(report.warnings, "total_parameters")
    report = reshard.convert(sharded, tmp_path / "part.safetensors", drop=["lora_A"])
    assert told(report.warnings, "total_parameters") == [
        "total_parameters of the index is carried unchanged, 64, but the source has 64 elements, and the target 32"
    ]


def test_texts_that_files_have_differently_are_named_and_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for number, (name, array) in enumerate(WEIGHTS.items(), 1):
        metadata = {"format": "mlx", "rank": str(number), f"only_{number}": "x", "same": "y"}
        save_file({name: array}, folder / f"model-0000{number}-of-00002.safetensors", metadata)
    report = reshard.convert(folder, tmp_path / "one.safetensors")
    assert told(report.warnings) == [
        "the files have different texts for 'rank' in their metadata, which is left out"
    ]
    kept = {"format": "mlx", "only_1": "x", "only_2": "x", "same": "y"}
    assert header(tmp_path / "one.safetensors") == kept


def test_names_of_tensors_that_change_are_told(tmp_path: Path) -> None:
    metadata = {
        "lm_head.weight": "model.embed.weight",
        "model.mlp.weight": '{"_type": "Float8Tensor"}',
        "title": "model",
    }
    tensors = {
        "model.embed.weight": np.zeros((4, 2), np.float32),
        "model.mlp._weight_qdata": np.zeros((2, 2), np.uint8),
    }
    source = tmp_path / "tied.safetensors"
    save_file(tensors, source, metadata)
    same = reshard.convert(source, tmp_path / "same.safetensors")
    assert not told(same.warnings)
    renamed = reshard.convert(source, tmp_path / "new.safetensors", rename=[("^model[.]", "")])
    assert told(renamed.warnings) == [
        "2 texts of the metadata beside the tensors may name tensors that get other names or bits, or are left out, and are carried "
        "unchanged: 'lm_head.weight', 'model.mlp.weight'; correct what the programs that read it look for"
    ]
    assert header(tmp_path / "new.safetensors") == {"format": "pt", **metadata}
    dropped = reshard.convert(source, tmp_path / "less.safetensors", drop=["embed"])
    assert "carried unchanged: 'lm_head.weight';" in told(dropped.warnings)[0]
    made = reshard.convert(
        source,
        tmp_path / "map.safetensors",
        map={"map": [{"from": "model.embed.weight", "to": "w"}]},
        drop=["mlp"],
    )
    assert "'lm_head.weight', 'model.mlp.weight'" in told(made.warnings)[0]


def test_other_texts_are_told_and_no_difference(lora: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file(WEIGHTS, other, {"format": "pt", "modelspec.title": "b", "ss_a": "x" * 50})
    found, compared = reshard.verify(lora, other), reshard.diff(lora, other)
    assert (found.differences, compared.differences) == (0, 0)
    text = (
        "the metadata beside the tensors differs, which is no difference of a tensor: 'lora_adapter_metadata' is "
        '\'{\\n  "unet.r": 4,\\n  "unet.lora_alpha": 8…\' in A and missing in B; '
        "'modelspec.title' is 'é \"quoted\" \\\\ \\n 日本' in A and 'b' in B; 'ss_a' is missing in A and "
        f"{'x' * 39 + '…'!r} in B"
    )
    assert told(found.warnings) == told(compared.warnings) == [text]
    assert text in found.to_dict()["warnings"]


def test_carry_from_one_file_to_one_file_alone(lora: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(lora.read_bytes())
    with pytest.raises(PlanError, match="carry is for a folder of files, but the target is a sing"):
        reshard.convert(folder, tmp_path / "one.safetensors", carry=True)
    with pytest.raises(PlanError, match=r"carry copies the files beside the weights of a folder"):
        reshard.convert(lora, tmp_path / "made", to="safetensors", carry=True)


def test_custom_metadata_of_orbax_comes_back(tmp_path: Path) -> None:
    of_tree, of_step = {"rng": [1, {"b": None}]}, {"loss": 0.5, "é": "x"}
    with ocp.CheckpointManager(tmp_path / "run", item_names=("state",)) as manager:
        saved = ocp.args.PyTreeSave({"w": np.arange(4.0)}, custom_metadata=of_tree)
        manager.save(3, args=ocp.args.Composite(state=saved), custom_metadata=of_step)
    source = tmp_path / "run" / "3"
    reshard.convert(source, tmp_path / "w.safetensors")
    report = reshard.convert(tmp_path / "w.safetensors", tmp_path / "b", to="orbax")
    assert not told(report.warnings)
    assert json.loads((tmp_path / "b" / "_METADATA").read_text())["custom_metadata"] == of_tree
    stored = json.loads((tmp_path / "b" / "_CHECKPOINT_METADATA").read_text())
    assert stored["custom_metadata"] == of_step
    assert '"metadata"' not in (tmp_path / "b" / "slices.json").read_text()
    assert not told(reshard.verify(source, tmp_path / "b").warnings)
    checkpointer = ocp.PyTreeCheckpointer()
    assert checkpointer.metadata(tmp_path / "b").custom_metadata == of_step
    assert not told(reshard.verify(source, tmp_path / "w.safetensors").warnings)


def test_custom_metadata_of_several_trees_is_not_taken_for_that_of_one(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run", item_names=("a", "b")) as manager:
        trees = {
            name: ocp.args.PyTreeSave({"w": np.arange(3.0)}, custom_metadata={"of": name})
            for name in "ab"
        }
        manager.save(0, args=ocp.args.Composite(**trees))
    source = tmp_path / "run" / "0"
    reshard.convert(source, tmp_path / "one.safetensors")
    reshard.convert(tmp_path / "one.safetensors", tmp_path / "back", to="orbax")
    assert json.loads((tmp_path / "back" / "_METADATA").read_text())["custom_metadata"] is None
    record = json.loads((tmp_path / "back" / "slices.json").read_text())
    assert record["metadata"] == {"custom": {"tree a": '{"of": "a"}', "tree b": '{"of": "b"}'}}
    assert not told(reshard.verify(source, tmp_path / "back").warnings)
    reshard.convert(source, tmp_path / "same")
    assert "metadata" not in json.loads((tmp_path / "same" / "slices.json").read_text())
