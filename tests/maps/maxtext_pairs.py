"""Makes ``maxtext_pairs.npz``: what MaxText's own hooks make of probes of tiny models; run by hand.

::

    pip download --no-deps maxtext==0.2.5 && unzip maxtext-*.whl
    python -m tests.maps.maxtext_pairs maxtext/checkpoint_conversion/utils/param_mapping.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from reshard.maps.example.probes import make_probes

Array = npt.NDArray[Any]
FILE = Path(__file__).with_name("maxtext_pairs.npz")
VERSION = "0.2.5"
LAYERS, EMBED, HEADS, GROUPS, HEAD, MLP, WORDS, EXPERTS = 3, 7, 4, 2, 6, 9, 13, 5
VOCAB = 11
"""Of Gemma 2 in Hugging Face's form; MaxText pads it."""
VOCAB_WITH_IMAGES = 16
"""Of Gemma 3 in Hugging Face's form; MaxText leaves the last tokens out."""
REST = 2
"""Layers of Gemma 3 beyond whole blocks of six."""
DENSE = 2
"""Layers of DeepSeek-V3 before those with experts."""
QUERY_RANK, LATENT, ROPE, NOPE, VALUE = 8, 10, 2, 4, 5
"""Of DeepSeek-V3's attention."""

_ATTENTION = {
    "query/kernel": (EMBED, LAYERS, HEADS, HEAD),
    "key/kernel": (EMBED, LAYERS, GROUPS, HEAD),
    "value/kernel": (EMBED, LAYERS, GROUPS, HEAD),
    "out/kernel": (HEADS, LAYERS, HEAD, EMBED),
}
_MLP = {"wi_0/kernel": (EMBED, LAYERS, MLP), "wi_1/kernel": (EMBED, LAYERS, MLP), "wo/kernel": (MLP, LAYERS, EMBED)}  # fmt: skip
_EXPERTS = {
    "gate/kernel": (EMBED, LAYERS, EXPERTS),
    "wi_0": (EXPERTS, LAYERS, EMBED, MLP),
    "wi_1": (EXPERTS, LAYERS, EMBED, MLP),
    "wo": (EXPERTS, LAYERS, MLP, EMBED),
}
_NORMS = {f"{name}_layer_norm/scale": (EMBED, LAYERS) for name in ("pre_self_attention", "post_self_attention")}  # fmt: skip
_TOP = {"token_embedder/embedding": (WORDS, EMBED), "decoder/decoder_norm/scale": (EMBED,)}
_HEAD = {"decoder/logits_dense/kernel": (EMBED, WORDS)}


