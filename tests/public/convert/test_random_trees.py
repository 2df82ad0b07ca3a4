"""Random trees, meshes and options: stock Orbax restores every bit, onto the mesh that was asked for."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from tests.campaigns import examples
from tests.equal import assert_same_trees
from tests.orbax_trees import DTYPES, expected_arrays, put, random_array
from tests.public.convert.random_meshes import MESHES, SAVERS, layout_of, specs
from tests.public.convert.restored import restore_tree

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

JAX_DTYPES = [d for d in DTYPES if d not in ("int64", "uint64", "float64", "complex128")]


SIZES = [1, 2, 3, 4, 5, 8, 12, 16, 24]


@st.composite
def trees(draw: st.DrawFn, on: Mesh, *, strings: bool) -> Any:
    """A nested tree with arrays sharded at random, numpy arrays, scalars, None and strings."""
    seed = st.integers(0, 2**32)

    @st.composite
    def arrays(draw: st.DrawFn) -> Any:
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
        dtype = draw(st.sampled_from(JAX_DTYPES))
        array = random_array(np.random.default_rng(draw(seed)), shape, dtype)
        return put(array, *draw(specs(shape, on)), on=on) if draw(st.booleans()) else array

    leaves = arrays() | arrays() | arrays() | st.none() | st.integers(-9, 9) | st.floats(-1, 1)
    if strings:
        leaves |= st.sampled_from(["", "text", "ünï/code"])
    keys = st.sampled_from(["w", "b", "layers", "a.b", "mu", "0", "x y", "ünï"])
    nested = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=5,
    )
    return {"first": draw(arrays()), "rest": draw(nested)}


@st.composite
def conversions(draw: st.DrawFn) -> Any:
    before, after = draw(st.sampled_from(MESHES)), draw(st.sampled_from(MESHES))
    name = draw(st.sampled_from(list(SAVERS)))
    tree = draw(trees(before, strings=name != "standard"))
    save = SAVERS[name]
    if name.startswith("pytree"):
        save = partial(save, chunk_byte_size=draw(st.sampled_from([None, 24, 100])))
    arrays = expected_arrays(tree)
    wanted = {n: draw(specs(a.shape, after)) for n, a in arrays.items()}
    how = {
        "compression": draw(st.sampled_from(["none", "none", "zstd", "gzip", "blosc", "keep"])),
        "chunk_bytes": draw(st.sampled_from([None, 64, 1000])),
        "workers": draw(st.integers(1, 3)),
        "max_memory": draw(st.sampled_from(["24MiB", "256MiB"])),
        "ocdbt": draw(st.integers(0, 4)) == 4,
    }
    return save, tree, after, wanted, how


@settings(max_examples=examples(15))
@given(conversions())
def test_any_tree_from_any_mesh_to_any_other(conversion):
    save, tree, after, wanted, how = conversion
    with tempfile.TemporaryDirectory() as folder:
        source, target = save(Path(folder) / "source", tree), Path(folder) / "target"
        report = reshard.convert(source, target, layout=layout_of(after, wanted), **how)
        found = restore_tree(target)
        assert_same_trees(found, restore_tree(source))
        assert reshard.verify(source, target).differences == 0
    assert len(report.tensors) == len(wanted)
    for path, leaf in jax.tree_util.tree_flatten_with_path(found)[0]:
        if isinstance(leaf, jax.Array):
            axes = wanted["/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)]
            assert leaf.sharding.is_equivalent_to(
                NamedSharding(after, PartitionSpec(*axes)), leaf.ndim
            )
            assert leaf.sharding.mesh.axis_names == after.axis_names
