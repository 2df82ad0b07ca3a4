"""Merges of checkpoints in any formats, meshes and maps have the bits that numpy's float64 gives, rounded once."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.numpy import save_file

import reshard
from reshard.arithmetic.merge import Merge
from reshard.arithmetic.rounding import round_into
from reshard.checkpoint import OpenedCheckpoint
from reshard.errors import NotACheckpointError, PlanError, TargetExistsError, VerificationError
from reshard.formats.registry import CheckpointPath
from tests.campaigns import examples
from tests.maps.by_numpy import assert_same_arrays
from tests.maps.random_rules import RandomRule, rules
from tests.orbax_trees import save_standard

Tree = dict[str, Any]

FORMS: Sequence[Mapping[str, Any]] = (
    {"to": "orbax", "compression": "zstd"},
    {"to": "orbax"},
    {"to": "safetensors", "files": "dcp"},
    {"to": "safetensors"},
    {"to": "dcp"},
)
AXES = st.permutations(["x", "y", None]).map(lambda axes: tuple(axes[:2]))


def tree(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=(12, 18)) * 10.0 ** rng.integers(-6, 4, (12, 18))
    return {
        "half": wide.astype(ml_dtypes.bfloat16),
        "low": rng.normal(size=(6, 6)).astype(ml_dtypes.float8_e4m3fn),
        "single": wide.astype(np.float32),
        "short": wide.astype(np.float16),
        "one": np.float32(rng.normal()),
        "ids": np.arange(7),
    }


def stored(
    path: Path, arrays: Tree, form: Mapping[str, Any] = FORMS[3], cuts: Any = (None, None)
) -> Path:
    layout = {
        "mesh": {"axes": ["x", "y"], "shape": [2, 3]},
        "rules": [{"match": "half|single|low", "axes": list(cuts)}],
        "unmatched": "replicate",
    }
    plain = path.with_name(f"{path.name}-plain")
    reshard.save(plain, arrays)
    reshard.convert(plain, path, layout=layout, **form)
    return path


def average(arrays: Sequence[Any], weights: Sequence[float], divisor: float, dtype: Any) -> Any:
    terms = [np.asarray(a, np.float64) * w for w, a in zip(weights, arrays, strict=True)]
    total = reduce(np.add, terms)
    out = np.empty(total.shape, dtype)
    round_into(out, np.asarray(total / divisor))
    return out


def assert_bits(found: Any, wanted: Any, where: str = "") -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
    assert found.tobytes() == wanted.tobytes(), where


def opened(asked: Mapping[str, Any]) -> Tree:
    """A merge, restored without a target."""
    made = Merge.asked(asked)
    chosen = replace(CheckpointPath.at(made.sources[0].path), computed=(made,))
    found: Tree = OpenedCheckpoint(chosen).restore()
    return found


@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(st.sampled_from(FORMS), AXES, st.integers(-8, 9)), min_size=1, max_size=3
    ).filter(lambda each: sum(w for *_, w in each) != 0),
    st.sampled_from(FORMS),
    st.sampled_from([100, 1 << 18]),
)
def test_any_formats_meshes_and_weights(
    each: list[tuple[Any, Any, int]], target: Any, most: int
) -> None:
    trees = [tree(seed) for seed in range(len(each))]
    weights = [weight / 7 for *_, weight in each]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        folder = Path(name)
        patched.setattr("reshard.arithmetic.average.AverageFormula.window_elements", most)
        patched.setattr("reshard.formats.computed.tensors.CHUNK_BYTES", 128)
        paths = [
            stored(folder / str(n), t, form, cuts)
            for n, (t, (form, cuts, _)) in enumerate(zip(trees, each, strict=True))
        ]
        reshard.merge(paths, folder / "out", weights=weights, **target)
        order = np.random.default_rng(0).permutation(len(each))
        turned = opened(
            {"sources": [paths[i] for i in order], "weights": [weights[i] for i in order]}
        )
        found = reshard.restore(folder / "out")
    for name, first in trees[0].items():
        # The sums are made in the order of the paths. One checkpoint stays as it is, bit by bit.
        is_made = name != "ids" and len(each) > 1
        arrays = [t[name] for t in trees]
        wanted = average(arrays, weights, math.fsum(weights), first.dtype) if is_made else first
        assert_bits(found[name], wanted, name)
        assert_bits(turned[name], wanted, name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tree]]:
    """The folder of a run with five steps, and what they hold."""
    folder = tmp_path_factory.mktemp("run")
    trees = [tree(seed) for seed in range(5)]
    for number, each in enumerate(trees):
        stored(folder / f"step_{number * 100}", each)
    for plain in folder.glob("*-plain"):
        plain.rename(folder.parent / plain.name)
    return folder, trees


def test_steps_by_range_and_the_last_of_a_run(run: tuple[Path, list[Tree]]) -> None:
    folder, trees = run
    for asked, some in (
        ({"sources": [f"{folder}/{{100..400..100}}"]}, trees[1:]),
        ({"sources": [f"{folder}/step_{{200..0..200}}"]}, [trees[2], trees[0]]),
        ({"sources": [folder], "last": 3}, trees[2:]),
    ):
        weights = [1.0] * len(some)
        found = opened(asked)
        for name in ("half", "low", "single"):
            wanted = average([t[name] for t in some], weights, len(some), trees[0][name].dtype)
            assert_bits(found[name], wanted, name)


def test_schedules_and_moving_averages(run: tuple[Path, list[Tree]]) -> None:
    folder, trees = run
    c = [0.125, 0.125, 0.25, 0.5]  # of a decay of 1/2, oldest first
    found = opened({"sources": [folder], "last": 4, "ema": 0.5})
    assert_bits(found["single"], average([t["single"] for t in trees[1:]], c, 1, np.float32))
    s = [1.0, 1 - np.sqrt(0.25), 1 - np.sqrt(0.5), 1 - np.sqrt(0.75)]
    c = [1 - s[1], s[1] - s[2], s[2] - s[3], s[3]]
    found = opened({"sources": [folder], "last": 4, "weights": "minus-sqrt"})
    wanted = average([t["half"] for t in trees[1:]], c, 1, ml_dtypes.bfloat16)
    assert_bits(found["half"], wanted)


def test_task_arithmetic(run: tuple[Path, list[Tree]], tmp_path: Path) -> None:
    folder, trees = run
    base = np.asarray(trees[0]["single"], np.float64)
    changes = [np.asarray(t["single"], np.float64) - base for t in trees[1:3]]
    asked = {
        "sources": [folder / "step_100", folder / "step_200"],
        "base": folder / "step_0",
        "scale": 0.3,
    }
    wanted = (base + 0.3 * (changes[0] + 0.5 * changes[1])).astype(np.float32)
    assert_bits(opened({**asked, "weights": [1, 0.5]})["single"], wanted)
    assert_bits(
        opened(asked)["single"], (base + 0.3 * (changes[0] + changes[1])).astype(np.float32)
    )
    report = reshard.merge(**asked, target=tmp_path / "out")  # type: ignore[arg-type] # a dict
    assert (
        report.merged == "averaged 5 tensors of 2 checkpoints, each with the weight 0.3; copied 1"
    )


def test_the_order_of_checkpoints_changes_no_bit(run: tuple[Path, list[Tree]]) -> None:
    """Sums of numbers of many sizes, which have other last digits in another order of addition."""
    folder, trees = run
    paths, weights = [folder / f"step_{n * 100}" for n in range(5)], [0.1, 0.2, 0.3, 0.7, 1.1]
    wide = [each["half"].astype(np.float64) * w for each, w in zip(trees, weights, strict=True)]
    assert reduce(np.add, wide).tobytes() != reduce(np.add, wide[::-1]).tobytes()
    found = [
        opened({"sources": paths[::way], "weights": weights[::way], "dtype": "float64"})
        for way in (1, -1)
    ]
    for name, array in found[0].items():
        assert_bits(found[1][name], array, name)


def test_a_change_of_any_checkpoint_makes_another_merge(tmp_path: Path) -> None:
    paths = [saved_numbers(tmp_path / name, {"w": np.ones(4, np.float32)}) for name in "ab"]
    reshard.merge(paths, tmp_path / "out")
    assert reshard.merge(paths, tmp_path / "out").already_done
    save_file({"w": np.full(4, 3, np.float32)}, paths[1] / "model.safetensors")
    with pytest.raises(TargetExistsError):
        reshard.merge(paths, tmp_path / "out")
    reshard.merge(paths, tmp_path / "out", overwrite=True)
    assert reshard.restore(tmp_path / "out")["w"][0] == 2


def test_parts_on_any_number_of_hosts(run: tuple[Path, list[Tree]], tmp_path: Path) -> None:
    folder, _ = run
    for parts in (None, 2, 5):
        with ThreadPoolExecutor(2) as executor:
            ways = {} if parts is None else {"executor": executor, "parts": parts}
            reshard.merge([folder], tmp_path / f"{parts}", last=3, weights="minus-sqrt", **ways)
    alone = reshard.restore(tmp_path / "None")
    for parts in (2, 5):
        found = reshard.restore(tmp_path / f"{parts}")
        for name, array in alone.items():
            assert_bits(found[name], array, name)


def test_verify_says_that_checkpoints_were_merged(
    run: tuple[Path, list[Tree]], tmp_path: Path
) -> None:
    """It reads none of those that the record names."""
    folder, _ = run
    paths = [folder / "step_0", folder / "step_300"]
    reshard.merge(paths, tmp_path / "out", cast={"^one$": "bfloat16"})
    found = reshard.verify(paths[0], tmp_path / "out")
    assert not found.equal
    assert (
        f"{str(tmp_path / 'out')!r} records that it was merged of several checkpoints; merge them again, and compare the results"
        in found.warnings
    )
    assert reshard.verify(tmp_path / "out").equal


def test_other_dtypes_beside_one_another(tmp_path: Path) -> None:
    one, other = tree(0), tree(1)
    paths = [stored(tmp_path / "a", one), stored(tmp_path / "b", {**other, "half": other["single"]})]  # fmt: skip
    pair = [one["half"], other["single"]]
    assert_bits(opened({"sources": paths})["half"], average(pair, [1, 1], 2, ml_dtypes.bfloat16))
    whole = opened({"sources": paths, "dtype": "float32"})
    assert_bits(whole["half"], average(pair, [1, 1], 2, np.float32))
    assert whole["low"].dtype == np.float32
    alone = opened({"sources": paths[:1], "dtype": "bfloat16"})
    assert_bits(alone["single"], one["single"].astype(ml_dtypes.bfloat16))


def saved_numbers(folder: Path, arrays: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, folder / "model.safetensors")
    return folder


@settings(max_examples=examples(60))
@given(rules(), st.sampled_from([7, 1 << 16]), st.booleans())
def test_a_map_of_a_source_makes_what_it_makes_in_a_conversion(
    one: RandomRule, most: int, is_compressed: bool
) -> None:
    given_map = {"map": [one.rule], "sizes": dict(one.given)}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr("reshard.formats.computed.formula.Formula.window_elements", most)
        patched.setattr("reshard.formats.computed.tensors.CHUNK_BYTES", 64)
        path = saved_numbers(Path(name) / "a", one.sources)
        if is_compressed:
            how = {"to": "orbax", "compression": "zstd", "chunk_bytes": 100}
            reshard.convert(path, Path(name) / "b", **how)
            path = Path(name) / "b"
        found = opened({"sources": [(path, given_map)]})
        assert_same_arrays({n: np.asarray(a) for n, a in flat(found).items()}, one.targets)


def flat(found: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(found, dict):
        return {before: found}
    return {k: v for n, each in found.items() for k, v in flat(each, f"{before}/{n}" if before else n).items()}  # fmt: skip


def test_sources_with_maps_of_their_own(tmp_path: Path) -> None:
    """A stack of layers, and the same layers turned and one by one, are averaged."""
    rng = np.random.default_rng(0)
    stack = rng.normal(size=(3, 4, 6)).astype(ml_dtypes.bfloat16)
    layers = rng.normal(size=(3, 6, 4)).astype(np.float32)
    one = saved_numbers(tmp_path / "stack", {"w": stack})
    apart = {f"layers.{n}.weight": layer for n, layer in enumerate(layers)}
    other = saved_numbers(tmp_path / "apart", apart)
    to_stack = {"map": [{"from": "layers.{l}.weight", "to": "w", "shape": "o i -> l i o"}]}
    report = reshard.merge([one, (other, to_stack)], tmp_path / "out", max_memory="64MiB")
    wanted = average([stack, layers.transpose(0, 2, 1)], [1, 1], 2, ml_dtypes.bfloat16)
    assert_bits(reshard.restore(tmp_path / "out")["w"], wanted)
    assert report.merged == "averaged 1 tensor of 2 checkpoints, each with the weight 0.5; copied 0"  # fmt: skip
    again = reshard.merge([one, (other, to_stack)], tmp_path / "out", max_memory="64MiB")
    assert again.already_done


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two training states, whose counters and keys differ."""
    folder = tmp_path_factory.mktemp("states")
    return [
        save_standard(
            folder / str(n),
            {"w": np.full((2, 3), float(n), np.float32), "count": 5 + n, "key": jax.random.key(n)},
        )
        for n in range(2)
    ]