def _below(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def _stack(layers: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return _below("params/params/", {**_TOP, **_HEAD, **_below("decoder/layers/", layers)})


_QK = {"self_attention/query_norm/scale": (HEAD, LAYERS), "self_attention/key_norm/scale": (HEAD, LAYERS)}  # fmt: skip
_DENSE = {**_below("self_attention/", _ATTENTION), **_below("mlp/", _MLP), **_NORMS}
_GEMMA = {
    name: shape
    for kind in ("local", "global")
    for part in (
        _below(f"self_attention_{kind}/", _ATTENTION),
        _below(f"mlp_{kind}/", _MLP),
        {f"{norm}_{kind}/scale": (EMBED, LAYERS) for norm in ("pre_self_attention_norm", "post_self_attention_norm", "pre_ffw_norm", "post_ffw_norm")},
    )
    for name, shape in part.items()
}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "maxtext-llama3.1": _stack(_DENSE),
    "maxtext-qwen3": _stack({**_DENSE, **_QK}),
    "maxtext-qwen3-moe": _stack(
        {**_below("self_attention/", _ATTENTION), **_QK, **_below("moe_block/", _EXPERTS), **_NORMS}
    ),
    "maxtext-mixtral": _stack(
        {**_below("self_attention/", _ATTENTION), **_below("MoeBlock_0/", _EXPERTS), **_NORMS}
    ),
    "maxtext-gemma2": _below("params/params/", {**_TOP, **_below("decoder/layers/", _GEMMA)}),
}
# The hooks of Mixtral are right only where the heads are as wide as the model, as they are in all of its sizes.
SHAPES = {
    **SHAPES,
    "maxtext-mixtral": {
        name: tuple(HEADS * HEAD if n == EMBED else n for n in shape)
        for name, shape in SHAPES["maxtext-mixtral"].items()
    },
}


_GEMMA3_LAYER = {
    **_below("self_attention/", _ATTENTION),
    **_QK,
    **_below("mlp/", _MLP),
    **{f"{norm}/scale": (EMBED, LAYERS) for norm in ("pre_self_attention_norm", "post_self_attention_norm", "pre_ffw_norm", "post_ffw_norm")},
}  # fmt: skip
_GEMMA3 = {
    name: shape
    for block in range(6)
    for name, shape in _below(f"params/params/decoder/layers/layers_{block}/", _GEMMA3_LAYER).items()
} | _below("params/params/", _TOP)  # fmt: skip
_GEMMA3_REST = {
    name: (shape[0], *shape[2:])
    for layer in range(REST)
    for name, shape in _below(f"params/params/decoder/layers_remainder/layers_{layer}/", _GEMMA3_LAYER).items()
}  # fmt: skip


_GPT_OSS_LAYER = {
    **_below("GptOssAttention/", _ATTENTION),
    "GptOssAttention/query/bias": (HEADS, LAYERS, HEAD),
    "GptOssAttention/key/bias": (GROUPS, LAYERS, HEAD),
    "GptOssAttention/value/bias": (GROUPS, LAYERS, HEAD),
    "GptOssAttention/out/bias": (EMBED, LAYERS),
    "GptOssAttention/sinks": (HEADS, LAYERS),
    **_below("GptOssMlp/", _EXPERTS),
    "GptOssMlp/gate/bias": (EXPERTS, LAYERS),
    "GptOssMlp/wi_0_bias": (EXPERTS, LAYERS, MLP),
    "GptOssMlp/wi_1_bias": (EXPERTS, LAYERS, MLP),
    "GptOssMlp/wo_bias": (EXPERTS, LAYERS, EMBED),
    **_NORMS,
}
_LATENT = {
    "wq_a/kernel": (EMBED, LAYERS, QUERY_RANK),
    "q_norm/scale": (QUERY_RANK, LAYERS),
    "wq_b/kernel": (QUERY_RANK, LAYERS, HEADS, NOPE + ROPE),
    "wkv_a/kernel": (EMBED, LAYERS, LATENT + ROPE),
    "kv_norm/scale": (LATENT, LAYERS),
    "wkv_b/kernel": (LATENT, LAYERS, HEADS, NOPE + VALUE),
    "out/kernel": (HEADS, LAYERS, VALUE, EMBED),
}
_DEEPSEEK = {
    **{
        name: tuple(DENSE if n == LAYERS else n for n in shape)
        for name, shape in _below(
            "decoder/dense_layers/",
            {**_below("self_attention/", _LATENT), **_below("mlp/", _MLP), **_NORMS},
        ).items()
    },
    **_below(
        "decoder/moe_layers/",
        {
            **_below("self_attention/", _LATENT),
            **_below("DeepSeekMoeBlock_0/shared_experts/", _MLP),
            **_below("DeepSeekMoeBlock_0/MoeBlock_0/", _EXPERTS),
            "DeepSeekMoeBlock_0/MoeBlock_0/gate/bias": (EXPERTS, LAYERS),
            **_NORMS,
        },
    ),
}
SHAPES = {**SHAPES, "maxtext-deepseek-v3": _below("params/params/", {**_TOP, **_HEAD, **_DEEPSEEK})}


BIAS = "decoder/moe_layers/DeepSeekMoeBlock_0/MoeBlock_0/gate/bias"
BIAS_HOMES = {"-nnx-aux": "nnx_aux/model/", "-moe-bias-var": "params/MoEBiasVar/"}
"""Where MaxText 0.2.5 has the router biases of DeepSeek-V3: what training stores, and the Linen model."""
for _home, _collection in BIAS_HOMES.items():
    _shapes = dict(SHAPES["maxtext-deepseek-v3"])
    del _shapes[f"params/params/{BIAS}"]
    # What is no Param is stacked on dimension 0 (maxtext_models.json).
    SHAPES = {
        **SHAPES,
        f"maxtext-deepseek-v3{_home}": {**_shapes, f"{_collection}{BIAS}": (LAYERS, EXPERTS)},
    }


def _unscanned(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of a model whose layers are not stacked."""
    found = {name: shape for name, shape in shapes.items() if "layers/" not in name}
    for name in shapes.keys() - found.keys():
        layer_at = int(name.startswith("params/params/"))
        rest = shapes[name][:layer_at] + shapes[name][layer_at + 1 :]
        for layer in range(shapes[name][layer_at]):
            found[name.replace("layers/", f"layers_{layer}/")] = rest
    return found


SHAPES = {
    **SHAPES,
    "maxtext-gemma3-unscanned": {
        **_below("params/params/", _TOP),
        **{
            name: (shape[0], *shape[2:])
            for layer in range(LAYERS)
            for name, shape in _below(
                f"params/params/decoder/layers_{layer}/", _GEMMA3_LAYER
            ).items()
        },
    },
    "maxtext-gemma3": _GEMMA3,
    "maxtext-gemma3-rest": {**_GEMMA3, **_GEMMA3_REST},
    "maxtext-gpt-oss": {
        **_below("params/params/", {**_TOP, **_HEAD}),
        **_below("params/params/decoder/layers/layers_0/", _GPT_OSS_LAYER),
        **_below("params/params/decoder/layers/layers_1/", _GPT_OSS_LAYER),
    },
    "maxtext-gpt-oss-unscanned": _unscanned(_stack(_GPT_OSS_LAYER)),
    **{f"{name}-unscanned": _unscanned(shapes) for name, shapes in SHAPES.items()},
}
"""The shapes of a tiny model of each recipe, as MaxText stores it."""

_FUNCTIONS = {
    "maxtext-llama3.1": "LLAMA31",
    "maxtext-qwen3": "QWEN",
    "maxtext-qwen3-moe": "QWEN",
    "maxtext-mixtral": "MIXTRAL",
    "maxtext-gemma2": "GEMMA2",
    "maxtext-gemma3": "GEMMA3",
    "maxtext-gpt-oss": "GPT_OSS",
    "maxtext-deepseek-v3": "DEEPSEEK",
}


def source(recipe: str) -> dict[str, Array]:
    """The tree of a tiny model."""
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES[recipe].items()}


def hugging_face(
    module: Any, recipe: str, tree: Mapping[str, Array]
) -> Iterator[tuple[str, Array]]:
    """What the hooks make of a tree."""
    model = recipe.removesuffix("-unscanned").removesuffix("-rest")
    for home, collection in BIAS_HOMES.items():
        if model.endswith(home):  # hooks know it in params alone
            model = model.removesuffix(home)
            tree = {
                n.replace(collection, "params/params/"): a.T if "gate/bias" in n else a
                for n, a in tree.items()
            }
    scanned = not recipe.endswith("-unscanned")
    config = _config(model, scanned, recipe.endswith("-rest"))
    own = SimpleNamespace(num_experts=EXPERTS, head_dim=HEAD, inhomogeneous_layer_cycle_interval=2)
    name = _FUNCTIONS[model]
    names = getattr(module, f"{name}_MAXTEXT_TO_HF_PARAM_MAPPING")(config, own, scanned)
    infix = "" if model == "maxtext-gpt-oss" else "_MAXTEXT"
    hooks = getattr(module, f"{name}{infix}_TO_HF_PARAM_HOOK_FN")(config, own, scanned, True)
    arrays = {path.removeprefix("params/").replace("/", "-"): a for path, a in tree.items()}
    for keys in [key for key in names if isinstance(key, tuple)]:
        yield from _fused(names[keys], [arrays.pop(key) for key in keys], hooks[keys], scanned)
    for key, array in arrays.items():
        words = {"maxtext-gemma2": VOCAB, "maxtext-gemma3": VOCAB_WITH_IMAGES}.get(model)
        if words and "embed" in key:
            yield names[key], _hooked(hooks[key], array, (words, EMBED))
        else:
            for target, layer in _layers(names[key], array, scanned):
                yield target, _hooked(hooks.get(key), layer, _shape(target, layer))


def _config(model: str, scanned: bool, rest: bool) -> dict[str, Any]:
    """What the hooks read of the config of Hugging Face's model."""
    if model == "maxtext-gemma3":
        layers = LAYERS * (6 if scanned else 1) + (REST if rest else 0)
        text = {"num_hidden_layers": layers, "hidden_size": EMBED}
        return {"text_config": text, "vision_config": {"num_hidden_layers": 0}}
    layers = LAYERS
    if model == "maxtext-gemma2" or (model == "maxtext-gpt-oss" and scanned):
        layers = 2 * LAYERS
    if model == "maxtext-deepseek-v3":
        layers = DENSE + LAYERS
    return {
        "num_hidden_layers": layers,
        "head_dim": HEAD,
        "hidden_size": HEADS * HEAD if model == "maxtext-mixtral" else EMBED,
        "num_experts": EXPERTS if model == "maxtext-qwen3-moe" else 0,
        "first_k_dense_replace": DENSE,
        "n_routed_experts": EXPERTS,
    }


def _fused(names: Any, parts: list[Array], hook: Any, scanned: bool) -> Iterator[tuple[str, Array]]:
    """What a hook of several tensors makes."""
    layers = [dict(_layers(names, part, scanned)) for part in parts]
    for name, first in layers[0].items():
        shape = (*first.shape[:-1], len(parts) * first.shape[-1])
        yield name, _hooked(hook, [each[name] for each in layers], shape)


def _layers(names: Any, array: Array, scanned: bool) -> Iterator[tuple[str, Array]]:
    """What a tensor of the tree has for each name: all of it, a layer, or an expert of one."""
    if isinstance(names, str):
        yield names, array
        return
    if isinstance(names[0], list):  # experts, then layers
        for of_expert, expert in zip(names, array, strict=True):
            yield from zip(of_expert, expert, strict=True)
        return
    for number, name in enumerate(names):
        yield name, array.take(number, axis=1 if scanned else 0)


def _shape(name: str, array: Array) -> tuple[int, ...]:
    """The shape in Hugging Face's form: kernels have the heads merged, and are turned."""
    if name.endswith("embed_tokens.weight"):
        return array.shape
    if name.endswith(".bias"):
        return (array.size,)
    if "o_proj" in name:
        return (array.shape[-1], array.size // array.shape[-1])
    if array.ndim > 1:
        return (array.size // array.shape[0], array.shape[0])
    return array.shape


def _hooked(hook: Callable[..., Any] | list[Callable[..., Any]] | None, array: Array | list[Array], shape: tuple[int, ...]) -> Array:  # fmt: skip
    for each in hook if isinstance(hook, list) else [hook] if hook else []:
        array = np.asarray(each(array, shape))
    return np.ascontiguousarray(array)


def main() -> None:
    """Writes the file."""
    spec = importlib.util.spec_from_file_location("param_mapping", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Array] = {}
    for recipe in SHAPES:
        runs = [dict(hugging_face(module, recipe, p)) for p in make_probes(source(recipe))]
        shapes = {name: array.shape for name, array in runs[0].items()}
        found[f"{recipe} shapes"] = np.frombuffer(json.dumps(shapes).encode(), np.uint8)
        found[recipe] = np.stack(
            [np.concatenate([a.ravel() for a in run.values()]) for run in runs]
        )
    np.savez_compressed(FILE, **found)


def pairs(recipe: str) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """The probes of a tiny model, and what the hooks made of each."""
    with np.load(FILE) as file:
        shapes = json.loads(file[f"{recipe} shapes"].tobytes())
        runs = file[recipe]
    return make_probes(source(recipe)), [_apart(run, shapes) for run in runs]


def _apart(run: Array, shapes: Mapping[str, list[int]]) -> dict[str, Array]:
    found, at = {}, 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        found[name] = run[at : at + count].reshape(shape)
        at += count
    return found


if __name__ == "__main__":
    main()
