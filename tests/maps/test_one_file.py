"""One file that says both which tensors become which and how the target is split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import LayoutError, PlanError
from reshard.layout.layout_file import layout_to_mapping
from reshard.layout.read_layout import load_layout, parse_layout

BOTH = """
mesh: {model: 2}
rules: [{match: 'q[.]weight$', axes: [model]}]
select: ['^params/']
drop: ['/mu$']
rename: [{match: '^', to: 'm.'}]
sizes: {two: 2}
map:
- {from: params/query, to: '{l}.q.weight', shape: e l (h two) -> (two h) e}
- {from: params/norm, to: norm}
"""
E, L, H = 6, 3, 4
QUERY = np.arange(E * L * H, dtype=np.float32).reshape(E, L, H)
TREE = {
    "params": {"query": QUERY, "norm": np.ones(5, np.float32), "mu": QUERY},
    "step": np.array(1),
}
TURNED = QUERY.reshape(E, L, H // 2, 2).transpose(1, 3, 2, 0).reshape(L, H, E)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "a", TREE)
    return tmp_path / "a"


@pytest.fixture
def both(tmp_path: Path) -> Path:
    (tmp_path / "both.yaml").write_text(BOTH)
    return tmp_path / "both.yaml"


def axes_of(target: Path) -> dict[str, object]:
    return {
        name: (t.spec.layout.axes if t.spec.layout else ())
        for name, t in reshard.inspect(target).tensors.items()
    }


def assert_made(target: Path) -> None:
    found = reshard.restore(target)
    assert set(found) == {"m.norm", *(f"m.{i}.q.weight" for i in range(L))}
    for i in range(L):
        np.testing.assert_array_equal(np.asarray(found[f"m.{i}.q.weight"]), TURNED[i])
    axes = axes_of(target)
    assert axes["m.0.q.weight"] == ("model", None)
    assert axes["m.norm"] == (None,)


@pytest.mark.parametrize("key", ["layout", "map"])
@pytest.mark.parametrize("form", ["path", "content"])
def test_the_file_is_given_once(
    source: Path, both: Path, tmp_path: Path, key: str, form: str
) -> None:
    import yaml

    given: dict[str, Any] = {key: both if form == "path" else yaml.safe_load(BOTH)}
    report = reshard.convert(source, tmp_path / "b", **given)
    assert report.map is not None
    assert_made(tmp_path / "b")
    assert reshard.verify(source, tmp_path / "b").differences == 0
    again = reshard.convert(source, tmp_path / "b", **given)
    assert again.already_done
    assert reshard.verify(source, tmp_path / "b", map=both).differences == 0


def test_a_layout_of_its_own_comes_first(source: Path, both: Path, tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "mesh": {"x": 3},
        "rules": [{"match": "q.weight", "axes": [None, "x"]}],
    }
    reshard.convert(source, tmp_path / "b", map=both, layout=rules)
    assert axes_of(tmp_path / "b")["m.0.q.weight"] == (None, "x")
    no_mesh = BOTH.replace("mesh: {model: 2}\n", "")
    reshard.convert(source, tmp_path / "c", map=no_mesh, mesh="model=4")
    assert reshard.inspect(tmp_path / "c").tensors["m.0.q.weight"].shards == 4


def test_live_arrays_by_both(source: Path, both: Path) -> None:
    both.write_text(BOTH.replace("{model: 2}", "{data: 4, model: 2}"))
    found = reshard.restore(source, layout=both)
    assert found["m.0.q.weight"].sharding.shard_shape((H, E)) == (H // 2, E)
    np.testing.assert_array_equal(np.asarray(found["m.1.q.weight"]), TURNED[1])
    assert reshard.restore(source, map=both).keys() == found.keys()


def test_the_content_comes_back_from_a_layout(both: Path) -> None:
    content = layout_to_mapping(load_layout(both))
    assert content["map"][1] == {"from": "params/norm", "to": "norm"}
    assert content["sizes"] == {"two": 2}
    assert layout_to_mapping(parse_layout(json.loads(json.dumps(content)))) == content


def refused(kind: type[Exception], source: Path, target: Path, **given: Any) -> str:
    with pytest.raises(kind) as caught:
        reshard.convert(source, target, **given)
    assert not target.exists()
    return str(caught.value)


def test_refusals(source: Path, both: Path, tmp_path: Path) -> None:
    target = tmp_path / "b"
    two = refused(PlanError, source, target, layout=both, map=both)
    assert two == f"{both} has a map, and another one is given; leave one out (layout or map)"
    backwards = refused(PlanError, source, target, layout=both, reverse=True)
    assert "says how the targets of its map are split, which backwards are its sources" in backwards
    undone = refused(
        PlanError, source, target, map=BOTH.replace("drop: ['/mu$']\n", ""), reverse=True
    )
    assert "the map has select, which nothing undoes" in undone
    wrong = refused(LayoutError, source, target, map=BOTH.replace("axes: [model]", "axes: [data]"))
    assert wrong.startswith("rules[0] 'q[.]weight$' (map:3): invalid axis names")
    both.write_text(BOTH.replace("to: norm}", "too: norm}"))
    line = refused(LayoutError, source, target, layout=both)
    assert f"{both}:10: map[1].too: unknown key 'too'; did you mean 'to'?" in line
    both.write_text("sizes: {two: 2}\n")
    lost = refused(LayoutError, source, target, layout=both)
    assert lost == f"{both}:1: sizes: only a map has it, but the file has none (map); remove it"


def test_what_only_lays_out_refuses_a_map(both: Path, tmp_path: Path) -> None:
    expected = "has a map, which only plan, convert, restore and verify apply"
    with pytest.raises(LayoutError, match=expected):
        reshard.save(tmp_path / "b", TREE, layout=both)
