"""Restoring what a map makes of a checkpoint as live arrays of every kind, held against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

import reshard
from reshard import restoring
from tests.maps.by_numpy import made_by
from tests.orbax_trees import mesh, nested

Array = npt.NDArray[Any]

MAP = """
sizes: {two: 2, g: 2}
map:
- {from: params/embed, to: embed/weight, shape: v e -> v e, pad: {v: 32}}
- under: params/layers/
  into: layers/{l}/
  map:
  - {from: query, to: q, shape: 'e l h (p two) -> (h two p) e', multiply: sqrt(p * two)}
  - {from: [key, value], to: kv, shape: 'e l g d, e l g d -> (g [d | d]) e'}
  - {from: wi, to: up, shape: e l f -> f e, cast: bfloat16}
"""
BACK = """
sizes: {h: 4}
map:
- {from: 'layers.{l}.q', to: params/q, shape: '(h d) e -> e l h d'}
- {from: 'layers.{l}.up', to: params/up, shape: f e -> e l f}
"""


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


FLAT = {
    "params/embed": numbers(30, 8),
    "params/layers/query": numbers(8, 3, 4, 6),
    "params/layers/key": numbers(8, 3, 2, 6),
    "params/layers/value": -numbers(8, 3, 2, 6),
    "params/layers/wi": numbers(8, 3, 20),
}
EXPECTED = made_by(MAP, FLAT)
MESH = reshard.DeviceMesh((2, 4), ("a", "b"))


def flat_of(tree: Any) -> dict[str, Any]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in paths}


def check(found: Any) -> None:
    """Every tensor that numpy makes, bit by bit."""
    flat = flat_of(found)
    assert sorted(flat) == sorted(EXPECTED)
    for name, array in EXPECTED.items():
        same = np.asarray(flat[name])
        assert (same.dtype, same.shape) == (array.dtype, array.shape), name
        assert same.tobytes() == array.tobytes(), name


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "step"
    reshard.save(path, nested(FLAT))
    return path


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf") / "model.safetensors"
    save_file({f"layers.{n}.q": numbers(8, 6) + n for n in range(3)}
              | {f"layers.{n}.up": numbers(10, 6) * n for n in range(3)}, path)  # fmt: skip
    return path


def test_numpy_arrays(source: Path) -> None:
    reports: list[Any] = []
    check(reshard.restore(source, map=MAP, report=reports.append))
    (report,) = reports
    assert (report.tensors, report.verified) == (10, 10)
    assert report.amplification < 1.1
    assert sorted(report.casts) == [f"layers/{n}/{name}" for n in range(3) for name in ("q", "up")]
    assert report.casts["layers/0/up"].largest_relative_error > 0


def test_sharded_by_a_layout(source: Path) -> None:
    layout = {
        "mesh": {"axes": ["a", "b"], "shape": [2, 4]},
        "rules": [{"match": "q$", "axes": ["b", "a"]}, {"match": "up", "axes": [None, "a"]}],
    }
    found = reshard.restore(source, map=MAP, layout=layout)
    check(found)
    q = found["layers"]["1"]["q"]
    assert q.sharding.is_equivalent_to(
        NamedSharding(mesh((2, 4), ("a", "b")), PartitionSpec("b", "a")), 2
    )
    for shard in q.addressable_shards:
        np.testing.assert_array_equal(shard.data, EXPECTED["layers/1/q"][shard.index])


def test_like_gives_structure_dtype_and_place(source: Path) -> None:
    place = NamedSharding(mesh((2, 4), ("a", "b")), PartitionSpec("a"))
    like = {"embed": {"weight": jax.ShapeDtypeStruct((32, 8), np.float32, sharding=place)}}
    found = reshard.restore(source, like=like, map=MAP, unexpected="ignore")
    assert found["embed"]["weight"].sharding == place
    np.testing.assert_array_equal(found["embed"]["weight"], EXPECTED["embed/weight"])


def test_like_may_widen_what_the_map_moves(tmp_path: Path) -> None:
    halves = numbers(4, 6).astype(ml_dtypes.bfloat16)
    reshard.save(tmp_path / "c", {"w": halves})
    found = reshard.restore(
        tmp_path / "c",
        like={"w": np.zeros((6, 4), np.float32)},
        map={"map": [{"from": "w", "to": "w", "shape": "a b -> b a"}]},
    )
    np.testing.assert_array_equal(found["w"], halves.T.astype(np.float32))


def test_into_arrays_that_are_there(source: Path) -> None:
    wide = np.zeros((32, 16), np.float32)
    into = {"embed": {"weight": wide[:, ::2]}}
    reshard.restore(source, into=into, map=MAP, unexpected="ignore")
    np.testing.assert_array_equal(wide[:, ::2], EXPECTED["embed/weight"])
    assert not wide[:, 1::2].any()


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_sharded_variables(source: Path, strategy: str) -> None:
    found = reshard.restore(source, map=MAP, partition={"embed": 5}, partition_strategy=strategy)
    found = found["embed"]["weight"]
    rows = [range(n, 32, 5) for n in range(5)] if strategy == "mod" else [range(7), range(7, 14)]
    for shard, own in zip(found.variables, rows, strict=False):
        np.testing.assert_array_equal(shard, EXPECTED["embed/weight"][list(own)])


def test_hugging_face_weights_into_a_training_tree(hugging_face: Path) -> None:
    layout = {
        "mesh": {"axes": ["a", "b"], "shape": [2, 4]},
        "rules": [{"match": ".", "axes": ["a"]}],
    }
    found = reshard.restore(hugging_face, map=BACK, layout=layout)
    q = np.stack([(numbers(8, 6) + n).reshape(4, 2, 6) for n in range(3)])
    np.testing.assert_array_equal(found["params"]["q"], q.transpose(3, 0, 1, 2))
    assert len(found["params"]["q"].addressable_shards) == 8


def test_backwards(hugging_face: Path, tmp_path: Path) -> None:
    reshard.convert(hugging_face, tmp_path / "trained", map=BACK)
    found = reshard.restore(tmp_path / "trained", map=BACK, reverse=True)
    np.testing.assert_array_equal(found["layers.2.q"], numbers(8, 6) + 2)


@pytest.mark.parametrize("max_memory", ["40MiB", "1GiB"])
def test_buffers_that_are_copied_to_devices_are_made_in_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_memory: str
) -> None:
    stacked = np.arange(6 << 20, dtype=np.float32).reshape(6, 1024, 1024)
    reshard.save(tmp_path / "c", {"w": stacked})
    monkeypatch.setattr(restoring.outputs, "adopts", lambda *_: False)
    rounds: list[int] = []
    make = restoring.mapped.make_tensors

    def counted(reader: Any, tensors: Any, limits: Any, *rest: Any) -> Any:
        rounds.append(limits.max_memory)
        return make(reader, tensors, limits, *rest)

    monkeypatch.setattr(restoring.mapped, "make_tensors", counted)
    found = reshard.restore(
        tmp_path / "c",
        map={"map": [{"from": "w", "to": "{l}", "shape": "l a b -> b a"}]},
        layout={"mesh": {"axes": ["m"], "shape": [8]}, "rules": [{"match": ".", "axes": ["m"]}]},
        max_memory=max_memory,
        workers=2,
    )
    for number in range(6):
        np.testing.assert_array_equal(found[str(number)], stacked[number].T)
    assert len(rounds) == (2 if max_memory == "40MiB" else 1)
    assert min(rounds) == (40 - 20 if max_memory == "40MiB" else 1024 - 24) << 20


def test_a_budget_that_is_too_small(source: Path) -> None:
    with pytest.raises(
        reshard.MemoryBudgetError, match=r"needs at least \d MiB of buffers .* allow max_memory of"
    ):
        reshard.restore(source, map=MAP, max_memory="1KiB")


def test_changed_bytes_are_found(source: Path, tmp_path: Path) -> None:
    copied = tmp_path / "c"
    reshard.convert(source, copied)
    chunk = next(
        f for f in copied.rglob("*") if "embed" in str(f) and f.is_file() and f.name != "zarr.json"
    )
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(reshard.CorruptError):
        reshard.restore(copied, map=MAP)


def test_tensors_that_must_be_equal(tmp_path: Path) -> None:
    reshard.save(tmp_path / "c", {"a": numbers(4), "b": numbers(4) + 1})
    rules = {"map": [{"from": "a", "to": "w"}, {"from": "b", "same_as": "a"}]}
    with pytest.raises(
        reshard.VerificationError,
        match=r"^the map says that 'b' equals 'a' \(same_as\), but their digests differ; give the first a rule of its own$",
    ):
        reshard.restore(tmp_path / "c", map=rules)


def test_what_does_not_fit(source: Path) -> None:
    with pytest.raises(reshard.TreeError, match=r"(?s)of another shape.*embed/weight has shape \[32, 8\], but \[30, 8\]"):  # fmt: skip
        reshard.restore(
            source,
            like={"embed": {"weight": np.zeros((30, 8), np.float32)}},
            map=MAP,
            unexpected="ignore",
        )
    with pytest.raises(reshard.TreeError, match=r"layers/0/up is cast to bfloat16, but float32 is asked for"):  # fmt: skip
        reshard.restore(
            source,
            like={"layers": {"0": {"up": np.zeros((20, 8), np.float32)}}},
            map=MAP,
            unexpected="ignore",
        )
    with pytest.raises(reshard.PlanError, match=r"^reverse is for a map, but no map is given; name one \(map\)$"):  # fmt: skip
        reshard.restore(source, reverse=True)
    with pytest.raises(reshard.PlanError, match=r"^no rule of the map takes 4 of 5 tensors"):
        reshard.restore(source, map={"map": [{"from": "params/embed", "to": "w"}]})
