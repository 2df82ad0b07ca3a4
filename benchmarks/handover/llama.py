"""A scanned Llama as MaxText names it, saved by stock Orbax: ``python -m benchmarks.handover.llama LAYERS TARGET [WIDTH]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HEAD = 128
WORDS = 32_000


def shapes(layers: int, width: int) -> dict[str, tuple[int, ...]]:
    """Of each tensor, by its path below ``params/params``."""
    heads, kv_heads, mlp, words = width // HEAD, max(1, width // HEAD // 4), width * 11 // 4, WORDS
    if width < WORDS // 16:
        words = 16 * width
    stack = {
        "self_attention/query/kernel": (width, layers, heads, HEAD),
        "self_attention/key/kernel": (width, layers, kv_heads, HEAD),
        "self_attention/value/kernel": (width, layers, kv_heads, HEAD),
        "self_attention/out/kernel": (heads, layers, HEAD, width),
        "mlp/wi_0/kernel": (width, layers, mlp),
        "mlp/wi_1/kernel": (width, layers, mlp),
        "mlp/wo/kernel": (mlp, layers, width),
        "pre_self_attention_layer_norm/scale": (width, layers),
        "post_self_attention_layer_norm/scale": (width, layers),
    }
    return {
        "token_embedder/embedding": (words, width),
        "decoder/logits_dense/kernel": (width, words),
        "decoder/decoder_norm/scale": (width,),
        **{f"decoder/layers/{name}": shape for name, shape in stack.items()},
    }


def tree(layers: int, width: int) -> dict[str, Any]:
    """Random float32 weights, nested as a train state has them."""
    import numpy as np

    random = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for path, shape in shapes(layers, width).items():
        *folders, last = path.split("/")
        place = made
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = random.standard_normal(shape, dtype=np.float32)
    return {"params": {"params": made}}


def save(made: Any, target: Path) -> None:
    """Saves a tree with Orbax as plain files that are not compressed, as fast as it can."""
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_compression=False)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(target.absolute(), made)


if __name__ == "__main__":
    save(tree(int(sys.argv[1]), int((*sys.argv, "2048")[3])), Path(sys.argv[2]))
