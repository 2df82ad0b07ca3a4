"""Recipes are what MaxText's own hooks make of what MaxText stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from safetensors.numpy import load_file

import reshard
from reshard import rules
from reshard.cli.app import run
from reshard.errors import PlanError
from reshard.maps.example.infer import Example, infer, made_by
from tests.maps import by_numpy, maxtext_models
from tests.maps.configs import CONFIGS
from tests.maps.forward import llama
from tests.maps.maxtext_pairs import (
    DENSE,
    HEAD,
    HEADS,
    LAYERS,
    SHAPES,
    VOCAB,
    VOCAB_WITH_IMAGES,
    WORDS,
    pairs,
    source,
)
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
    **{name: {"dense": DENSE} for name in SHAPES if name.startswith("maxtext-deepseek-v3")},
}


NAMES = json.loads(maxtext_models.FILE.read_text())["shapes"]
VLLM = {f"vllm-{model}" for model in ("llama3", "llama3-tied", "qwen3", "qwen3-tied")}

MEGATRON = {
    f"megatron-{model}{ending}"
    for model in ("llama3", "llama3-tied", "qwen3", "qwen3-tied", "mixtral")
    for ending in ("", "-unstacked")
}
PROGRAMS = {"maxtext": "MaxText 0.2.5", "vllm": "vLLM 0.33.0", "megatron": "Megatron Core 0.16.1"}


def test_each_is_here() -> None:
    assert set(rules.recipes()) == set(SHAPES) | VLLM | MEGATRON
    for name, about in rules.recipes().items():
        assert PROGRAMS[name.partition("-")[0]] in about


def test_what_a_variant_replaces_is_in_its_file() -> None:
    for file in Path(reshard.__file__).parent.joinpath("recipes").iterdir():
        text, _, choices = file.read_text().partition("\nvariants:\n")
        for choice in yaml.safe_load(choices) or ():
            for name, changes in choice.items():
                lost = [old for old, _ in changes if old not in f"{text}\n"]
                assert lost == [], (file.name, name)


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


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"maxtext-gemma3-rest"}))
def test_backwards_it_makes_the_training_tree(name: str) -> None:
    probes, made = pairs(name)
    sizes = {**SIZES.get(name, {}), **({"h": HEADS} if "deepseek" in name else {"d": HEAD})}
    sizes |= {"p": HEAD // 2} if "llama" in name else {"v": WORDS} if "gemma" in name else {}
    found = by_numpy.made_by(name, made[-1], sizes, reverse=True)
    assert found.keys() == probes[-1].keys()
    wanted = dict(probes[-1])
    if "gemma2" in name:  # padding comes back as 0
        rows = np.arange(WORDS)[:, None] < VOCAB
        wanted[EMBEDDING] = np.where(rows, wanted[EMBEDDING], 0)
    within = 1e-7 if is_rounded(name) else 0
    for tensor, array in wanted.items():
        np.testing.assert_allclose(found[tensor], array, within, within, err_msg=tensor)


def is_rounded(recipe: str) -> bool:
    return any(f"{key}: " in rules.recipe(recipe) for key in ("multiply", "divide", "add"))


EMBEDDING = "params/params/token_embedder/embedding"
HOMES = ("", "-nnx-aux", "-moe-bias-var")


@pytest.mark.parametrize("ending", ["", "-unscanned"])
@pytest.mark.parametrize("taken", HOMES)
@pytest.mark.parametrize("stored", HOMES)
def test_router_biases_are_taken_where_they_are_or_refused(
    stored: str, taken: str, ending: str
) -> None:
    tree = source(f"maxtext-deepseek-v3{stored}{ending}")
    recipe = f"maxtext-deepseek-v3{taken}{ending}"
    if stored == taken:
        by_numpy.mapped(recipe, tree, {"dense": DENSE})
        return
    others = f"take maxtext-deepseek-v3-nnx-aux{ending} or maxtext-deepseek-v3-moe-bias-var{ending}"
    said = "matches none of the .* tensors" if taken else others
    with pytest.raises(PlanError, match=said):
        by_numpy.mapped(recipe, tree, {"dense": DENSE})


def test_layers_beyond_whole_blocks_cannot_be_told_backwards() -> None:
    name = "maxtext-gemma3-rest"
    made = by_numpy.made_by(name, source(name), SIZES[name])
    sizes = {**SIZES[name], "d": HEAD, "v": WORDS}
    with pytest.raises(PlanError, match=r"stands for .* tensors, but none for"):
        by_numpy.mapped(name, made, sizes, reverse=True)


@pytest.mark.xdist_group("torch")
def test_transformers_saves_the_tensors_that_it_makes(torch: Oracle, tmp_path: Path) -> None:
    torch.ask("save_described", configs=CONFIGS, folder=str(tmp_path))
    for name in CONFIGS:
        saved = load_file(tmp_path / name / "model.safetensors")
        made = pairs(name)[1][0]
        assert {n: a.shape for n, a in saved.items()} == {n: a.shape for n, a in made.items()}


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
    assert [one["name"] for one in found["recipes"]] == sorted([*SHAPES, *VLLM, *MEGATRON])
    assert run(["recipes", "maxtext-llama"]) == 1
    assert (
        "there is no recipe 'maxtext-llama'; did you mean maxtext-llama3.1?"
        in capsys.readouterr().err
    )
