"""Training models of MaxText in numpy: random trees, and forward passes written from the models' descriptions.

MaxText 0.2.5 itself was given these trees once, and computed the same to 2e-5; for Gemma 2 where the table that gives the logits is
rounded to bfloat16, which it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.maps.maxtext_pairs import LAYERS, SHAPES

Array = npt.NDArray[Any]
WINDOW = 5
"""How many tokens a local layer of Gemma 2 sees, itself among them."""
VOCAB = 64
PADDED = 70
"""Tokens of Gemma 2 as MaxText stores them."""

SIZES = {7: 32, 4: 4, 2: 2, 6: 8, 9: 48, 13: VOCAB, LAYERS: LAYERS}
"""Lengths of dimensions, by those of the pairs."""


def llama() -> dict[str, Array]:
    """Random weights of Llama as training stores them."""
    return _random("maxtext-llama3.1", SIZES)


def gemma2() -> dict[str, Array]:
    """Random weights of Gemma 2 as training stores them; tokens that pad the vocabulary have 0."""
    found = _random("maxtext-gemma2", {**SIZES, 13: PADDED})
    embedding = found["params/params/token_embedder/embedding"]
    embedding[VOCAB:] = 0
    embedding *= 30  # so that soft caps tell
    for kind in ("local", "global"):
        found[f"params/params/decoder/layers/self_attention_{kind}/query/kernel"] *= 4
    return found


def _random(recipe: str, sizes: Mapping[int, int]) -> dict[str, Array]:
    random = np.random.default_rng(4)
    found = {}
    for name, shape in SHAPES[recipe].items():
        values = random.standard_normal([sizes[n] for n in shape]) * 0.3
        found[name] = (np.abs(values) + 0.5 if "norm" in name else values).astype(np.float32)
    return found


def llama_logits(tree: Mapping[str, Array], tokens: Array) -> Array:
    """In float64. Queries are not scaled, since their kernels are."""
    p = _params(tree)
    x = p["token_embedder/embedding"][tokens]
    for w in _layers(p):
        h = _normed(x, w["pre_self_attention_layer_norm/scale"])
        x = x + _attended(h, w, "self_attention", _rotated_pairs, np.tri(len(tokens)))
        h = _normed(x, w["post_self_attention_layer_norm/scale"])
        x = x + _mlp(h, w, "mlp", lambda gate: gate / (1 + np.exp(-gate)))
    return _normed(x, p["decoder/decoder_norm/scale"]) @ p["decoder/logits_dense/kernel"]


def gemma2_logits(tree: Mapping[str, Array], tokens: Array) -> Array:
    """In float64. Embeddings are stored times the root of their size, queries scaled, and norms whole."""
    p = _params(tree)
    embedding = p["token_embedder/embedding"]
    x = embedding[tokens]
    far = np.tri(len(tokens))
    near = far - np.tri(len(tokens), k=-WINDOW)
    for w in _layers(p):
        for kind, seen in (("local", near), ("global", far)):
            h = _normed(x, w[f"pre_self_attention_norm_{kind}/scale"])
            h = _attended(h, w, f"self_attention_{kind}", _rotated_halves, seen, 50)
            x = x + _normed(h, w[f"post_self_attention_norm_{kind}/scale"])
            h = _normed(x, w[f"pre_ffw_norm_{kind}/scale"])
            h = _mlp(h, w, f"mlp_{kind}", _gelu)
            x = x + _normed(h, w[f"post_ffw_norm_{kind}/scale"])
    x = _normed(x, p["decoder/decoder_norm/scale"])
    return _capped(x @ embedding.T / np.sqrt(x.shape[-1]), 30)


def _params(tree: Mapping[str, Array]) -> dict[str, Array]:
    return {n.removeprefix("params/params/"): a.astype(np.float64) for n, a in tree.items()}


def _layers(p: Mapping[str, Array]) -> list[dict[str, Array]]:
    layers = {n.removeprefix("decoder/layers/"): a for n, a in p.items() if "/layers/" in n}
    return [{name: a[:, n] for name, a in layers.items()} for n in range(LAYERS)]


def _attended(
    h: Array,
    w: Mapping[str, Array],
    block: str,
    rotated: Callable[[Array], Array],
    seen: Array,
    cap: float | None = None,
) -> Array:
    q, k, v = (
        np.einsum("te,ehd->thd", h, w[f"{block}/{name}/kernel"])
        for name in ("query", "key", "value")
    )
    q, k = rotated(q), rotated(k)
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = np.einsum("thd,shd->hts", q, k)
    if cap is not None:
        scores = _capped(scores, cap)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    heads = np.einsum("hts,shd->thd", weights, v)
    return np.einsum("thd,hde->te", heads, w[f"{block}/out/kernel"])


def _mlp(h: Array, w: Mapping[str, Array], block: str, act: Callable[[Array], Array]) -> Array:
    gate, up = h @ w[f"{block}/wi_0/kernel"], h @ w[f"{block}/wi_1/kernel"]
    out: Array = (act(gate) * up) @ w[f"{block}/wo/kernel"]
    return out


def _gelu(x: Array) -> Array:
    out: Array = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


def _capped(x: Array, cap: float) -> Array:
    return np.tanh(x / cap) * cap


def _normed(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * scale


def _turned(first: Array, second: Array) -> tuple[Array, Array]:
    """RoPE of two halves of [tokens, heads, half a head]."""
    tokens, _, half = first.shape
    speed = 10_000.0 ** (-np.arange(half) / half)
    angle = np.arange(tokens)[:, None, None] * speed
    cos, sin = np.cos(angle), np.sin(angle)
    return first * cos - second * sin, second * cos + first * sin


def _rotated_pairs(x: Array) -> Array:
    """RoPE on neighbouring pairs."""
    return np.stack(_turned(x[..., ::2], x[..., 1::2]), axis=-1).reshape(x.shape)


def _rotated_halves(x: Array) -> Array:
    """RoPE on the halves of each head."""
    return np.concatenate(_turned(*np.split(x, 2, axis=-1)), axis=-1)
