"""Models of transformers: what ``save_pretrained`` writes becomes Orbax checkpoints, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reshard
from tests.formats.safetensors.described import stock_orbax
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

MODELS = ("llama", "mixtral", "gpt2")
SIZES = {"one file": "5GB", "many files": "20KB"}


@pytest.fixture(scope="module")
def saved(torch: Oracle, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The folder of each model in each form."""
    root = tmp_path_factory.mktemp("pretrained")
    for model in MODELS:
        folders = {str(root / model / form): size for form, size in SIZES.items()}
        torch.ask("save_model", kind=model, folders=folders)
    return {(model, form): root / model / form for model in MODELS for form in SIZES}


@pytest.mark.parametrize("form", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_a_saved_model_becomes_orbax(
    torch: Oracle, saved: dict[tuple[str, str], Path], tmp_path: Path, model: str, form: str
) -> None:
    source = saved[model, form]
    layout = tmp_path / "layout.yaml"
    layout.write_text(reshard.starter_layout(source, mesh="data=2,model=4"))
    reshard.convert(source, tmp_path / "orbax", to="orbax", layout=layout)
    wanted: dict[str, Any] = torch.ask("stored", folder=str(source))
    assert stock_orbax(tmp_path / "orbax", wanted) == wanted
    assert len(list(source.glob("*.safetensors"))) > 1 or form == "one file"
