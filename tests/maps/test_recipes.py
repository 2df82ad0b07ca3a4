"""Recipes are what MaxText's own hooks make of what MaxText stores."""

from __future__ import annotations

import json
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
from tests.maps.forward import llama
from tests.maps.maxtext_pairs import DENSE, HEAD, LAYERS, SHAPES, VOCAB, VOCAB_WITH_IMAGES, pairs
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
