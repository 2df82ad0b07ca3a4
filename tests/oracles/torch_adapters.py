"""Small models with adapters of peft, saved, and merged by it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn


class Experts(nn.Module):
    """Experts in two parameters; ``is_transposed`` says the order of their dimensions, as in models of transformers."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        up, down = (3, 20, 36), (3, 36, 20)
        self.up = nn.Parameter(torch.randn(up if is_transposed else down))
        self.down = nn.Parameter(torch.randn((3, 18, 20) if is_transposed else (3, 20, 18)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Model(nn.Module):
    """One layer of each kind."""

    def __init__(self, is_transposed: bool) -> None:
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.layers = nn.ModuleList([nn.ModuleDict({"q": nn.Linear(24, 40), "o": nn.Linear(40, 24, bias=False)}) for _ in range(2)])  # fmt: skip
        self.gpt = Conv1D(24, 24)
        self.conv = nn.Conv2d(6, 10, 3)
        self.experts = Experts(is_transposed)
        self.head = nn.Linear(24, 50, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def merge_adapters(folder: str, cases: dict[str, dict[str, Any]]) -> None:
    """Saves the base and the adapters of each case, and the weights that peft makes of them.

    A case has the configs of its adapters, and the dtypes of the base and of the factors.
    """
    from peft import LoraConfig, get_peft_model

    for name, case in cases.items():
        torch.manual_seed(5)
        dtype = getattr(torch, case.get("dtype", "bfloat16"))
        model = Model(case.get("is_transposed", False)).to(dtype)
        place = Path(folder, name)
        (place / "base").mkdir(parents=True)
        save_file(dict(model.state_dict()), place / "base" / "model.safetensors", {"format": "pt"})
        wrapped: Any = None
        for number, options in enumerate(case["configs"]):
            config = LoraConfig(**options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if wrapped is None:
                    wrapped = get_peft_model(model, config, "a0")
                else:
                    wrapped.add_adapter(f"a{number}", config)
        for part, value in wrapped.named_parameters():
            if (
                "lora_" in part
                or "modules_to_save" in part
                or ("bias" in part and value.requires_grad)
            ):
                value.data = torch.randn(value.shape).to(value.dtype) * 0.3
        for number in range(len(case["configs"])):
            wrapped.save_pretrained(place, selected_adapters=[f"a{number}"])
        names = [f"a{number}" for number in range(len(case["configs"]))]
        merged = wrapped.merge_and_unload(adapter_names=names)
        save_file({part: value.contiguous() for part, value in merged.state_dict().items()}, place / "merged.safetensors")  # fmt: skip
