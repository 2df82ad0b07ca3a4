"""A model computes the same before and after a recipe, in both directions, and transformers saves the tensors of recipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import Struct
from safetensors.numpy import load_file, save_file

import reshard
from tests.maps import maxtext_models
from tests.maps.configs import CONFIGS
from tests.maps.forward import (
    PADDED,
    VOCAB,
    WINDOW,
    gemma2,
    gemma2_logits,
    llama,
    llama_logits,
)
from tests.maps.maxtext_pairs import DENSE, LAYERS
from tests.oracles.oracle import Oracle
from tests.orbax_trees import nested

Array = npt.NDArray[Any]
TOKENS = np.arange(32).reshape(2, 16)
SMALL = {
    "dtype": "float32", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip


class Model(Struct, frozen=True):
    """A training model, and what makes it one of transformers."""

    tree: Callable[[], dict[str, Array]]
    logits: Callable[[Mapping[str, Array], Array], Array]
    config: Mapping[str, Any]
    sizes: Mapping[str, int]
    more: Mapping[str, int]
    """Sizes that nothing but the training tree tells."""
    rounded: tuple[str, ...]
    """In names of tensors that pass through arithmetic."""


MODELS = {
    "maxtext-llama3.1": Model(
        llama,
        llama_logits,
        {**SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS, "tie_word_embeddings": False},
        {},
        {"p": 4, "d": 8},
        ("query",),
    ),
    "maxtext-gemma2": Model(
        gemma2,
        gemma2_logits,
        {
            **SMALL, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 2 * LAYERS,
            "head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": WINDOW, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        },
        {"vocab": VOCAB, "query_pre_attn_scalar": 12},
        {"v": PADDED, "d": 8},
        ("query", "norm", "embedding"),
    ),
}  # fmt: skip


def flat(tree: Any, prefix: str = "") -> dict[str, Array]:
    found: dict[str, Array] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found |= flat(value, f"{path}/") if isinstance(value, dict) else {path: np.asarray(value)}
    return found


def computed(torch: Oracle, folder: Path, tokens: Array = TOKENS) -> Array:
    """The logits of transformers."""
    loaded = torch.ask("logit_values", folder=str(folder), tokens=tokens.tolist())
    assert (loaded["missing_keys"], loaded["unexpected_keys"]) == ([], [])
    return np.array(loaded["logits"])


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_logits_of_the_training_model(
    name: str, torch: Oracle, tmp_path: Path
) -> None:
    model = MODELS[name]
    tree = model.tree()
    reshard.save(tmp_path / "trained", nested({**tree, "opt_state/mu": np.zeros(3, np.float32)}))
    reshard.convert(
        tmp_path / "trained",
        tmp_path / "served",
        map=name,
        sizes=model.sizes,
        select=["^params/"],
        to="safetensors",
        file_bytes=20_000,
    )
    (tmp_path / "served" / "config.json").write_text(json.dumps(model.config))
    wanted = [model.logits(tree, tokens)[:, :VOCAB] for tokens in TOKENS]
    np.testing.assert_allclose(computed(torch, tmp_path / "served"), wanted, rtol=2e-4, atol=2e-4)
    back = brought_back(tmp_path, name)
    assert back.keys() == tree.keys()
    for tensor, array in tree.items():
        if any(part in tensor for part in model.rounded):
            np.testing.assert_allclose(back[tensor], array, rtol=3e-7, atol=1e-7)
        else:
            np.testing.assert_array_equal(back[tensor], array)


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("name", MODELS)
def test_the_training_model_computes_the_logits_of_transformers(
    name: str, torch: Oracle, tmp_path: Path
) -> None:
    model = MODELS[name]
    torch.ask("save_described", configs={"served": dict(model.config)}, folder=str(tmp_path))
    file = tmp_path / "served" / "model.safetensors"
    random = np.random.default_rng(5)
    save_file(
        {
            tensor: (random.standard_normal(a.shape) * 0.3 + ("norm" in tensor)).astype("f4")
            for tensor, a in load_file(file).items()
        },
        file,
        {"format": "pt"},
    )
    tree = brought_back(tmp_path, name)
    found = [model.logits(tree, tokens)[:, :VOCAB] for tokens in TOKENS]
    np.testing.assert_allclose(found, computed(torch, tmp_path / "served"), rtol=2e-4, atol=2e-4)


def brought_back(folder: Path, name: str) -> dict[str, Array]:
    """The training tree of the files in ``served``."""
    model = MODELS[name]
    reshard.convert(
        folder / "served",
        folder / "back",
        map=name,
        sizes={**model.sizes, **model.more},
        reverse=True,
        to="orbax",
    )
    return flat(reshard.restore(folder / "back"))


_EAGER = {"experts_implementation": "eager"}
"""Others need sizes that are multiples of 4."""

_GPT_OSS = {
    **CONFIGS["maxtext-gpt-oss"], **_EAGER, "architectures": ["GptOssForCausalLM"], "sliding_window": maxtext_models.WINDOW,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
_DEEPSEEK = {
    **CONFIGS["maxtext-deepseek-v3"], **_EAGER, "architectures": ["DeepseekV3ForCausalLM"], "topk_group": 1,
    "max_position_embeddings": 163_840,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
    },
}  # fmt: skip
MAXTEXT = json.loads(maxtext_models.FILE.read_text())


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("name", MAXTEXT["logits"])
def test_transformers_computes_what_maxtext_itself_computed(
    name: str, torch: Oracle, tmp_path: Path
) -> None:
    tree = maxtext_models.weights(MAXTEXT["shapes"][name])
    reshard.save(tmp_path / "trained", nested(tree))
    sizes = {"dense": DENSE} if "deepseek" in name else {}
    reshard.convert(
        tmp_path / "trained",
        tmp_path / "served",
        map=name,
        sizes=sizes,
        to="safetensors",
        file_bytes=20_000,
    )
    layers = LAYERS if "unscanned" in name else 2 * LAYERS
    config = _DEEPSEEK if "deepseek" in name else {**_GPT_OSS, "num_hidden_layers": layers}
    (tmp_path / "served" / "config.json").write_text(json.dumps(config))
    found = computed(torch, tmp_path / "served", maxtext_models.TOKENS)
    np.testing.assert_allclose(found, MAXTEXT["logits"][name], rtol=1e-4, atol=1e-4)
