"""The recipes for Megatron: transformers computes from what they make what Megatron Core itself computed, and back they give its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import reshard
from reshard import rules
from reshard.cli.app import run
from reshard.errors import PlanError
from tests.maps import by_numpy
from tests.megatron.saved import (
    CHOSEN,
    EXPERTS,
    LOGITS,
    PADDED,
    SIZES,
    TOKENS,
    VOCAB,
    unpack,
    weight,
)
from tests.oracles.oracle import Oracle

MODEL = [r"^(embedding|decoder|output_layer)\."]
GROUPS, HEAD = SIZES["num_query_groups"], SIZES["kv_channels"]
GIVEN = {"vocab": VOCAB, "g": GROUPS}
SMALL = {
    "dtype": "float32", "hidden_size": SIZES["hidden_size"], "intermediate_size": SIZES["ffn_hidden_size"],
    "num_hidden_layers": SIZES["num_layers"], "num_attention_heads": SIZES["num_attention_heads"], "num_key_value_heads": GROUPS,
    "head_dim": HEAD, "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": SIZES["layernorm_epsilon"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen3": {**SMALL, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "mixtral": {
        **SMALL, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN, "experts_implementation": "eager",  # others need sizes that are multiples of 4
    },
}  # fmt: skip
RECIPES = {
    "0.16.1/llama": "megatron-llama3",
    "0.16.1/llama-layers": "megatron-llama3-unstacked",
    "0.16.1/qwen3": "megatron-qwen3",
    "0.16.1/mixtral": "megatron-mixtral",
    "0.16.1/mixtral-layers": "megatron-mixtral-unstacked",
    "0.13.1/llama": "megatron-llama3",
}
"""Each with the saved model that it is for."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("megatron"))


def sizes_of(recipe: str) -> dict[str, int]:
    return GIVEN if "qwen3" in recipe else {**GIVEN, "d": HEAD}


def padded(tensor: str, array: np.ndarray) -> np.ndarray:
    """As the way back gives it: padding is 0."""
    is_cut = tensor in ("embedding.word_embeddings.weight", "output_layer.weight")
    return np.where(np.arange(PADDED)[:, None] < VOCAB, array, 0) if is_cut else array


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("name", RECIPES)
def test_transformers_computes_what_megatron_computed(
    name: str, saved: Path, torch: Oracle, tmp_path: Path
) -> None:
    options: Any = {"map": RECIPES[name], "sizes": sizes_of(RECIPES[name])}
    served = tmp_path / "served"
    reshard.convert(saved / name, served, to="safetensors", select=MODEL, file_bytes=9000, **options)  # fmt: skip
    kind = name.partition("/")[2].partition("-")[0]
    (served / "config.json").write_text(json.dumps(CONFIGS[kind]))
    loaded = torch.ask("logit_values", folder=str(served), tokens=TOKENS.tolist())
    assert (loaded["missing_keys"], loaded["unexpected_keys"]) == ([], [])
    wanted = json.loads(LOGITS.read_text())[name]
    np.testing.assert_allclose(loaded["logits"], wanted, rtol=1e-4, atol=1e-4)

    options["sizes"] = {**options["sizes"], "v": PADDED}
    reshard.convert(served, tmp_path / "back", to="dcp", reverse=True, **options)
    back = reshard.restore(tmp_path / "back")
    assert set(back) == {
        tensor
        for tensor in reshard.inspect(saved / name).tensors
        if not tensor.startswith("optimizer.")
    }
    for tensor, array in back.items():
        np.testing.assert_array_equal(array, padded(tensor, weight(tensor, array.shape)))


