"""Random trees, dtypes, meshes and chunk sizes: stock Orbax writes, the reader finds every bit."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate
from tests.campaigns import examples
from tests.equal import assert_same
from tests.formats.orbax.decode import read_tensor
from tests.orbax_trees import DTYPES, expected_arrays, mesh, put, random_array, save_pytree

NAMES = st.from_regex(r"\A[a-zé][a-z./]{0,1}[a-z]\Z")
MESHES = [((8,), ("a",)), ((4, 2), ("a", "b")), ((2, 2, 2), ("a", "b", "c")), ((1,), ("a",))]


@st.composite
def arrays(draw: Any) -> Any:
    """A numpy array, or one split over a random mesh by random axes."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = random_array(rng, shape, draw(st.sampled_from(DTYPES)))
    if array.dtype.name in ("int64", "uint64", "float64", "complex128") or draw(st.booleans()):
        return array  # jax without x64 would narrow these
    sizes, names = draw(st.sampled_from(MESHES))
    free = draw(st.permutations(names))
    axes: list[Any] = []
    for n in shape:
        fits = free and n % sizes[names.index(free[0])] == 0 and draw(st.booleans())
        axes.append(free.pop(0) if fits else None)
    return put(array, *axes, on=mesh(sizes, names))


TREES = st.recursive(
    arrays(),
    lambda inner: (
        st.dictionaries(NAMES, inner, min_size=1, max_size=3)
        | st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


def collides(tree: Any) -> bool:
    names = list(expected_arrays(tree))
    return len({n.replace("/", ".") for n in names}) < len(names)


@settings(max_examples=examples(15))
@given(
    tree=st.dictionaries(NAMES, TREES, min_size=1, max_size=3),
    use_ocdbt=st.booleans(),
    use_zarr3=st.booleans(),
    use_compression=st.booleans(),
    chunk_byte_size=st.sampled_from([None, 16, 64]),
)
def test_random_trees(tree, chunk_byte_size, tmp_path_factory, **options):
    assume(not collides(tree))
    directory = tmp_path_factory.mktemp("random")
    save_pytree(directory / "c", tree, chunk_byte_size=chunk_byte_size, **options)
    reader = open_orbax(locate(directory / "c").view())
    expected = expected_arrays(tree)
    assert set(reader.tensors) == set(expected)
    for name, array in expected.items():
        assert_same(read_tensor(reader, name), array, name)
    shutil.rmtree(directory)
