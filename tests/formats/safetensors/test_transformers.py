"""Models of transformers become Orbax checkpoints and models again, to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import reshard
from tests.formats.safetensors.described import by_torch, stock_orbax
from tests.formats.safetensors.from_torch import orbax_of_each
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

MODELS = ("llama", "mixtral", "gpt2")
SIZES = {"one file": "5GB", "many files": "20KB"}
CASES = [(model, form) for model in MODELS for form in SIZES]
LAYOUT = {
    "mesh": {"data": 2, "model": 4},
    "rules": [
        {"match": r"(embed_tokens|wte|wpe|lm_head)\.weight$", "axes": [["data", "model"], None]},
        {"match": r"(proj|w\d|gate|c_attn|c_fc)\.weight$", "axes": ["data", "model"]},
    ],
    "unmatched": "replicate",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretrained")


@pytest.fixture(scope="module")
def logits(torch: Oracle, root: Path) -> dict[str, Any]:
    """The logits of each model, which is saved in both forms below ``root``."""
    folders = {m: {str(root / m / form): size for form, size in SIZES.items()} for m in MODELS}
    return {m: torch.ask("save_model", kind=m, folders=folders[m]) for m in MODELS}


@pytest.fixture(scope="module")
def orbax(logits: dict[str, Any], root: Path) -> dict[tuple[str, str], Path]:  # noqa: ARG001  saves them first
    """An Orbax checkpoint of each model, made from each form."""
    return orbax_of_each({case: root.joinpath(*case) for case in CASES}, root, LAYOUT)


@pytest.mark.parametrize(("model", "form"), CASES)
def test_a_saved_model_becomes_orbax(
    torch: Oracle, root: Path, orbax: dict[tuple[str, str], Path], model: str, form: str
) -> None:
    source = root / model / form
    assert (len(list(source.glob("*.safetensors"))) > 1) == (form == "many files")
    wanted = by_torch(torch, source)
    assert stock_orbax(orbax[model, form], wanted) == wanted


@pytest.mark.parametrize("form", ["one file", "a folder", "many files"])
@pytest.mark.parametrize("model", MODELS)
def test_orbax_becomes_the_same_model(
    torch: Oracle,
    root: Path,
    logits: dict[str, Any],
    orbax: dict[tuple[str, str], Path],
    tmp_path: Path,
    model: str,
    form: str,
) -> None:
    folder = tmp_path / "hf"
    if form == "one file":
        folder.mkdir()
        reshard.convert(orbax[model, form], folder / "model.safetensors", to="safetensors")
    else:
        size = "20KB" if form == "many files" else None
        source = orbax[model, "many files"]
        reshard.convert(source, folder, to="safetensors", file_bytes=size)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (form == "many files")
    shutil.copy(root / model / "one file" / "config.json", folder)
    found = torch.ask("load_model", folder=str(folder))
    assert found == {"logits": logits[model], "missing_keys": [], "unexpected_keys": []}


@pytest.mark.parametrize("model", MODELS)
def test_carried_files_make_a_folder_that_loads(
    torch: Oracle, root: Path, logits: dict[str, Any], tmp_path: Path, model: str
) -> None:
    source = root / model / "one file"
    target = tmp_path / "hf"
    names = "weights-{number}.safetensors"
    reshard.convert(source, target, carry=True, file_bytes="30KB", file_names=names)
    assert (target / "weights-2.safetensors").exists()
    assert torch.ask("load_model", folder=str(target))["logits"] == logits[model]
    assert by_torch(torch, target) == by_torch(torch, source)


def test_transformers_casts_to_the_dtype_of_a_carried_config(
    torch: Oracle, root: Path, logits: dict[str, Any], tmp_path: Path
) -> None:
    source = root / "llama" / "one file"
    report = reshard.convert(source, tmp_path / "hf", carry=True, cast=[("norm", "float32")])
    (warning,) = (text for text in report.warnings if "config.json" in text)
    assert warning == (
        "floats were cast to float32, but config.json, which is carried, says bfloat16: transformers casts them again when "
        "it loads them, so change its dtype"
    )
    assert torch.ask("load_model", folder=str(tmp_path / "hf"))["logits"] == logits["llama"]
