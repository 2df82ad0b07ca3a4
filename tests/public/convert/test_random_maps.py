"""Random rules between random formats, grids and meshes: what einops makes, read by another program, and back again."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from tests.campaigns import examples
from tests.maps.by_numpy import assert_same_arrays
from tests.maps.random_rules import Arrays, RandomRule, rules
from tests.orbax_trees import expected_arrays, nested, put
from tests.public.convert.random_meshes import MESHES, SAVERS, layout_of, specs
from tests.public.convert.restored import restore_tree

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

STORED = [name for name in SAVERS if name != "v1"]


@st.composite
def trees(draw: st.DrawFn, arrays: Arrays) -> dict[str, Any]:
    """The arrays as a tree, some of them sharded over a mesh."""
    on = draw(st.sampled_from(MESHES))
    leaves = {
        name: put(array, *draw(specs(array.shape, on)), on=on) if draw(st.booleans()) else array
        for name, array in arrays.items()
    }
    return nested(leaves)


@st.composite
def targets(draw: st.DrawFn, arrays: Arrays) -> dict[str, Any]:
    """Options of a conversion that makes these arrays."""
    how: dict[str, Any] = {
        "workers": draw(st.integers(1, 3)),
        "max_memory": draw(st.sampled_from(["24MiB", "256MiB"])),
    }
    if draw(st.booleans()):
        return {**how, "to": "safetensors", "file_bytes": draw(st.sampled_from([None, 2000]))}
    if draw(st.booleans()):
        on = draw(st.sampled_from(MESHES))
        how["layout"] = layout_of(on, {n: draw(specs(a.shape, on)) for n, a in arrays.items()})
    return {
        **how,
        "to": "orbax",
        "compression": draw(st.sampled_from(["none", "zstd", "gzip", "blosc"])),
        "chunk_bytes": draw(st.sampled_from([None, 16, 100])),
        "ocdbt": draw(st.integers(0, 3)) == 0,
    }


def _is_of_orbax(one: RandomRule) -> bool:
    """Orbax saves no empty tensors, and restores sharded ones as jax has them, of 32 bits."""
    arrays = (*one.sources.values(), *one.targets.values())
    return all(a.size and a.dtype != np.float64 for a in arrays)


@st.composite
def conversions(draw: st.DrawFn) -> Any:
    one = draw(rules("model/").filter(_is_of_orbax))
    save = SAVERS[draw(st.sampled_from(STORED))]
    if isinstance(save, partial):
        save = partial(save, chunk_byte_size=draw(st.sampled_from([None, 24, 100])))
    tree = draw(trees(one.sources))
    return one, save, tree, draw(targets(one.targets)), draw(targets(one.sources))


KINDS = {
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I8": np.dtype("int8"),
}


def read_all(path: Path) -> Arrays:
    """By stock Orbax; files of safetensors by their documented layout, since their own numpy lacks bfloat16."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        return expected_arrays(restore_tree(path))
    found: dict[str, Any] = {}
    for file in files:
        content = file.read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin])
        header.pop("__metadata__", None)
        for name, of in header.items():
            first, last = of["data_offsets"]
            elements = np.frombuffer(content[begin + first : begin + last], KINDS[of["dtype"]])
            found[name] = elements.reshape(of["shape"])
    return found


@settings(max_examples=examples(15))
@given(conversions())
def test_any_rule_from_any_grid_to_any_other_and_back(conversion: Any) -> None:
    one: RandomRule
    one, save, tree, there, back = conversion
    by: dict[str, Any] = {"map": {"map": [one.rule]}}
    with tempfile.TemporaryDirectory() as folder:
        source, made, again = (Path(folder) / name for name in ("source", "made", "again"))
        save(source, tree)
        reshard.convert(source, made, **by, sizes=one.given, **there)
        assert_same_arrays(read_all(made), one.targets)
        assert not reshard.verify(source, made).differences
        if one.is_exact:
            reshard.convert(made, again, **by, sizes=one.given_backwards, reverse=True, **back)
            assert_same_arrays(read_all(again), one.sources)
