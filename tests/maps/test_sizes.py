"""Sizes of a map: of the target's mesh, of indices that other rules count, and lengths that arithmetic gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import PlanError
from reshard.layout.layout_file import layout_to_mapping
from reshard.layout.read_layout import parse_layout
from reshard.maps.given_map import map_of
from tests.maps.by_numpy import made_by

RANKS = """
rules: [{match: w, axes: [ranks]}]
sizes: {ranks: mesh}
map:
- {from: [a, b], to: w, shape: '(ranks f) e, (ranks f) e -> (ranks [f | f]) e'}
"""
A = np.arange(24, dtype=np.float32).reshape(8, 3)
SOURCE = {"a": A, "b": -A}


def interleaved(ranks: int) -> np.ndarray:
    return np.concatenate([x for r in range(ranks) for x in (np.split(A, ranks)[r], np.split(-A, ranks)[r])])  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "source", SOURCE)
    return tmp_path / "source"


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("key", ["map", "layout"])
def test_a_size_is_that_of_the_mesh(source: Path, tmp_path: Path, key: str, ranks: int) -> None:
    (tmp_path / "ranks.yaml").write_text(RANKS)
    given = {key: tmp_path / "ranks.yaml"}
    reshard.convert(source, tmp_path / "target", mesh=f"ranks={ranks}", **given)
    np.testing.assert_array_equal(reshard.restore(tmp_path / "target")["w"], interleaved(ranks))
    assert reshard.verify(source, tmp_path / "target").differences == 0
    again = reshard.convert(source, tmp_path / "target", mesh=f"ranks={ranks}", **given)
    assert again.already_done


def test_a_file_with_a_mesh_of_its_own_tells_the_size(source: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "target", map=f"mesh: {{ranks: 4}}{RANKS}")
    np.testing.assert_array_equal(reshard.restore(tmp_path / "target")["w"], interleaved(4))
    other = {"mesh": {"ranks": 2}, "rules": [{"match": "w", "axes": [None]}]}
    reshard.convert(source, tmp_path / "other", map=RANKS, layout=other)
    np.testing.assert_array_equal(reshard.restore(tmp_path / "other")["w"], interleaved(2))


def test_a_given_size_that_the_mesh_contradicts(source: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        reshard.convert(source, tmp_path / "target", map=RANKS, mesh="ranks=2", sizes={"ranks": 4})
    assert str(caught.value) == (
        "the size 'ranks' is given as 4, but the mesh has 2 along 'ranks', which is this size in map; leave the size out (sizes), or give "
        "another mesh"
    )


def test_where_nothing_is_written_the_size_is_given(source: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "target", map=RANKS, mesh="ranks=2")
    assert (
        reshard.verify(source, tmp_path / "target", map=RANKS, sizes={"ranks": 2}).differences == 0
    )
    assert (
        reshard.verify(source, tmp_path / "target", map=RANKS, sizes={"ranks": 4}).differences == 1
    )
    np.testing.assert_array_equal(
        reshard.restore(source, map=RANKS, sizes={"ranks": 4})["w"], interleaved(4)
    )
    with pytest.raises(PlanError) as caught:
        reshard.verify(source, tmp_path / "target", map=RANKS)
    assert str(caught.value) == (
        "map: the sizes ranks are those of the target's mesh; give a mesh with these axes (mesh), such as ranks=2, or, where nothing is "
        "written, the sizes (sizes)"
    )


def test_refused_tensors_may_be_dropped(source: Path, tmp_path: Path) -> None:
    text = "map: [{from: a, to: w}]\nrefuse: [{match: b, reason: it is no a}]\n"
    with pytest.raises(PlanError, match=r"refuse\[0\] \(map:2\): 'b': it is no a"):
        reshard.convert(source, tmp_path / "target", map=text)
    reshard.convert(source, tmp_path / "target", map=text, drop=["b"])
    assert reshard.verify(source, tmp_path / "target").differences == 0


def test_the_content_of_a_layout_keeps_every_section() -> None:
    content = {
        "sizes": {"ranks": "mesh"},
        "map": [{"from": "a", "to": "w", "shape": "(ranks f) e -> (ranks f) e"}],
        "refuse": [{"match": "experts", "reason": "why"}],
    }
    assert layout_to_mapping(parse_layout(content)) == {"unmatched": "replicate", **content}


def test_a_rule_without_sources_counts_as_the_others_do() -> None:
    text = """
    map:
    - {to: 'layers.{l}.scale', shape: '->', fill: 1}
    - {from: 'layers.{l}.w', to: 'layers.{l}.w'}
    """
    found = made_by(text, {f"layers.{n}.w": A for n in range(3)})
    assert {name for name in found if name.endswith("scale")} == {f"layers.{n}.scale" for n in range(3)}  # fmt: skip
    scale = found["layers.2.scale"]
    assert (scale.dtype, scale.shape, scale) == (np.float32, (), 1)


@pytest.mark.parametrize(("rows", "padded"), [(8, 8), (7, 8), (9, 12), (1, 4)])
def test_a_length_is_arithmetic(rows: int, padded: int) -> None:
    text = "map: [{from: a, to: b, shape: v e -> v e, pad: {v: 4*ceil(v/4)}, fill: 7}]\n"
    source = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    found = made_by(text, {"a": source})["b"]
    np.testing.assert_array_equal(found[:rows], source)
    np.testing.assert_array_equal(found[rows:], np.full((padded - rows, 3), 7))
    back = made_by(text, {"b": found}, {"v": rows}, reverse=True)["a"]
    np.testing.assert_array_equal(back, source)


def test_half_of_a_dimension_is_taken() -> None:
    text = "map: [{from: a, to: b, shape: v e -> v e, crop: {v: v/2}}]\n"
    np.testing.assert_array_equal(made_by(text, {"a": A})["b"], A[:4])


def test_refused_tensors() -> None:
    text = """
    map: [{from: a, to: b}]
    refuse: [{match: 'experts', reason: they are no dense weights}]
    """
    assert made_by(text, {"a": A}).keys() == {"b"}
    with pytest.raises(PlanError) as caught:
        made_by(text, {"a": A, "experts.0.w": A, "experts.1.w": A})
    assert (
        str(caught.value)
        == "refuse[0] (map:3): 'experts.0.w' and 1 more: they are no dense weights"
    )
    assert map_of(text, reverse=True) is not None
    assert made_by(
        text,
        {
            "b": A,
        },
        reverse=True,
    ).keys() == {"a"}


def test_a_number_is_a_block_and_a_place_in_it() -> None:
    layers = {f"x.{n}": np.full(2, n, np.float32) for n in range(6)}
    text = "map: [{from: 'x.{3*l+b}', to: 'y.{b}', shape: e -> l e}]\n"
    found = made_by(text, layers)
    assert {name: a[:, 0].tolist() for name, a in found.items()} == {
        "y.0": [0, 3], "y.1": [1, 4], "y.2": [2, 5],
    }  # fmt: skip
    turned = "map: [{from: 'y.{b}', to: 'x.{b+l*3}', shape: l e -> e}]\n"
    assert made_by(turned, found).keys() == layers.keys()
    assert made_by(turned, layers, reverse=True).keys() == found.keys()
    with pytest.raises(PlanError, match="stands for 5 tensors, but none for l = 1, b = 2 of 6"):
        made_by(text, {n: layers[n] for n in list(layers)[:5]})
    for index in ("l+b", "2*l+3*b", "l*b", "3*l+b+c"):
        with pytest.raises(PlanError, match="must have one index, or two as in"):
            made_by(text.replace("3*l+b", index), layers)


def test_a_given_size_bounds_an_index() -> None:
    layers = {f"x.{n}": np.full(2, n, np.float32) for n in range(5)}
    text = """
