"""Maps that are read off pairs of real checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import reshard
from reshard import rules
from reshard.cli.app import run
from reshard.maps.example.infer import Example, infer
from tests.maps.by_numpy import made_by

Array = npt.NDArray[Any]
Tree = dict[str, Array]
DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16]
SIZES = (
    {"L": 3, "e": 48, "h": 6, "k": 2, "d": 16, "f": 80, "v": 130},
    {"L": 4, "e": 56, "h": 6, "k": 3, "d": 24, "f": 96, "v": 140},
)


def source(sizes: Mapping[str, int], dtype: Any, seed: int = 0) -> Tree:
    """A scanned model whose values differ everywhere."""
    random, (layers, e, h, k, d, f, v) = np.random.default_rng(seed), sizes.values()
    shapes = {
        "embed": (v, e), "query": (e, layers, h, d), "key": (e, layers, k, d), "bias": (layers, k, d), "out": (h, layers, d, e),
        "gate": (e, layers, f), "up": (e, layers, f), "norm": (e, layers), "unused": (3, 50),
    }  # fmt: skip
    return {
        name: (random.standard_normal(shape) * 0.1).astype(dtype) for name, shape in shapes.items()
    }


def halves(kernel: Array) -> Array:
    e, h, d = kernel.shape
    return kernel.reshape(e, h, d // 2, 2).transpose(1, 3, 2, 0).reshape(h * d, e)


def served(tree: Tree, padded: int = 256) -> Tree:
    """What a script makes of it."""
    made = {"embed": np.pad(tree["embed"], ((0, padded - len(tree["embed"])), (0, 0)))}
    dtype = tree["query"].dtype
    for n in range(tree["norm"].shape[1]):
        at = {name: array[:, n] for name, array in tree.items() if name not in ("bias", "unused")}
        scaled = halves(at["query"]).astype(np.float32) * np.float32(np.sqrt(at["query"].shape[-1]))
        made[f"{n}.q"] = scaled.astype(dtype)
        made[f"{n}.k"] = halves(at["key"])
        made[f"{n}.k_bias"] = tree["bias"][n].ravel()
        made[f"{n}.o"] = at["out"].reshape(-1, at["out"].shape[-1]).T
        made[f"{n}.gate_up"] = np.concatenate([at["gate"].T, at["up"].T])
        made[f"{n}.norm"] = (at["norm"].astype(np.float32) + 1).astype(dtype)
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def pair(sizes: Mapping[str, int], dtype: Any) -> Example:
    tree = source(sizes, dtype)
    return Example([tree], [served(tree)], sizes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_pairs_tell_the_map_of_a_third(dtype: Any) -> None:
    found = infer([pair(sizes, dtype) for sizes in SIZES])
    assert found.problems == ()
    assert "multiply: 'sqrt(a*two)'" in found.text
    other = source({"L": 2, "e": 40, "h": 4, "k": 2, "d": 8, "f": 72, "v": 100}, dtype, seed=5)
    used = {name: array for name, array in other.items() if name != "unused"}
    made = made_by(found.text, used, dict.fromkeys(found.asked, 192))
    for name, array in served(other, 192).items():
        np.testing.assert_array_equal(made[name].view(np.uint8), array.view(np.uint8), err_msg=name)


def test_one_pair_asks_and_does_not_take_the_name_of_another_dimension() -> None:
    """Two KV heads, and two elements of a pair: ``k`` names the first."""
    found = infer([pair(SIZES[0], np.float32)])
    assert found.problems == ()
    (line,) = (line for line in found.text.splitlines() if "{L}.k'" in line)
    assert "'e L k (a size_0) -> (k size_0 a) e'" in line
    assert found.asked["size_0"] == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_alike_is_not_guessed(dtype: Any) -> None:
    """Norms that are still all ones, a tensor that the source has twice, and rows of zeros on both sides."""
    one = source(SIZES[0], dtype)
    zeros = np.concatenate([one["embed"], np.zeros((6, 48), dtype)])
    tree = {
        "a": np.ones(48, dtype), "b": np.ones(48, dtype), "c": one["gate"][:, 0], "d": one["gate"][:, 0], "e": zeros, "f": one["up"][:, 0]
    }  # fmt: skip
    made = {"x": tree["a"], "y": tree["c"].T, "z": tree["e"].T, "f": tree["f"]}
    found = infer([Example([tree], [{n: np.ascontiguousarray(a) for n, a in made.items()}])])
    several = "several places of the source hold 48 of its 48 elements; take a pair whose values differ, or probe a tiny model"
    assert f"x is not explained: {several}" in found.problems
    assert any(
        problem.startswith("y is not explained: several places") for problem in found.problems
    )
    # The columns of the embedding tell what its rows of zeros do not.
    assert "{from: e, to: z, shape: 'c a -> a c'}" in found.text
    assert "to: f" in found.text


def test_what_no_rule_says_is_named() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((16, 24), (24, 16)))
    for y in (a @ b, a + b.T, np.round(a * 20) / 20, a * np.float32(1.7), a[:, ::-1] * -1):
        found = infer([Example([{"a": a, "b": b}], [{"y": np.ascontiguousarray(y)}])])
        assert found.problems
        assert "map: []" in found.text


def random_pair(seed: int) -> Example:
    """Axes of one source are split, turned, merged, cut and unstacked at random."""
    random = np.random.default_rng(seed)
    sizes = [int(n) for n in random.permutation([2, 3, 5, 8, 9, 11, 13])[: random.integers(2, 5)]]
    dtype = DTYPES[int(random.integers(3))]
    w = random.standard_normal(sizes).astype(dtype)
    other = random.standard_normal((17, 9)).astype(dtype)
    turned = w.transpose(random.permutation(w.ndim))
    cut = int(random.integers(1, turned.ndim + 1))
    merged = turned.reshape(int(np.prod(turned.shape[:cut])), -1)
    made = {f"m.{n}": part for n, part in enumerate(merged)} if seed % 3 == 0 else {"m": merged}
    made["other"] = other.T
    targets = {name: np.ascontiguousarray(array) for name, array in made.items()}
    return Example([{"w": w, "other": other}], [targets])


def test_random_maps_are_right_or_refused() -> None:
    learned = 0
    for seed in range(30):
        example = random_pair(seed)
        found = infer([example])
        if found.problems:
            continue
        learned += 1
        again = made_by(found.text, example.sources[0], found.asked)
        assert again.keys() == example.targets[0].keys()
        for name, array in example.targets[0].items():
            np.testing.assert_array_equal(again[name].view(np.uint8), array.view(np.uint8))
    assert learned == 22  # in the others lines are short, or one value wide


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = source(SIZES[0], np.float32)
    reshard.save(tmp_path / "trained", tree)
    reshard.save(tmp_path / "served", served(tree))
    words = ["rules", "infer", "--pair", str(tmp_path / "trained"), str(tmp_path / "served")]
    (tmp_path / "config.json").write_text(json.dumps(SIZES[0]))
    assert run([*words, "--config", str(tmp_path / "config.json")]) == 0
    said = capsys.readouterr()
    (tmp_path / "map.yaml").write_text(said.out)
    assert "give --size size_0=N: no shape tells it; it was 2 in the example" in said.err
    sizes = {"size_0": 2, "k": 2, "pad_2": 256}
    report = reshard.verify(
        tmp_path / "trained", tmp_path / "served", map=tmp_path / "map.yaml", sizes=sizes
    )
    assert report.differences == 0
    alike = dict.fromkeys(("a", "b"), np.ones(9, np.float32))
    reshard.save(tmp_path / "alike", alike)
    reshard.save(tmp_path / "made", {"c": alike["a"]})
    assert run([*words[:3], str(tmp_path / "alike"), str(tmp_path / "made")]) == 3
    assert "not explained: c is not explained: several places" in capsys.readouterr().err


def test_too_large_a_pair_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.rules.probe_files.MOST_OF_A_PAIR", 99)
    reshard.save(tmp_path / "a", {"w": np.ones(100)})
    with pytest.raises(reshard.PlanError) as caught:
        rules.infer(tmp_path / "a", tmp_path / "a", pair=True)
    assert str(caught.value).endswith(
        "a' has 100 elements, and examples are of pairs of checkpoints with at most 99; make one with fewer layers and smaller sizes"
    )
