"""Configurations of transformers for models of the sizes of the pairs."""

from __future__ import annotations

from typing import Any

from tests.maps.maxtext_pairs import (
    DENSE,
    EMBED,
    EXPERTS,
    GROUPS,
    HEAD,
    HEADS,
    LATENT,
    LAYERS,
    MLP,
    NOPE,
    QUERY_RANK,
    ROPE,
    VALUE,
    WORDS,
)

TINY = {
    "dtype": "float32", "hidden_size": EMBED, "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "head_dim": HEAD, "vocab_size": WORDS, "num_experts_per_tok": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "maxtext-qwen3": {**TINY, "model_type": "qwen3"},
    "maxtext-qwen3-moe": {**TINY, "model_type": "qwen3_moe", "num_experts": EXPERTS, "moe_intermediate_size": MLP},
    "maxtext-mixtral": {**TINY, "model_type": "mixtral", "num_local_experts": EXPERTS, "hidden_size": HEADS * HEAD},
    "maxtext-gpt-oss": {**TINY, "model_type": "gpt_oss", "num_local_experts": EXPERTS, "num_hidden_layers": 2 * LAYERS},
    "maxtext-deepseek-v3": {
        **TINY, "model_type": "deepseek_v3", "num_hidden_layers": DENSE + LAYERS, "first_k_dense_replace": DENSE,
        "n_routed_experts": EXPERTS, "n_group": 1, "topk_group": 1, "moe_intermediate_size": MLP, "num_key_value_heads": HEADS,
        "q_lora_rank": QUERY_RANK, "kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE, "v_head_dim": VALUE,
        "head_dim": ROPE,  # it calls that of the rotated part so
    },
}  # fmt: skip