def test_what_is_no_float_is_equal_or_chosen(states: list[Path], tmp_path: Path) -> None:
    first, second = states
    with pytest.raises(VerificationError) as error:
        reshard.merge(states, tmp_path / "out", drop=["key"])
    assert str(error.value) == (
        f"tensor 'count' is not averaged, and differs between {first} and {second}; say which checkpoint it is taken from, by its number from 1 "
        "(from_)"
    )
    for number in (1, 2):
        reshard.merge(states, tmp_path / f"from{number}", from_=number)
        found = reshard.restore(tmp_path / f"from{number}")
        assert (found["count"], found["w"][0, 0]) == (4 + number, 0.5)
        assert jax.random.key_data(found["key"]).tolist() == [0, number - 1]
    with pytest.raises(VerificationError, match="'count' is not averaged, and differs between"):
        reshard.merge([first], tmp_path / "out", base=second, drop=["key"])
    reshard.merge(states, tmp_path / "floats", select=["w"])  # others are not read


def test_text_that_differs_between_checkpoints(tmp_path: Path) -> None:
    for name in "ab":
        reshard.save(tmp_path / name, {"w": np.ones(3, np.float32), "name": name})
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(PlanError) as error:
        opened({"sources": paths})
    assert str(error.value) == (
        f"'name' is not averaged, and differs between {paths[0]} and {paths[1]}; say which checkpoint it is taken from, by its number from 1 "
        "(from_)"
    )
    assert opened({"sources": paths, "from_": 2})["name"] == "b"


