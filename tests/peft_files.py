"""A LoRA adapter as PEFT saves it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def adapter_in(folder: Path, shape: tuple[int, int]) -> Path:
    """An adapter that adds 2 to the first row of the weight of ``up``, which has this shape."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["up"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    first = np.zeros((shape[0], 1), np.float32)
    first[0] = 2
    factors = {"lora_A": np.ones((1, shape[1]), np.float32), "lora_B": first}
    named = {f"base_model.model.up.{name}.weight": factor for name, factor in factors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder
