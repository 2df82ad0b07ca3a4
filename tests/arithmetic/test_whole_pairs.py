"""Weights are the same, whether they are dequantised before a map and a layout change them or after, as codes with their scales."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from tests.arithmetic.quantised import (
    Arrays,
    assert_same,
    convert,
    dequantising,
    flattened,
    random_codes,
    random_scale,
    restored,
)
from tests.campaigns import examples

NAMES = "a.weight", "b.weight"
MAPS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (None, NAMES),
    ([{"from": name, "to": f"net.{name}"} for name in NAMES], tuple(f"net.{n}" for n in NAMES)),
    ([{"from": name, "to": name, "shape": "a b -> b a"} for name in NAMES], NAMES),
    ([{"from": list(NAMES), "to": "ab.weight", "shape": "a e, b e -> [a | b] e"}], ("ab.weight",)),
    ([{"from": list(NAMES), "to": "ab.weight", "shape": "e a, e b -> [a | b] e"}], ("ab.weight",)),
    ([{"from": list(NAMES), "to": ["x.weight", "y.weight"], "shape": "[c | d] e, f e -> c e, [d | f] e"}], ("x.weight", "y.weight")),
)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Blocks of 4 × 8, a map, a mesh and a format."""
    rules, names = draw(st.sampled_from(MAPS))
    axes = draw(st.permutations(["tp", None]))
    found: dict[str, Any] = {"to": draw(st.sampled_from(["orbax", "safetensors", "dcp"]))}
    if rules is not None:
        found["map"] = {"map": rules, "sizes": {"c": 8}} if len(names) == 2 and "x" in names[0] else {"map": rules}  # fmt: skip
    if draw(st.booleans()):
        match = "|".join(f"^{name}$".replace(".", r"\.") for name in names)
        found["layout"] = {"mesh": {"tp": 2}, "rules": [{"match": match, "axes": axes}], "unmatched": "replicate"}  # fmt: skip
        if found["to"] == "safetensors":
            found["files"] = draw(st.sampled_from(["ranks", "dcp", "shards"]))
    return found


@given(cases())
@settings(max_examples=examples(12), deadline=None)
def test_before_or_after(case: dict[str, Any]) -> None:
    source: Arrays = {
        "a.weight": random_codes((16, 32)),
        "a.weight_scale_inv": random_scale((4, 4)),
        "b.weight": random_codes((16, 32)),
        "b.weight_scale_inv": random_scale((4, 4)),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        reshard.save(root / "source", dict(source))
        convert(dequantising(root / "source"), root / "before", **case)
        reshard.convert(root / "source", root / "codes", **case)
        wanted = dict(flattened(reshard.restore(root / "before")))
        found = restored(root / "codes")
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            assert_same(found[name], array)
