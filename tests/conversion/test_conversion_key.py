"""Two conversions have the same key only if they are the same, however their options are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import reshard
from reshard.conversion.check_target import check_target
from reshard.conversion.conversion_key import ConversionKey, differences, key_of_conversion
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.errors import TargetExistsError
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_map import LayoutMap
from tests.orbax_trees import save_pytree


def key(**options: Any) -> ConversionKey:
    return key_of_conversion("/source", check_target(Target("/target", **options), limits_of(None, None)), "")  # fmt: skip


def by_map(mesh: DeviceMesh, *axes: Any) -> dict[str, Any]:
    layouts = LayoutMap(mesh)
    layouts["w"] = axes
    return {"layout": layouts}


def by_tree(mesh: DeviceMesh, *axes: Any) -> dict[str, Any]:
    return {"layout": {"w": reshard.TensorLayout(axes, mesh)}}


ALIKE = {
    "rename": ({"rename": [("^a=b", "c")]}, {"rename": [("^a", "b=c")]}),
    "two renames": (
        {"rename": [("a", "b', 'c=d")]},
        {"rename": [("a", "b"), ("c", "d")]},
    ),
    "a rename that looks like a pair": (
        {"rename": [("('a", "b")]},
        {"rename": [("'a', 'b')]", "")]},
    ),
    "select": ({"select": ["a', 'b"]}, {"select": ["a", "b"]}),
    "drop": ({"drop": ["a, b"]}, {"drop": ["a", " b"]}),
    "select and drop": ({"select": ["a"]}, {"drop": ["a"]}),
    "axes of a mesh": (
        {"mesh": DeviceMesh((2, 2), ("x", "y"))},
        {"mesh": DeviceMesh((2,), ("x=2, y",))},
    ),
    "missing axes": (
        {"mesh": DeviceMesh((2,), ("x",)), "missing_axes": "replicate"},
        {"mesh": DeviceMesh((2,), ("x",))},
    ),
    "two axes in a map": (
        by_map(DeviceMesh((2, 2, 1), ("x", "y", "[x, y]")), ("x", "y")),
        by_map(DeviceMesh((2, 2, 1), ("x", "y", "[x, y]")), "[x, y]"),
    ),
    "no axis in a map": (
        by_map(DeviceMesh((2,), ("null",)), None),
        by_map(DeviceMesh((2,), ("null",)), "null"),
    ),
    "dimensions in a tree": (
        by_tree(DeviceMesh((2, 2, 1), ("x", "y", "x, y")), "x", "y"),
        by_tree(DeviceMesh((2, 2, 1), ("x", "y", "x, y")), "x, y"),
    ),
}


@pytest.mark.parametrize("alike", ALIKE)
def test_other_options_are_another_conversion(alike: str) -> None:
    one, other = ALIKE[alike]
    assert key(**one).settings != key(**other).settings
    assert key(**one).output != key(**other).output
    assert key(**one) == key(**one)


def test_what_earlier_versions_recorded_is_known_again() -> None:
    """Journals and finished targets name a conversion by these texts."""
    options = {"rename": [("^a", "b")], "cast": [("float", "bfloat16")], "select": ["a", "b"]}
    found = key(mesh=DeviceMesh((4, 2), ("data", "model-1")), **options).settings
    assert found["rename"] == "['^a=b']"
    assert found["cast"] == "['float=bfloat16']"
    assert found["select"] == "['a', 'b']"
    assert found["layout"] == "axes as in the source over the mesh (data=4, model-1=2)"
    assert key(**by_map(DeviceMesh((2,), ("x",)), None, "x")).settings["layout"] == (
        "{'w': [null, x] over the mesh (x=2)}, match='search', ambiguous='error', unmatched='replicate', "
        "default the mesh (x=2)"
    )


def test_the_texts_of_all_options_are_those_of_earlier_versions() -> None:
    """Their order is that of messages; the digest names finished targets, which are known again by it."""
    orbax = {"compression": "zstd:3", "chunk_bytes": "64MiB", "ocdbt": True, "style": "v1"}
    assert list(key(**orbax).settings.items())[1:-3] == [
        ("select", "[]"), ("drop", "[]"), ("rename", "[]"), ("cast", "[]"), ("to", "None"),
        ("compression", "zstd:3+crc32c"), ("chunk_bytes", "64 MiB"), ("ocdbt", "True"), ("style", "v1"),
        ("files", "None"), ("file_bytes", "None"), ("file_names", "None"), ("carry", "False"),
    ]  # fmt: skip
    checked = check_target(Target("/t", **orbax), limits_of("256MiB", 4))
    assert key_of_conversion("/src", checked, "f").output == "c4c79d1fd4e18f6504a16e02c3bb71e9"
    ranks = {"to": "safetensors", "files": "ranks", "file_names": "m-{rank}.safetensors"}
    checked = check_target(Target("/t", **ranks, carry=True), limits_of("256MiB", 4))
    assert key_of_conversion("/src", checked, "f").output == "13a2d29f4795dd41720723e52e79fb02"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_pytree(tmp_path / "source", {"a=b": np.arange(6.0), "rest": np.zeros(3)})


def test_a_target_of_another_renaming_is_not_already_done(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    reshard.convert(source, target, rename=[("^a=b", "c")])
    with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
        reshard.convert(source, target, rename=[("^a", "b=c")])
    assert reshard.convert(source, target, rename=[("^a=b", "c")]).already_done
    assert set(reshard.restore(target)) == {"c", "rest"}


def test_a_run_that_an_earlier_version_recorded_and_that_may_be_another_is_not_resumed() -> None:
    now = key(rename=[("^a", "b=c")])
    before = replace(now, settings={**now.settings, "rename": "['^a=b=c']"})
    assert differences(before, now) == ["rename was ['^a=b=c'] and is [('^a', 'b=c')]"]
    assert differences(now, now) == []