LIKE = "give checkpoints of one model, or each a map that makes the same tensors of it"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.ones((3, 2), "f4")}, "tensor 'w' is float32 [2, 3] in {a}, but float32 [3, 2] in {b}"),
        ({"w": np.ones((2, 3), "i4")}, "tensor 'w' is float32 [2, 3] in {a}, but int32 [2, 3] in {b}"),
        ({"v": np.ones((2, 3), "f4")}, "tensor 'w' is float32 [2, 3] in {a}, but not in {b}"),
        ({"w": np.ones((2, 3), "f4"), "x": np.ones(1)}, "tensor 'x' is not in {a}, but float64 [1] in {b}"),
    ],
)  # fmt: skip
def test_checkpoints_of_other_models(tmp_path: Path, other: Any, message: str) -> None:
    a = saved_numbers(tmp_path / "a", {"w": np.ones((2, 3), "f4")})
    b = saved_numbers(tmp_path / "b", other)
    with pytest.raises(PlanError) as error:
        reshard.merge([a, b], tmp_path / "out")
    assert str(error.value) == f"{message.format(a=a, b=b)}; {LIKE}"
    assert not (tmp_path / "out").exists()


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    codes = np.ones((128, 128), ml_dtypes.float8_e4m3fn)
    reshard.save(tmp_path / "q", {"a.weight": codes, "a.weight_scale_inv": np.ones((1, 1), "f4")})
    with pytest.raises(PlanError) as error:
        reshard.merge([tmp_path / "q"] * 2, tmp_path / "out")
    assert str(error.value) == (
        f"{tmp_path / 'q'} has quantised weights (fp8, a scale for each: 1 weight with scales, 0 as they are), and codes have no average; "
        "dequantise each checkpoint first (dequantize), and merge the results"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sources": []}, "sources is []; expected a list with the path of each checkpoint, such as ['run/9000', 'run/10000']"),
        ({"sources": "a"}, "sources is 'a'; expected a list with the path of each checkpoint, such as ['run/9000', 'run/10000']"),
        ({"last": 2}, "last is 2, but 2 checkpoints are given; give the folder of one run (last)"),
        ({"sources": ["a"], "last": 0}, "last is 0; expected a whole number of at least 1 (steps of the run, such as 8)"),
        ({"sources": ["a{1..2..0}"]}, "a{1..2..0}: the numbers of the range are 0 apart; expected 1 or more"),
        ({"sources": ["a{1..2000}"]}, "more than 1,000 checkpoints are given, which would all be open at once; merge fewer of them, and then the results"),
        ({"scale": 2.0}, "scale is of what the checkpoints change of a base; leave it out (scale), or name that (base)"),
        ({"base": "c", "scale": float("inf")}, "scale is inf; expected a finite number, such as 0.5"),
        ({"from_": 3}, "from_ is 3; expected the number of one of the 2 checkpoints, from 1 to 2"),
        ({"from_": True}, "from_ is True; expected the number of one of the 2 checkpoints, from 1 to 2"),
        ({"dtype": "int32"}, "dtype is 'int32'; expected that of an average, such as 'float32' or 'bfloat16'"),
        ({"dtype": "x"}, "dtype is 'x'; expected that of an average, such as 'float32' or 'bfloat16'"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        Merge.asked({"sources": ["a", "b"], **asked})
    assert str(error.value) == message


def test_a_run_with_too_few_steps(run: tuple[Path, list[Tree]], tmp_path: Path) -> None:
    folder, _ = run
    for path, has in ((folder, "steps 0, 100, 200, 300, 400"), (tmp_path, "no steps")):
        with pytest.raises(NotACheckpointError) as error:
            Merge.asked({"sources": [path], "last": 6})
        assert str(error.value) == (
            f"{path} has {has}, but the last 6 are asked for; give the folder of a run with as many, or ask for fewer (last)"
        )


def test_it_is_made_again_from_its_option(run: tuple[Path, list[Tree]]) -> None:
    folder, _ = run
    by = {"map": [{"from": "half", "to": "h"}], "drop": ["^(low|single|short|one|ids)$"]}
    asked = {"sources": [(folder, by)], "last": 2, "ema": 0.9, "from_": 2, "dtype": np.float32}
    made = Merge.asked(asked)
    again = Merge.asked(made.option[1])
    assert again.weights == made.weights
    assert again.text == made.text
    assert [Path(each.path).name for each in made.sources] == ["step_300", "step_400"]
    assert list(map(str, made.places)) == list(map(str, again.places)) != []
