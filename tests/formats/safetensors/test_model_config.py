"""--config: the files of a model are copied after its config was held against names and shapes; transformers is the referee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.errors import PlanError
from reshard.formats.safetensors import model_folder
from reshard.formats.safetensors.model_folder import (
    FAMILIES,
    ModelConfig,
    check_config,
    read_config,
)
from reshard.storage.location import locate
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, biases": {"attention_bias": True, "mlp_bias": True},
    "llama, tied": {"tie_word_embeddings": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3, biases": {"attention_bias": True},
    "qwen3_moe": QWEN_EXPERTS,
    "qwen3_moe, some layers": {**QWEN_EXPERTS, "mlp_only_layers": [0]},
    "qwen3_moe, every other layer": {**QWEN_EXPERTS, "decoder_sparse_step": 2},
    "mixtral": EXPERTS,
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
}


@pytest.fixture(scope="module")
def models(torch: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of each config, as transformers saves it."""
    root = tmp_path_factory.mktemp("models")
    configs = {
        name: {"model_type": name.partition(",")[0], **SIZES, **more}
        for name, more in CONFIGS.items()
    }
    torch.ask("save_described", configs=configs, folder=str(root))
    return root


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.spec.shape) for name, t in reshard.inspect(folder).tensors.items()}


def test_every_family_is_tried() -> None:
    assert {name.partition(",")[0] for name in CONFIGS} == set(FAMILIES)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_fits_the_model_that_transformers_saves(models: Path, name: str) -> None:
    config, shapes = read_config(locate(models / name / "config.json")), shapes_of(models / name)
    check_config(config, "shards", shapes)
    for changed in ("hidden_size", "vocab_size", "num_attention_heads", "num_hidden_layers"):
        values = {**config.values, changed: config.size(changed) + 1}
        with pytest.raises(PlanError, match="does not fit the target"):
            check_config(ModelConfig("it", values), "shards", shapes)
    for lost in shapes:
        if lost != "lm_head.weight" or not config.flag("tie_word_embeddings", False):
            with pytest.raises(PlanError, match=r"1 tensor .* that the target does not have"):
                check_config(config, "shards", {n: s for n, s in shapes.items() if n != lost})


