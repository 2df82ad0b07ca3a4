"""What each rank of vLLM holds of a dense model, as the weight loaders of vLLM 0.33.0 fill it: a second program, in numpy.

It makes the tensors of one rank and copies into them what a loader would, tensor by tensor, where the recipe has one rule for all
ranks. The names in it are those of vLLM: ``linear.py``, ``vocab_parallel_embedding.py``, ``sharded_state_loader.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
PADDING_SIZE = 64


def state_of_rank(
    config: Mapping[str, Any], weights: Mapping[str, Array], tp_rank: int, tp_size: int
) -> dict[str, Array]:
    """What ``ShardedStateLoader.save_model`` stores of one rank; ``config`` is that of transformers, ``weights`` its files."""
    rank = _Rank(config, tp_rank, tp_size, weights["model.norm.weight"].dtype)
    for name, loaded in weights.items():
        rank.load(name, loaded)
    for layer in range(config["num_hidden_layers"]):
        for scale in ("_k_scale", "_v_scale", "_q_scale", "_prob_scale"):
            rank.state[f"model.layers.{layer}.self_attn.attn.{scale}"] = np.ones((), np.float32)
    if config["tie_word_embeddings"]:  # one tensor of two names is stored by the smaller one
        embedding = rank.state.pop("model.embed_tokens.weight")
        rank.state["lm_head.weight"] = embedding
    return rank.state


class _Rank:
    """The parameters of one rank."""

    def __init__(
        self, config: Mapping[str, Any], tp_rank: int, tp_size: int, dtype: np.dtype[Any]
    ) -> None:
        self.tp_rank, self.tp_size, self.dtype = tp_rank, tp_size, dtype
        self.hidden = config["hidden_size"]
        self.vocabulary = config["vocab_size"]
        self.intermediate = config["intermediate_size"]
        self.head_size = config["head_dim"]
        total_heads, total_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.num_heads = _divide(total_heads, tp_size)
        if tp_size >= total_kv_heads:
            self.num_kv_heads, self.num_kv_head_replicas = 1, _divide(tp_size, total_kv_heads)
        else:
            self.num_kv_heads, self.num_kv_head_replicas = _divide(total_kv_heads, tp_size), 1
        self.state: dict[str, Array] = {}
        self._loaders: dict[str, Callable[[str, Array], None]] = {
            r"(embed_tokens|lm_head)\.weight": self._vocabulary,
            r"self_attn\.[qkv]_proj\.weight": self._qkv,
            r"mlp\.(gate|up)_proj\.weight": self._gate_up,
            r"(o_proj|down_proj)\.weight": self._row,
            r"norm\.weight": self._replicated,
        }

    def load(self, name: str, loaded: Array) -> None:
        """What the loader of a parameter does with a tensor of a checkpoint."""
        (loader,) = [load for key, load in self._loaders.items() if re.search(rf"{key}$", name)]
        loader(name, loaded)

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Array:
        if name not in self.state:
            self.state[name] = np.full(shape, 77, self.dtype)
        return self.state[name]

    def _vocabulary(self, name: str, loaded: Array) -> None:
        padded = (self.vocabulary + PADDING_SIZE - 1) // PADDING_SIZE * PADDING_SIZE
        rows = _divide(padded, self.tp_size)
        start = min(self.tp_rank * rows, self.vocabulary)
        stop = min((self.tp_rank + 1) * rows, self.vocabulary)
        parameter = self._parameter(name, (rows, self.hidden))
        parameter[: stop - start] = loaded[start:stop]
        parameter[stop - start :] = 0

    def _qkv(self, name: str, loaded: Array) -> None:
        q, kv = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        shard_id = name[-len("q_proj.weight")]
        offset, size = {"q": (0, q), "k": (q, kv), "v": (q + kv, kv)}[shard_id]
        shard_rank = self.tp_rank if shard_id == "q" else self.tp_rank // self.num_kv_head_replicas
        fused = re.sub(r"[qkv]_proj", "qkv_proj", name)
        parameter = self._parameter(fused, (q + 2 * kv, self.hidden))
        parameter[offset : offset + size] = loaded[shard_rank * size : (shard_rank + 1) * size]

    def _gate_up(self, name: str, loaded: Array) -> None:
        size = _divide(self.intermediate, self.tp_size)
        offset = 0 if "gate_proj" in name else size
        fused = re.sub(r"(gate|up)_proj", "gate_up_proj", name)
        parameter = self._parameter(fused, (2 * size, self.hidden))
        parameter[offset : offset + size] = loaded[self.tp_rank * size : (self.tp_rank + 1) * size]

    def _row(self, name: str, loaded: Array) -> None:
        size = _divide(loaded.shape[1], self.tp_size)
        start = self.tp_rank * size
        self._parameter(name, (self.hidden, size))[:] = loaded[:, start : start + size]

    def _replicated(self, name: str, loaded: Array) -> None:
        self._parameter(name, loaded.shape)[:] = loaded


def _divide(number: int, by: int) -> int:
    assert number % by == 0
    return number // by