def test_names_with_a_prefix(saved: Path, tmp_path: Path) -> None:
    """NeMo puts ``module.`` before each; the rules of a recipe fit into a group."""
    options: Any = {"to": "safetensors", "sizes": sizes_of("megatron-llama3")}
    model = saved / "0.16.1/llama"
    reshard.convert(model, tmp_path / "nemo", select=MODEL, drop=["_extra_state"], rename=[("^", "module.")])  # fmt: skip
    reshard.convert(model, tmp_path / "wanted", select=MODEL, map="megatron-llama3", **options)
    head, _, of_map = rules.recipe("megatron-llama3").partition("\nmap:\n")
    of_map = "".join(f"  {line}\n" for line in of_map.splitlines())
    (tmp_path / "nemo.yaml").write_text(f"{head}\nmap:\n- under: module.\n  map:\n{of_map}")
    reshard.convert(tmp_path / "nemo", tmp_path / "made", map=tmp_path / "nemo.yaml", **options)
    assert reshard.diff(tmp_path / "wanted", tmp_path / "made").differences == 0


def source(saved: Path, kind: str) -> dict[str, np.ndarray]:
    tensors = reshard.inspect(saved / "0.16.1" / kind).tensors
    return {name: weight(name, tensor.spec.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", ["llama3", "qwen3"])
@pytest.mark.parametrize("ending", ["", "-unstacked"])
def test_tied_models_have_no_output_layer(saved: Path, kind: str, ending: str) -> None:
    tree = source(saved, "qwen3" if kind == "qwen3" else "llama")
    if ending:
        tree = unstacked(tree)
    sizes = sizes_of(kind)
    made = by_numpy.made_by(rules.recipe(f"megatron-{kind}{ending}"), tree, sizes)
    del tree["output_layer.weight"], made["lm_head.weight"]
    tied = by_numpy.made_by(rules.recipe(f"megatron-{kind}-tied{ending}"), tree, sizes)
    assert {n: a.tobytes() for n, a in tied.items()} == {n: a.tobytes() for n, a in made.items()}
    if ending:
        stacked = rules.recipe(f"megatron-{kind}-tied")
        tree = source(saved, "qwen3" if kind == "qwen3" else "llama")
        del tree["output_layer.weight"]
        other = by_numpy.made_by(stacked, tree, sizes)
        assert {n: a.tobytes() for n, a in other.items()} == {n: a.tobytes() for n, a in made.items()}  # fmt: skip


def unstacked(tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for name, array in tree.items():
        if name.startswith("decoder.layers."):
            found |= {name.replace("layers.", f"layers.{n}."): one for n, one in enumerate(array)}
        else:
            found[name] = array
    return found


@pytest.mark.parametrize("recipe", ["megatron-llama3", "megatron-mixtral"])
@pytest.mark.parametrize("sizes", [{"g": 4}, {"g": 1}, {"d": 3}, {"d": 12}])
def test_other_numbers_of_heads_are_refused(
    saved: Path, recipe: str, sizes: dict[str, int]
) -> None:
    tree = source(saved, "mixtral" if "mixtral" in recipe else "llama")
    with pytest.raises(PlanError, match=r"axis 2 of '.*linear_proj\.weight' is 24, but \(g r d\)"):
        by_numpy.mapped(recipe, tree, {**sizes_of(recipe), **sizes})


def test_without_the_vocabulary_the_error_asks_for_it(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(saved / "0.16.1/llama"), str(tmp_path / "x.safetensors"), "--map", "megatron-llama3", "--select", MODEL[0]]  # fmt: skip
    assert run(["convert", *given, "--size", "g=2", "--size", "d=6"]) == 1
    assert "the size 'vocab' is not known; give it (--size)" in capsys.readouterr().err
    sized = ["--size", "g=2", "--size", "d=6", "--size", f"vocab={VOCAB}"]
    assert run(["plan", *given, *sized]) == 0
    shown = capsys.readouterr().out
    assert (
        "takes only a part of 'embedding.word_embeddings.weight', 'output_layer.weight' (crop)"
        in " ".join(shown.split())
    )
    assert run(["convert", *given, *sized]) == 0
    assert load_file(tmp_path / "x.safetensors")["lm_head.weight"].shape == (VOCAB, 16)
