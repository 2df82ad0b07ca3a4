"""Makes ``maxtext_models.json``: what MaxText itself stores and computes for tiny models; run by hand, with MaxText.

::

    pip install --no-deps maxtext==0.2.5   # and what its modules import
    DECOUPLE_GCLOUD=TRUE JAX_PLATFORMS=cpu python tests/maps/maxtext_models.py

Training stores the tree of ``to_checkpoint_dict``; programs that use the Linen model, such as the one that converts from Hugging
Face, have its collections. They differ in where the router biases of DeepSeek-V3 are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shapes = dict[str, list[int]]
FILE = Path(__file__).with_name("maxtext_models.json")
WINDOW = 5
"""How many tokens a local layer of gpt-oss sees."""
TOKENS = (np.arange(32) * 5 % 13).reshape(2, 16).astype(np.int32)
TINY = {
    "base_emb_dim": 7, "base_mlp_dim": 9, "base_moe_mlp_dim": 9, "num_experts": 5, "num_experts_per_tok": 2,
    "base_num_query_heads": 4, "vocab_size": 13, "per_device_batch_size": 1, "max_target_length": 16,
    "attention": "dot_product", "weight_dtype": "float32", "dtype": "float32", "matmul_precision": "highest",
    "sparse_matmul": False, "megablox": False, "capacity_factor": -1.0, "rope_max_timescale": 10000,
    "enable_checkpointing": False, "skip_jax_distributed_system": True, "run_name": "tiny", "override_model_config": True,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "maxtext-gpt-oss": {
        "model_name": "gpt-oss-20b", "base_num_decoder_layers": 3, "base_num_kv_heads": 2, "head_dim": 6,
        "rope_type": "default", "sliding_window_size": WINDOW,
    },
    "maxtext-deepseek-v3": {
        "model_name": "deepseek3-tiny", "base_num_decoder_layers": 5, "first_num_dense_layers": 2, "base_num_kv_heads": 4,
        "q_lora_rank": 8, "kv_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5,
    },
}  # fmt: skip
COLLECTIONS = ("params/params/", "params/MoEBiasVar/", "nnx_aux/model/")


def weights(shapes: Mapping[str, list[int]]) -> dict[str, Array]:
    """Random weights for tensors of a tree; the same wherever a tensor is stored."""
    found = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(_below(name).encode()))
        values = random.standard_normal(shape) / 2
        found[name] = (np.abs(values) + 0.5 if "norm" in name else values).astype(np.float32)
    return found


def _below(name: str) -> str:
    for collection in COLLECTIONS:
        name = name.removeprefix(collection)
    return name


def main() -> None:
    """Writes the file."""
    shapes: dict[str, Shapes] = {}
    logits: dict[str, Any] = {}
    for model, sizes in MODELS.items():
        for ending, scanned in (("", True), ("-unscanned", False)):
            given = {**TINY, **sizes, "scan_layers": scanned}
            if scanned and model == "maxtext-gpt-oss":  # blocks of two
                given["base_num_decoder_layers"] *= 2
            trained, linen, computed = _run(given)
            by_name = {f"{model}{ending}": trained}
            if trained != linen:
                by_name = {
                    f"{model}-nnx-aux{ending}": trained,
                    f"{model}-moe-bias-var{ending}": linen,
                }
            shapes |= by_name
            logits |= dict.fromkeys(by_name, computed.astype(float).round(6).tolist())
    text = json.dumps({"shapes": shapes, "logits": logits}, sort_keys=True)
    FILE.write_text(text.replace("}, ", "},\n").replace("]]], ", "]]],\n") + "\n")


def _run(sizes: dict[str, Any]) -> tuple[Shapes, Shapes, Array]:
    """The tensors that training stores, without states of random numbers, those of the Linen model, and logits."""
    import jax
    import maxtext
    from flax import nnx
    from maxtext.checkpoint_conversion.to_maxtext import get_maxtext_model_info
    from maxtext.common.train_state_nnx import TrainStateNNX, to_checkpoint_dict
    from maxtext.configs import pyconfig
    from maxtext.utils.model_creation_utils import from_config

    base = Path(next(iter(maxtext.__path__))) / "configs" / "base.yml"
    config = pyconfig.initialize(["", str(base), *(f"{k}={v}" for k, v in sizes.items())])
    known, _ = get_maxtext_model_info(config)
    linen = {f"params/{k.replace('-', '/')}": list(shape) for k, (_, shape) in known.items()}
    rngs = {"params": 0, "dropout": 1, "aqt": 2}
    model = from_config(config, rngs=nnx.Rngs(**rngs))
    tree = to_checkpoint_dict(nnx.state(TrainStateNNX(model, None)))
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    stored = {"/".join(str(k.key) for k in path): list(leaf.shape) for path, leaf in leaves}
    stored = {name: shape for name, shape in stored.items() if "rngs" not in name}
    given = {_below(name): a for name, a in weights(stored).items()}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        name = "/".join(map(str, path))
        if name in given:
            variable[...] = jax.numpy.asarray(given.pop(name))
    assert not given, f"{sorted(given)} are not in the model"
    places = np.tile(np.arange(TOKENS.shape[1], dtype=np.int32), (len(TOKENS), 1))
    found = model(TOKENS, places, decoder_segment_ids=np.ones_like(TOKENS), enable_dropout=False)
    return stored, linen, np.asarray(found[0] if isinstance(found, tuple) else found)


if __name__ == "__main__":
    main()
