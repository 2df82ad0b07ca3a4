"""Run by the Python of the oracle of torch: stock clients of a hub load a view, and compare it with a folder that a conversion wrote.

Its arguments are the id of the model, that folder, and a folder for what it is about; it prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoModelForCausalLM


def found(model: str, converted: Path) -> dict[str, Any]:
    expected = {path.name: path.read_bytes() for path in converted.iterdir()}
    snapshot = Path(huggingface_hub.snapshot_download(model))
    files = huggingface_hub.HfFileSystem()
    weights = sorted(name for name in expected if name.endswith(".safetensors"))[1]
    with files.open(f"{model}/{weights}", "rb", block_size=512) as file:
        file.seek(700)
        part = file.read(900)
    metadata = huggingface_hub.get_safetensors_metadata(model)
    listed = [str(name).rpartition("/")[2] for name in files.ls(model, detail=False)]
    info = huggingface_hub.HfApi().get_paths_info(model, ["config.json", "nothing"])
    return {
        "downloaded": {path.name: path.read_bytes() == expected.get(path.name) for path in snapshot.iterdir()},
        "expected": sorted(expected),
        "listed": sorted(listed),
        "range": part == expected[weights][700:1600],
        "parameters": metadata.parameter_count,
        "tensors": len(metadata.weight_map),
        "paths": [one.path for one in info],
        "branches": [one.name for one in huggingface_hub.list_repo_refs(model).branches],
        "models": [one.id for one in huggingface_hub.list_models(author="views")],
        "logits": torch.equal(logits(model), logits(str(converted))),
        "errors": [refusal(model, "nothing.json"), refusal("views/other", "config.json"), refusal(model, "config.json", revision="0" * 40)],
    }  # fmt: skip


def logits(model: str) -> torch.Tensor:
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        answer: torch.Tensor = loaded(torch.arange(16)[None]).logits
    return answer


def refusal(*what: str, **how: str) -> str:
    """The class of the client's error."""
    try:
        huggingface_hub.hf_hub_download(*what, **how)
    except HfHubHTTPError as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(found(sys.argv[1], Path(sys.argv[2]))))
