"""A Llama of one layer, as a training job on a (4, 2) mesh saves it; and the map and the config by which transformers knows it."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tests.orbax_trees import mesh, save_pytree

HIDDEN, INNER, WORDS = 32, 64, 64
_MATRICES = {
    "q": ("self_attn.q_proj", HIDDEN, HIDDEN),
    "k": ("self_attn.k_proj", HIDDEN, HIDDEN),
    "v": ("self_attn.v_proj", HIDDEN, HIDDEN),
    "o": ("self_attn.o_proj", HIDDEN, HIDDEN),
    "gate": ("mlp.gate_proj", HIDDEN, INNER),
    "up": ("mlp.up_proj", HIDDEN, INNER),
    "down": ("mlp.down_proj", INNER, HIDDEN),
}
_LAYER, _ITS = "params/layers/{i}", "model.layers.{i}"
MAP = [
    {"from": "params/embed", "to": "model.embed_tokens.weight"},
    {"from": "params/head", "to": "lm_head.weight"},
    {"from": "params/norm", "to": "model.norm.weight"},
    {"from": f"{_LAYER}/norm1", "to": f"{_ITS}.input_layernorm.weight"},
    {"from": f"{_LAYER}/norm2", "to": f"{_ITS}.post_attention_layernorm.weight"},
    *(
        {"from": f"{_LAYER}/{ours}", "to": f"{_ITS}.{its}.weight", "shape": "e f -> f e"}
        for ours, (its, *_) in _MATRICES.items()
    ),
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": WORDS, "max_position_embeddings": 32, "tie_word_embeddings": False,
    "torch_dtype": "float32",
}  # fmt: skip


def save_llama(folder: Path) -> list[str]:
    """Writes ``llama``, ``map.json`` and ``config`` into the folder; returns the words of a command that makes a model of them."""
    random, on = np.random.default_rng(3), mesh((4, 2), ("data", "model"))

    def made(*shape: int) -> jax.Array:
        axes = NamedSharding(on, PartitionSpec(*("data", "model")[: len(shape)]))
        return jax.device_put(random.standard_normal(shape, np.float32) * 0.1, axes)

    layer = {name: made(*shape) for name, (_, *shape) in _MATRICES.items()}
    layer |= {"norm1": made(HIDDEN), "norm2": made(HIDDEN)}
    top = {"embed": made(WORDS, HIDDEN), "head": made(WORDS, HIDDEN), "norm": made(HIDDEN)}
    save_pytree(folder / "llama", {"params": {**top, "layers": {"0": layer}}})
    (folder / "map.json").write_text(json.dumps({"map": MAP}))
    (folder / "config").mkdir()
    (folder / "config" / "config.json").write_text(json.dumps(CONFIG))
    return ["--map", "map.json", "--config", "config", "--file-bytes", "20000"]
