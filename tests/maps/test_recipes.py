"""Recipes are what MaxText's own hooks make, and what transformers loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import reshard
from reshard import rules
from reshard.cli.app import run
from reshard.maps.example.infer import Example, infer
from reshard.maps.example.prove import made_by
from tests.maps.maxtext_pairs import DENSE, HEAD, LAYERS, SHAPES, VOCAB, VOCAB_WITH_IMAGES, pairs
from tests.oracles.oracle import Oracle
from tests.orbax_trees import nested

Array = npt.NDArray[Any]
SIZES = {
    **{
        name: {"vocab": VOCAB, "query_pre_attn_scalar": HEAD}
        for name in ("maxtext-gemma2", "maxtext-gemma2-unscanned")
    },
    **{
        name: {"vocab": VOCAB_WITH_IMAGES}
        for name in ("maxtext-gemma3", "maxtext-gemma3-unscanned")
    },
    "maxtext-gemma3-rest": {"vocab": VOCAB_WITH_IMAGES, "first": 6 * LAYERS},
    **{name: {"first": DENSE} for name in SHAPES if name.startswith("maxtext-deepseek-v3")},
}


NAMES = json.loads(Path(__file__).with_name("maxtext_names.json").read_text())
VLLM = {f"vllm-{model}" for model in ("llama3", "llama3-tied", "qwen3", "qwen3-tied")}


def test_each_is_here() -> None:
    assert set(rules.recipes()) == set(SHAPES) | VLLM
    for name, about in rules.recipes().items():
        assert ("vLLM 0.33.0" if name in VLLM else "MaxText 0.2.5") in about


@pytest.mark.parametrize("name", NAMES)
def test_maxtext_itself_stores_these_tensors(name: str) -> None:
    assert {tensor: list(shape) for tensor, shape in SHAPES[name].items()} == NAMES[name]


@pytest.mark.parametrize("name", SHAPES)
def test_it_makes_what_the_hooks_make(name: str) -> None:
    probes, made = pairs(name)
    for probe, wanted in zip(probes, made, strict=True):
        found = made_by(rules.recipe(name), probe, SIZES.get(name, {}))
        assert found.keys() == wanted.keys()
        for tensor, array in wanted.items():
            np.testing.assert_array_equal(
                found[tensor].view("u1"), array.view("u1"), err_msg=tensor
            )


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_learned_from_the_hooks(name: str) -> None:
    probes, made = pairs(name)
    found = infer([Example(probes, made)])
    assert found.problems == ()
    text = rules.recipe(name)
    for sizes, one in ((found.asked, found.text), (SIZES.get(name, {}), text)):
        learned = made_by(one, probes[-1], sizes)
        assert all((learned[n] == array).all() for n, array in made[-1].items())


def rotated(x: Array) -> Array:
    """RoPE on neighbouring pairs of [tokens, heads, size]."""
    tokens, _, size = x.shape
    speed = 10_000.0 ** (-np.arange(0, size, 2) / size)
    angle = np.arange(tokens)[:, None, None] * speed
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)


def normed(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * scale


def logits(tree: Mapping[str, Array], tokens: Array) -> Array:
    """A forward pass of the training model in float64: queries are not scaled, since their kernels are."""
    p = {name.removeprefix("params/params/"): a.astype(np.float64) for name, a in tree.items()}
    x = p["token_embedder/embedding"][tokens]
    layers = {n.removeprefix("decoder/layers/"): a for n, a in p.items() if "/layers/" in n}
    for n in range(layers["mlp/wo/kernel"].shape[1]):
        w = {name: a[:, n] for name, a in layers.items()}
        h = normed(x, w["pre_self_attention_layer_norm/scale"])
        q, k, v = (
            np.einsum("te,ehd->thd", h, w[f"self_attention/{name}/kernel"])
            for name in ("query", "key", "value")
        )
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("thd,shd->hts", q, k)
        scores = np.where(np.tri(len(tokens)), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        heads = np.einsum("hts,shd->thd", weights, v)
        x = x + np.einsum("thd,hde->te", heads, w["self_attention/out/kernel"])
        h = normed(x, w["post_self_attention_layer_norm/scale"])
        gate, up = h @ w["mlp/wi_0/kernel"], h @ w["mlp/wi_1/kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp/wo/kernel"]
    return normed(x, p["decoder/decoder_norm/scale"]) @ p["decoder/logits_dense/kernel"]


def flat(tree: Any, prefix: str = "") -> dict[str, Array]:
    found: dict[str, Array] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found |= flat(value, f"{path}/") if isinstance(value, dict) else {path: np.asarray(value)}
    return found


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float32", "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip


def llama() -> dict[str, Array]:
    """Random weights as training stores them, of the sizes of ``CONFIG``."""
    random = np.random.default_rng(4)
    sizes = {7: 32, 4: 4, 2: 2, 6: 8, 9: 48, 13: 64, LAYERS: LAYERS}
    found = {}
    for name, shape in SHAPES["maxtext-llama3.1"].items():
        values = random.standard_normal([sizes[n] for n in shape]) * 0.3
        found[name] = (np.abs(values) + 0.5 if "norm" in name else values).astype(np.float32)
    return found


@pytest.mark.xdist_group("torch")
def test_transformers_computes_the_logits_of_the_training_model(
    torch: Oracle, tmp_path: Path
) -> None:
    tree = llama()
    reshard.save(tmp_path / "trained", nested({**tree, "opt_state/mu": np.zeros(3, np.float32)}))
    reshard.convert(
        tmp_path / "trained",
        tmp_path / "served",
        map="maxtext-llama3.1",
        select=["^params/"],
        to="safetensors",
        file_bytes=20_000,
    )
    (tmp_path / "served" / "config.json").write_text(json.dumps(CONFIG))
    loaded = torch.ask("logit_values", folder=str(tmp_path / "served"))
    assert (loaded["missing_keys"], loaded["unexpected_keys"]) == ([], [])
    wanted = [logits(tree, tokens) for tokens in np.arange(32).reshape(2, 16)]
    np.testing.assert_allclose(np.array(loaded["logits"]), wanted, rtol=2e-3, atol=2e-3)
    reshard.convert(
        tmp_path / "served",
        tmp_path / "back",
        map="maxtext-llama3.1",
        sizes={"p": 4, "d": 8},
        reverse=True,
        to="orbax",
    )
    back = flat(reshard.restore(tmp_path / "back"))
    assert back.keys() == tree.keys()
    for name, array in tree.items():
        if "query" in name:
            np.testing.assert_allclose(back[name], array, rtol=3e-7, atol=0)
        else:
            np.testing.assert_array_equal(back[name], array)


def test_a_recipe_is_a_map_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reshard.save(tmp_path / "trained", nested(llama()))
    assert run(["plan", str(tmp_path / "trained"), "--map", "maxtext-llama3.1"]) == 0
    assert "map: 12 tensors → 30, every element used and written once" in capsys.readouterr().out
    assert run(["convert", str(tmp_path / "trained"), str(tmp_path / "served.safetensors"), "--map", "maxtext-llama3.1"]) == 0  # fmt: skip
    assert "served.safetensors: map maxtext-llama3.1, verify written" in " ".join(
        capsys.readouterr().err.split()
    )
    assert "model.layers.2.mlp.up_proj.weight" in load_file(tmp_path / "served.safetensors")


def test_the_list_and_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes"]) == 0
    assert "maxtext-gemma2" in capsys.readouterr().out
    assert run(["recipes", "maxtext-qwen3"]) == 0
    assert capsys.readouterr().out == rules.recipe("maxtext-qwen3")
    assert run(["recipes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["recipes"]] == sorted([*SHAPES, *VLLM])
    assert run(["recipes", "maxtext-llama"]) == 1
    assert (
        "there is no recipe 'maxtext-llama'; did you mean maxtext-llama3.1?"
        in capsys.readouterr().err
    )