sizes: {n: 2}
map:
- {from: 'x.{n}', to: first, shape: e -> n e}
- {from: 'x.{n+l}', to: rest, shape: e -> l e}
"""
    found = made_by(text, layers)
    assert {name: a[:, 0].tolist() for name, a in found.items()} == {
        "first": [0, 1],
        "rest": [2, 3, 4],
    }
    assert made_by(text, found, reverse=True).keys() == layers.keys()


def test_sizes_of_another_model_are_named(source: Path) -> None:
    heads = "sizes: {g: 2, d: 4}\nmap:\n- {from: [a, b], to: [q, k], shape: '(g [r d | d]) e, e2 e -> (g r d) e, (g d) e'}"
    with pytest.raises(PlanError) as caught:
        reshard.plan(source, map=heads, sizes={"d": 128})
    assert str(caught.value) == (
        "map[0] (map:3): axis 0 of 'a' is 8, but its parts alone are 128; the map takes g = 2, d = 128: give what this checkpoint has (sizes), "
        "as g=…, d=…"
    )


def test_a_size_that_no_rule_has_is_refused(source: Path) -> None:
    rule = "map:\n- {from: [a, b], to: w, shape: '(r f) e, (r f) e -> (r [f | f]) e'}"
    with pytest.raises(PlanError) as caught:
        reshard.plan(source, map=rule, sizes={"r": 2, "foo": 3})
    assert str(caught.value) == (
        "the size 'foo' is in no rule of map, which has e, f, r; correct it, or leave it out (sizes)"
    )
    with pytest.raises(PlanError, match="is in no rule of map, which has no sizes; correct it"):
        reshard.plan(source, map="map:\n- {from: a, to: w}", sizes={"foo": 3})


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("{from: 'a.{l}', to: 'c.{l}'}", "l"),
        ("{from: a, to: c, multiply: sqrt(n)}", "n"),
        ("{from: a, to: c, shape: v -> v, crop: {v: vocab}}", "vocab"),
        ("{from: a, to: c, shape: v -> v, pad: {v: 64*ceil(n/64)}}", "n"),
    ],
)
def test_sizes_of_every_part_of_a_rule_are_taken(rule: str, name: str) -> None:
    found = map_of(f"map:\n- {rule}", {name: 2})
    assert found is not None
    assert found.sizes == {name: 2}
