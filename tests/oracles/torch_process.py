"""Runs inside the environment of torch: one JSON request a line in, one JSON answer a line out.

Nothing of reshard is imported here. Standard output is kept for answers alone; what the libraries
print goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402  after the environment is set
from safetensors.torch import load_file  # noqa: E402  after the environment is set
from torch_adapters import merge_adapters  # noqa: E402  after the environment is set
from torch_dcp import load_containers, load_dcp, load_values, restricted_metadata, save_dcp  # noqa: E402  after the environment is set
from torch_packed import packed_weights, save_bitsandbytes  # noqa: E402  after the environment is set
from torch_quantised import decompressed, dequantised, save_quantised, stored_tensors  # noqa: E402  after the environment is set
from torch_states import load_legacy, load_state, save_model_files, save_script, save_state  # noqa: E402  after the environment is set
from torch_tensors import described  # noqa: E402  after the environment is set
from torch_trained import save_trained  # noqa: E402  after the environment is set

# The order of a sum must not depend on how many cores are free.
torch.set_num_threads(1)

LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"dtype": "bfloat16", **LLAMA},
    "mixtral": {"dtype": "bfloat16", **LLAMA, **EXPERTS},
    "gpt2": {"dtype": "float32", **GPT2},
}

TOKENS = torch.arange(32).reshape(2, 16).tolist()


def save_model(kind: str, folders: dict[str, str]) -> Any:
    """The logits of a small random model, which is saved to each folder in files of at most that size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **CONFIGS[kind])
    # With .to(dtype) the positions of rotary embeddings would be rounded, too, which loading never does.
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype).eval()
    for folder, size in folders.items():
        model.save_pretrained(folder, max_shard_size=size)
    return _logits(model)


def save_bin_model(kind: str, folder: str) -> Any:
    """The logits of a small random model, which is saved as transformers did before safetensors: one ``pytorch_model.bin``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **CONFIGS[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype).eval()
    config.save_pretrained(folder)
    torch.save(model.state_dict(), f"{folder}/pytorch_model.bin")
    return _logits(model)


def save_described(configs: dict[str, dict[str, Any]], folder: str) -> Any:
    """Saves a random model for each config, by the name of its folder, with the files that go with it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, values in configs.items():
        config = AutoConfig.for_model(**values)
        AutoModelForCausalLM.from_config(config).save_pretrained(f"{folder}/{name}")


def load_model(folder: str, variant: str | None = None) -> Any:
    """The logits of a saved model, or of a variant of it, and the names that were missing from its files or of no use."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        folder, variant=variant, output_loading_info=True
    )
    names = {key: sorted(map(str, found[key])) for key in ("missing_keys", "unexpected_keys")}
    return {"logits": _logits(model), **names}


def logit_values(folder: str, tokens: list[list[int]] | None = None) -> Any:
    """The logits of a saved model as numbers, and the names that were missing from its files or of no use."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    with torch.no_grad():
        values = model(torch.tensor(tokens or TOKENS)).logits.tolist()
    names = {key: sorted(map(str, found[key])) for key in ("missing_keys", "unexpected_keys")}
    return {"logits": values, **names}


def _logits(model: Any) -> Any:
    with torch.no_grad():
        return described(model(torch.tensor(TOKENS)).logits)


def stored(folder: str) -> Any:
    """Every tensor of each safetensors file of a folder, as the loader for torch finds it."""
    return {
        path.name: {name: described(tensor) for name, tensor in load_file(path).items()}
        for path in Path(folder).glob("*.safetensors")
    }


def dcp_sizes(folder: str) -> Any:
    """The full shape of each tensor, as the reader of torch's distributed checkpoint finds it."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    return {name: list(tensor.size) for name, tensor in found.items()}


def group(action: str, folders: list[str]) -> Any:
    """What four processes of a group answer (``torch_group.py``)."""
    program = Path(__file__).with_name("torch_group.py")
    done = subprocess.run(
        [sys.executable, program, action, *folders], capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{action} in four processes failed: {done.stderr}")
    return json.loads(done.stdout)


FUNCTIONS: dict[str, Any] = {
    f.__name__: f
    for f in (save_model, save_bin_model, save_described, load_model, logit_values, stored, dcp_sizes, group, save_dcp, load_dcp, load_values, load_containers,
              restricted_metadata, save_quantised, dequantised, decompressed, stored_tensors, save_state, load_state, save_model_files, save_script, load_legacy, save_trained,
              merge_adapters, packed_weights, save_bitsandbytes)
}  # fmt: skip


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": FUNCTIONS[request["function"]](**request["arguments"])}
    except Exception as error:  # noqa: BLE001  what torch raises is an answer too
        return {"error": type(error).__name__, "text": str(error)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
