"""Maps of common models are learned from scripts, and then make what the scripts make, of other sizes too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from reshard.maps.example.infer import Example, infer, made_by
from reshard.maps.example.probes import make_probes
from tests.maps.example.learning import Tree, learned, zeros

Array = npt.NDArray[Any]


def rope(x: Array) -> Array:
    """Pairs of neighbours become halves; the kernel is turned."""
    e, h, d = x.shape
    return x.reshape(e, h, d // 2, 2).transpose(1, 3, 2, 0).reshape(h * d, e)


def scaled(x: Array, factor: float) -> Array:
    return (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)


def llama_source(dtype: Any, e: int, n: int, h: int, k: int, p: int, f: int, v: int) -> Tree:
    return zeros(
        {
            "params/embed": (v, e),
            "params/norm": (e,),
            "params/layers/q": (e, n, h, 2 * p),
            "params/layers/k": (e, n, k, 2 * p),
            "params/layers/v": (e, n, k, 2 * p),
            "params/layers/o": (h, n, 2 * p, e),
            "params/layers/wi": (e, n, f),
            "params/layers/wo": (f, n, e),
            "params/layers/scale": (e, n),
            "opt_state/0/mu": (v, e),
        },
        dtype,
    )


def llama(s: Tree) -> dict[str, Array]:
    made = {
        "model.embed_tokens.weight": s["params/embed"],
        "model.norm.weight": s["params/norm"],
        "lm_head.weight": s["params/embed"],
    }
    for n in range(s["params/layers/q"].shape[1]):
        q, k, v, o = (s[f"params/layers/{x}"][:, n] for x in "qkvo")
        made |= {
            f"model.layers.{n}.q": scaled(rope(q), np.sqrt(q.shape[-1])),
            f"model.layers.{n}.k": rope(k),
            f"model.layers.{n}.v": v.reshape(len(v), -1).T,
            f"model.layers.{n}.o": o.reshape(-1, o.shape[-1]).T,
            f"model.layers.{n}.gate": s["params/layers/wi"][:, n].T,
            f"model.layers.{n}.down": s["params/layers/wo"][:, n].T,
            f"model.layers.{n}.norm": s["params/layers/scale"][:, n],
        }
    return made


def mixtral(s: Tree) -> dict[str, Array]:
    """Hugging Face → stacked experts and layers."""
    layers, experts = 3, 4
    return {
        "params/wi": np.stack(
            [
                np.stack([s[f"layers.{n}.experts.{x}.w1"].T for n in range(layers)])
                for x in range(experts)
            ]
        ),
        "params/gate": np.stack([s[f"layers.{n}.gate"].T for n in range(layers)], axis=1),
    }


def flat_qkv(s: Tree) -> dict[str, Array]:
    return {f"{n}.qkv": np.concatenate([s[f"{n}.{x}"] for x in "qkv"]) for n in range(3)}


def grouped_qkv(s: Tree) -> dict[str, Array]:
    def groups(name: str) -> Array:
        array = s[name]
        return array.reshape(2, -1, array.shape[-1])

    return {
        f"{n}.qkv": np.concatenate([groups(f"{n}.{x}") for x in "qkv"], axis=1).reshape(
            -1, s["0.q"].shape[-1]
        )
        for n in range(3)
    }


def cut_qkv(s: Tree) -> dict[str, Array]:
    made = {}
    for n in range(3):
        q, k, v = np.split(s[f"h.{n}.qkv"], [12, 16])
        made |= {f"{n}.q": q, f"{n}.k": k, f"{n}.v": v}
    return made


def gpt2(s: Tree) -> dict[str, Array]:
    """Conv1D: kernels lie turned, and q, k and v are columns of one."""
    made = {"wte": s["transformer.wte.weight"]}
    for n in range(3):
        q, k, v = np.split(s[f"transformer.h.{n}.attn.c_attn.weight"], 3, axis=1)
        made |= {f"layers_{n}/q": q.T, f"layers_{n}/k": k.T, f"layers_{n}/v": v.T}
        made[f"layers_{n}/up"] = s[f"transformer.h.{n}.mlp.c_fc.weight"].T
    return made


def paligemma(s: Tree) -> dict[str, Array]:
    return {f"layers.{n}.norm": s["norm"][n] + np.float32(1) for n in range(4)}


def gemma2(s: Tree) -> dict[str, Array]:
    """Local and global layers take turns."""
    made = {}
    for n in range(4):
        made[f"layers.{2 * n}.w"] = s["local"][n].T
        made[f"layers.{2 * n + 1}.w"] = s["global"][n].T
    return made


def gemma3(s: Tree) -> dict[str, Array]:
    """Five local layers and a global one, in blocks."""
    return {f"layers.{6 * b + i}.w": s[f"layers_{i}/w"][b] for b in range(3) for i in range(6)}


def deepseek(s: Tree) -> dict[str, Array]:
    """The first layers are dense, the others have experts."""
    made = {}
    for n in range(3):
        made[f"layers.{n}.mlp.weight"] = s["dense"][:, n].T
    for n in range(4):
        for x in range(5):
            made[f"layers.{n + 3}.mlp.experts.{x}.weight"] = s["moe"][x, n].T
    return made


def padded(s: Tree) -> dict[str, Array]:
    return {"embed": np.concatenate([s["embed"], np.zeros((5, 6), s["embed"].dtype)])}


def cropped(s: Tree) -> dict[str, Array]:
    return {"embed": s["embed"][:9]}


def repeated(s: Tree) -> dict[str, Array]:
    return {"kv": np.repeat(s["kv"].reshape(3, 4, 7), 2, axis=0).reshape(-1, 7)}


def constant(s: Tree) -> dict[str, Array]:
    return {"w": s["w"].T, "bias": np.zeros(5, np.float32), "one": np.ones((2, 3), np.float32)}


EXPERTS = {f"layers.{n}.experts.{x}.w1": (5, 6) for n in range(3) for x in range(4)}
FAMILIES: dict[str, tuple[Tree, Callable[[Tree], dict[str, Array]]]] = {
    "mixtral": (zeros({**EXPERTS, **{f"layers.{n}.gate": (4, 6) for n in range(3)}}), mixtral),
    "flat": (
        zeros({f"{n}.{x}": (r, 7) for n in range(3) for x, r in (("q", 12), ("k", 4), ("v", 4))}),
        flat_qkv,
    ),
    "grouped": (
        zeros({f"{n}.{x}": (r, 7) for n in range(3) for x, r in (("q", 12), ("k", 4), ("v", 4))}),
        grouped_qkv,
    ),
    "cut": (zeros({f"h.{n}.qkv": (20, 7) for n in range(3)}), cut_qkv),
    "gpt2": (
        zeros(
            {
                "transformer.wte.weight": (11, 6),
                **{f"transformer.h.{n}.attn.c_attn.weight": (6, 18) for n in range(3)},
                **{f"transformer.h.{n}.mlp.c_fc.weight": (6, 24) for n in range(3)},
            }
        ),
        gpt2,
    ),
    "paligemma": (zeros({"norm": (4, 9)}), paligemma),
    "gemma2": (zeros({"local": (4, 5, 7), "global": (4, 5, 7)}), gemma2),
    "gemma3": (zeros({f"layers_{i}/w": (3, 5) for i in range(6)}), gemma3),
    "deepseek": (zeros({"dense": (6, 3, 7), "moe": (5, 4, 8, 9)}), deepseek),
    "padded": (zeros({"embed": (11, 6)}), padded),
    "cropped": (zeros({"embed": (11, 6)}), cropped),
    "repeated": (zeros({"kv": (12, 7)}), repeated),
    "constant": (zeros({"w": (4, 5)}), constant),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_learned_and_proved(name: str) -> None:
    source, script = FAMILIES[name]
    found = learned(source, script)
    assert found.problems == (), found.text
    assert_makes(found.text, found.asked, source, script)


def assert_makes(
    text: str, asked: Any, source: Tree, script: Callable[[Tree], dict[str, Array]]
) -> None:
    random = np.random.default_rng(3)
    values = {
        name: random.standard_normal(a.shape).astype(a.dtype)
        if a.dtype.kind not in "iu"
        else random.integers(0, 99, a.shape).astype(a.dtype)
        for name, a in source.items()
    }
    made, wanted = made_by(text, values, asked), script(values)
    assert made.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(
            made[name].view("u1"), np.ascontiguousarray(array).view("u1"), err_msg=name
        )


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_llama_is_learned_from_two_tiny_ones_and_makes_a_third(dtype: Any) -> None:
    sources = [
        llama_source(dtype, e=10, n=3, h=4, k=2, p=3, f=14, v=17),
        llama_source(dtype, e=12, n=4, h=6, k=3, p=5, f=16, v=19),
    ]
    found = learned(sources[0], llama, *sources[1:])
    assert found.problems == ()
    assert found.asked == {}
    assert "drop: ['^opt_state/[0-9]+/mu$']" in found.text
    assert "same_as" in found.text
    assert "multiply" in found.text
    third = llama_source(dtype, e=8, n=5, h=8, k=4, p=2, f=20, v=30)
    assert_makes(found.text, {}, third, llama)


def test_one_example_leaves_sizes_open_and_says_so() -> None:
    found = learned(llama_source(np.float32, e=10, n=3, h=4, k=2, p=3, f=14, v=17), llama)
    assert found.problems == ()
    (name,) = found.asked
    assert found.asked[name] == 2
    assert f"give --size {name}=N: no shape tells it; it was 2 in the example" in found.questions
    assert f"# give --size {name}=N" in found.text


def test_sizes_of_a_config_give_their_names() -> None:
    found = learned(
        llama_source(np.float32, e=10, n=3, h=4, k=2, p=3, f=14, v=17),
        llama,
        hidden=10,
        layers=3,
        vocab=17,
    )
    assert "'vocab hidden -> vocab hidden'" in found.text
    assert "model.layers.{layers}.norm" in found.text


def test_back_from_hugging_face() -> None:
    def back(s: Tree) -> dict[str, Array]:
        return {
            "params/wi": np.stack([s[f"layers.{n}.up"].T for n in range(3)], axis=1),
            "params/q": np.stack(
                [
                    scaled(
                        s[f"layers.{n}.q"]
                        .reshape(4, 2, 3, 10)
                        .transpose(3, 0, 2, 1)
                        .reshape(10, 4, 6),
                        1 / np.sqrt(6),
                    )
                    for n in range(3)
                ],
                axis=1,
            ),
        }

    source = zeros(
        {f"layers.{n}.{x}": (r, 10) for n in range(3) for x, r in (("up", 14), ("q", 24))}
    )
    found = learned(source, back)
    assert found.problems == ()
    assert_makes(found.text, found.asked, source, back)


REFUSALS: dict[str, tuple[Callable[[Tree], dict[str, Array]], str]] = {
    "sum": (lambda s: {"t": s["a"] + s["b"]}, "equal no single source element"),
    "mean": (
        lambda s: {"t": s["a"].mean(axis=0)},
        "equal no single source element|a mean",
    ),
    "product": (lambda s: {"t": s["a"] * s["b"]}, "equal no single source element|a product"),
    "square": (lambda s: {"t": s["a"] * s["a"]}, "equal no single source element|a product"),
    "flip": (lambda s: {"t": s["a"][::-1]}, "an axis runs backwards"),
    "permutation": (
        lambda s: {"t": s["a"][np.array([3, 0, 5, 1, 4, 2])]},
        "brackets|does not|reshape|backwards|several",
    ),
    "two factors": (
        lambda s: {"t": np.concatenate([s["a"] * np.float32(2), s["b"] * np.float32(3)])},
        "several factors",
    ),
    "table": (
        lambda s: {"t": np.arange(6, dtype=np.float32) + np.zeros_like(s["a"])},
        "do not depend on the source",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_no_rule_says_is_named(name: str) -> None:
    script, why = REFUSALS[name]
    found = learned(zeros({"a": (6, 6), "b": (6, 6)}), script)
    assert any(re.search(why, problem) for problem in found.problems), found


def test_quantisation_is_no_factor() -> None:
    def quantised(s: Tree) -> dict[str, Array]:
        scale = np.abs(s["a"]).max() / 7
        return {"t": np.round(s["a"] / scale).astype(np.int8)}

    assert learned(zeros({"a": (6, 8)}), quantised).problems


def test_what_the_proof_finds_is_a_problem() -> None:
    """An element that is almost right: the digits of probes say nothing of it."""
    probes = make_probes(zeros({"a": (4, 5)}))
    made = [{"t": np.ascontiguousarray(probe["a"].T)} for probe in probes]
    made[-1]["t"][0, 0] += made[-1]["t"][0, 0] * np.float32(2**-22)
    assert infer([Example(probes, made)]).problems


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_integers_without_a_sign_are_probed(dtype: str) -> None:
    """An NNX optimizer counts its steps in uint32."""
    found = learned(zeros({"ids": (7, 11)}, dtype), lambda s: {"turned": s["ids"].T})
    assert found.problems == ()
    assert "- {from: ids, to: turned, shape: 'a b -> b a'}" in found.text