def write(folder: Path, config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def llama(models: Path, tmp_path: Path) -> Path:
    """The folder of a model with its tokenizer, and files that are none of its."""
    folder = tmp_path / "model"
    write(folder, json.loads((models / "llama" / "config.json").read_text()))
    for name in ("tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "README.md",
                 "pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors"):  # fmt: skip
        (folder / name).write_text(name)
    (folder / "original").mkdir()
    return folder


COPIED = ["chat_template.jinja", "config.json", "merges.txt", "tokenizer.json", "tokenizer.model"]


def test_the_files_of_a_model_are_copied(
    torch: Oracle, models: Path, llama: Path, tmp_path: Path
) -> None:
    reshard.convert(models / "llama", tmp_path / "trained", to="orbax")
    report = reshard.convert(tmp_path / "trained", tmp_path / "out", to="safetensors", config=llama)
    assert report.warnings == ()
    beside = {f.name for f in (tmp_path / "out").iterdir()} - {"model.safetensors", "slices.json"}
    assert sorted(beside) == COPIED
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"
    assert reshard.verify(tmp_path / "out").differences == 0
    found = torch.ask("load_model", folder=str(tmp_path / "out"))
    assert found["missing_keys"] == found["unexpected_keys"] == []
    again = reshard.convert(tmp_path / "trained", tmp_path / "out", to="safetensors", config=llama)
    assert again.already_done


@pytest.mark.parametrize(("prefix", "pattern"), [("model/", "^model/"), ("state.", r"^state\.")])
def test_a_prefix_before_every_name_is_to_be_taken_off(
    models: Path, llama: Path, tmp_path: Path, prefix: str, pattern: str
) -> None:
    step = tmp_path / "step"
    reshard.convert(models / "llama", step, to="dcp", rename=[("^", prefix)])
    how: dict[str, Any] = {"to": "safetensors", "config": llama}
    with pytest.raises(PlanError) as error:
        reshard.plan(step, tmp_path / "out", **how)
    assert str(error.value).endswith(
        f"…) that the target does not have; the target has them behind {prefix!r}: take that off with --rename '{pattern}='"
    )
    reshard.convert(step, tmp_path / "out", rename=[(pattern, "")], **how)


def refused(models: Path, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(PlanError) as error:
        reshard.plan(models / "llama", tmp_path / "out", **options)
    return str(error.value).replace(str(tmp_path), "").replace(str(models), "")


def test_a_config_of_another_model_is_refused(models: Path, llama: Path, tmp_path: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    write(llama, {**config, "intermediate_size": 32})
    assert refused(models, tmp_path, config=llama) == (
        "/model/config.json does not fit the target: 'model.layers.0.mlp.gate_proj.weight' has shape [24, 16], but the config says "
        "intermediate_size = 32 × hidden_size = 16; take the config of this model, or make this shape by a map (map)"
    )
    write(llama, {**config, "num_hidden_layers": 3})
    assert refused(models, tmp_path, config=llama) == (
        "/model/config.json does not fit the target: model type 'llama' asks for 9 tensors ('model.layers.2.input_layernorm.weight', "
        "'model.layers.2.post_attention_layernorm.weight', 'model.layers.2.self_attn.q_proj.weight', …) that the target does not have; "
        "take the config of this model, or change the names (rename, or a map)"
    )
    write(llama, {**config, "num_hidden_layers": 1})
    assert "has no place for 9 tensors ('model.layers.1." in refused(models, tmp_path, config=llama)
    write(llama, {**config, "vocab_size": None})
    assert refused(models, tmp_path, config=llama) == (
        "/model/config.json: llama needs vocab_size, a whole number, but the config has none; take the config of this model"
    )
    write(llama, {**config, "num_hidden_layers": 10**9})
    assert "describes 1,000,000,000 layers" in refused(models, tmp_path, config=llama)
    write(llama, [1])
    assert refused(models, tmp_path, config=llama) == (
        "/model/config.json is no config of a model; expected a JSON object with its sizes"
    )
    (llama / "config.json").write_text("{")
    assert refused(models, tmp_path, config=llama).startswith(
        "/model/config.json cannot be read as the config of a model: "
    )
    (llama / "config.json").unlink()
    assert refused(models, tmp_path, config=llama) == (
        "config is '/model', which is no folder with a config.json; name the folder of a Hugging Face model (config)"
    )


def test_options_that_contradict(models: Path, llama: Path, tmp_path: Path) -> None:
    assert refused(models, tmp_path, config=llama, files="one") == (
        "config is for a folder of files, but the target is a single file; leave it out (config), or ask for other files (files)"
    )
    assert refused(models, tmp_path, config=llama, carry=True) == (
        "carry takes the files beside the weights of the source, and config those of another model; leave one of them out (carry, config)"
    )


def test_what_is_not_checked_is_said(models: Path, llama: Path, tmp_path: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    write(llama, {**config, "model_type": "mamba"})
    report = reshard.convert(models / "llama", tmp_path / "other", config=llama)
    assert report.warnings[0].endswith(
        f"config.json is of model type 'mamba', whose tensors are not known here, and was copied unchecked; known are {', '.join(FAMILIES)}"
    )
    write(llama, config)
    plan = reshard.plan(models / "llama", tmp_path / "ranks", config=llama, files="ranks", mesh="m=2")  # fmt: skip
    assert plan.warnings[0].endswith(
        "was copied unchecked: it describes whole tensors under the names of transformers, and files is 'ranks'"
    )
    plan = reshard.plan(models / "llama", tmp_path / "half", config=llama, cast={"float": "bfloat16"})  # fmt: skip
    assert plan.warnings[0].endswith(
        "says float32, but the target has bfloat16: transformers casts them when it loads them; cast to float32 here (cast), or change "
        "the config's dtype"
    )


def test_a_list_without_end_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "MOST_TENSORS", 100)
    config = {"model_type": "mixtral", **SIZES, "num_local_experts": 50}
    with pytest.raises(PlanError, match="describes 2 layers of 50 experts, more than 100 tensors"):
        check_config(ModelConfig("it", config), "shards", {})


def test_a_model_is_named_by_its_place_in_the_identity(tmp_path: Path) -> None:
    """A target that was made with the files of one model is not taken for one with those of another."""
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "w.safetensors")
    for name in ("a", "b"):
        write(tmp_path / name, {"model_type": "other"})
    options = {"to": "safetensors", "files": "shards"}
    reshard.convert(tmp_path / "w.safetensors", tmp_path / "out", config=tmp_path / "a", **options)
    with pytest.raises(reshard.TargetExistsError):
        reshard.convert(tmp_path / "w.safetensors", tmp_path / "out", config=tmp_path / "b", **options)  # fmt: skip
