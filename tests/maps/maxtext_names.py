"""Makes ``maxtext_names.json``: names and shapes of tiny models as MaxText itself stores them; run by hand, with MaxText.

::

    pip install --no-deps maxtext==0.2.5   # and what its modules import
    DECOUPLE_GCLOUD=TRUE JAX_PLATFORMS=cpu python tests/maps/maxtext_names.py

Training writes the tree of ``to_checkpoint_dict``; programs that use the Linen model, such as the one that converts from Hugging
Face, have its collections. They differ in where the router biases of DeepSeek-V3 are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("maxtext_names.json")
TINY = {
    "base_emb_dim": 7, "base_mlp_dim": 9, "base_moe_mlp_dim": 9, "num_experts": 5, "num_experts_per_tok": 2,
    "base_num_query_heads": 4, "vocab_size": 13, "per_device_batch_size": 1, "max_target_length": 16,
    "attention": "dot_product", "weight_dtype": "float32", "sparse_matmul": False, "megablox": False,
    "enable_checkpointing": False, "skip_jax_distributed_system": True, "run_name": "tiny", "override_model_config": True,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "maxtext-gpt-oss": {
        "model_name": "gpt-oss-20b", "base_num_decoder_layers": 3, "base_num_kv_heads": 2, "head_dim": 6,
    },
    "maxtext-deepseek-v3": {
        "model_name": "deepseek3-tiny", "base_num_decoder_layers": 5, "first_num_dense_layers": 2, "base_num_kv_heads": 4,
        "q_lora_rank": 8, "kv_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5,
    },
}  # fmt: skip


def main() -> None:
    """Writes the file."""
    found: dict[str, dict[str, list[int]]] = {}
    for model, sizes in MODELS.items():
        for ending, scanned in (("", True), ("-unscanned", False)):
            given = {**TINY, **sizes, "scan_layers": scanned}
            if scanned and model == "maxtext-gpt-oss":  # blocks of two
                given["base_num_decoder_layers"] *= 2
            trained, linen = _stored(given)
            if trained == linen:
                found[f"{model}{ending}"] = trained
            else:
                found[f"{model}-nnx-aux{ending}"] = trained
                found[f"{model}-moe-bias-var{ending}"] = linen
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


def _stored(sizes: dict[str, Any]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The tensors that training stores, without states of random numbers, and those of the Linen model."""
    import jax
    import maxtext
    from flax import nnx
    from maxtext.checkpoint_conversion.to_maxtext import get_maxtext_model_info
    from maxtext.common.train_state_nnx import TrainStateNNX, to_checkpoint_dict
    from maxtext.configs import pyconfig
    from maxtext.utils.model_creation_utils import from_config

    base = Path(next(iter(maxtext.__path__))) / "configs" / "base.yml"
    config = pyconfig.initialize(["", str(base), *(f"{k}={v}" for k, v in sizes.items())])
    rngs = {"params": 0, "dropout": 1, "aqt": 2}
    model = nnx.eval_shape(lambda: from_config(config, rngs=nnx.Rngs(**rngs)))
    tree = to_checkpoint_dict(nnx.state(TrainStateNNX(model, None)))
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    trained = {"/".join(str(k.key) for k in path): list(leaf.shape) for path, leaf in leaves}
    known, _ = get_maxtext_model_info(config)
    linen = {f"params/{k.replace('-', '/')}": list(shape) for k, (_, shape) in known.items()}
    return {k: shape for k, shape in trained.items() if "rngs" not in k}, linen


if __name__ == "__main__":
    main()
