"""Restoring onto real meshes: every layout form, any mesh to any other, compared with stock Orbax."""

from __future__ import annotations

import math

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import reshard
from tests.campaigns import examples
from tests.equal import assert_same
from tests.orbax_trees import mesh, put, save_pytree, save_standard

MESH = reshard.DeviceMesh((2, 4), ("a", "b"))
REAL = mesh((2, 4), ("a", "b"))
P = PartitionSpec


def layout_map(**axes):
    layouts = reshard.LayoutMap(MESH)
    for pattern, entry in axes.items():
        layouts[pattern] = entry
    return layouts


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(5)
    tree = {
        "dense": {"kernel": put(rng.normal(size=(16, 32)).astype(np.float32), "data", "model"),
                  "bias": put(rng.normal(size=8).astype(np.float32))},
        "table": put(rng.integers(0, 9, (24, 8)).astype(np.int32), ("data", "model")),
    }  # fmt: skip
    return save_standard(tmp_path_factory.mktemp("layouts") / "c", tree), tree


def check(found, source_tree, **specs):
    """The same values everywhere, under the named specs and else replicated, over all of ``REAL``."""
    flat = {
        "kernel": found["dense"]["kernel"],
        "bias": found["dense"]["bias"],
        "table": found["table"],
    }
    expected = {**source_tree["dense"], "table": source_tree["table"]}
    for name, array in flat.items():
        assert_same(array, expected[name], name)
        wanted = NamedSharding(REAL, specs.get(name, P()))
        assert array.sharding.is_equivalent_to(wanted, array.ndim), name
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, np.asarray(expected[name])[shard.index])


FORMS = {
    "map": layout_map(kernel=("b", "a"), table=(None, "b")),
    "file": {
        "mesh": {"axes": ["a", "b"], "shape": [2, 4]},
        "rules": [{"match": "kernel", "axes": ["b", "a"]}, {"match": "table", "axes": [None, "b"]}],
    },
    "tree of layouts": {
        "dense": {"kernel": reshard.TensorLayout(("b", "a"), MESH), "bias": reshard.TensorLayout((), MESH)},
        "table": reshard.TensorLayout((None, "b"), MESH),
    },
    "prefix of shardings": {
        "dense": {"kernel": NamedSharding(REAL, P("b", "a")), "bias": NamedSharding(REAL, P())},
        "table": NamedSharding(AbstractMesh((2, 4), ("a", "b")), P(None, "b")),
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_layout(source, form):
    path, tree = source
    check(reshard.restore(path, layout=FORMS[form]), tree, kernel=P("b", "a"), table=P(None, "b"))


def test_a_layout_file_by_its_path(source, tmp_path):
    path, tree = source
    file = tmp_path / "layout.yaml"
    file.write_text("mesh: {axes: [a, b], shape: [2, 4]}\nrules: [{match: kernel, axes: [b, a]}]\n")
    check(reshard.restore(path, layout=file), tree, kernel=P("b", "a"))


def test_a_layout_files_own_changes_apply(source):
    path, tree = source
    changes = {
        "select": ["dense"],
        "rename": [{"match": "^dense/", "to": ""}],
        "cast": [{"match": "bias", "dtype": "bfloat16"}],
    }
    found = reshard.restore(path, layout=changes, drop=["kernel"])
    assert isinstance(found["bias"], np.ndarray)  # it says nothing of where tensors go
    assert_same(found["bias"], np.asarray(tree["dense"]["bias"].astype("bfloat16")))
    assert set(found) == {"bias"}


def test_keys_are_split_by_their_own_dimensions(tmp_path):
    keys = jax.random.split(jax.random.key(3), 4)
    path = save_pytree(tmp_path / "c", {"keys": keys})
    found = reshard.restore(path, layout=layout_map(keys=("b",)))["keys"]
    assert found.sharding.spec == P("b")
    assert_same(found, keys)
    with pytest.raises(reshard.LayoutError, match="'keys' has 1 dimensions"):
        reshard.restore(path, layout=layout_map(keys=(None, "a")))


def test_one_sharding_stands_for_the_whole_tree(source):
    path, tree = source
    check(reshard.restore(path, layout=NamedSharding(REAL, P())), tree)
    found = reshard.restore(path, layout=SingleDeviceSharding(jax.devices()[5]))
    assert found["table"].devices() == {jax.devices()[5]}


def test_a_mesh_with_its_own_devices_uses_them_in_its_order(source):
    path, tree = source
    devices = jax.devices()[::-1][:4]
    layouts = reshard.LayoutMap(reshard.DeviceMesh((4,), ("m",), devices))
    layouts["table"] = ("m",)
    found = reshard.restore(path, layout=layouts)["table"]
    assert_same(found, tree["table"])
    assert [
        s.device for s in sorted(found.addressable_shards, key=lambda s: s.index[0].start)
    ] == devices


def test_the_layout_overrides_a_targets_sharding_where_it_names_a_tensor(source):
    path, tree = source
    structs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(REAL, P("a"))), tree
    )
    found = reshard.restore(path, structs, layout_map(kernel=(None, "b")))
    check(found, tree, kernel=P(None, "b"), bias=P("a"), table=P("a"))


def test_replicas_on_this_host_share_what_was_read_once(source):
    path, _ = source
    reports = []
    found = reshard.restore(path, layout=layout_map(), select=["kernel"], report=reports.append)
    shards = found["dense"]["kernel"].addressable_shards
    assert len({s.data.unsafe_buffer_pointer() for s in shards}) == 1
    assert reports[0].amplification == 1.0


def test_arrays_survive_donation_and_each_other(source):
    path, tree = source
    found = reshard.restore(path, layout=layout_map(), select=["table"])["table"]
    again = reshard.restore(path, layout=layout_map(), select=["table"])["table"]
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(found))
    assert_same(again, tree["table"])


AXES = [None, "a", "b", ("a", "b"), ("b", "a")]


@st.composite
def meshes(draw):
    shape = draw(st.sampled_from([(1, 8), (2, 4), (4, 2), (8, 1), (2, 2), (1, 3)]))
    return mesh(shape, ("a", "b"))


def specs(rank):
    def distinct(axes):
        used = [n for a in axes if a for n in ([a] if isinstance(a, str) else a)]
        return len(used) == len(set(used))

    return st.lists(st.sampled_from(AXES), min_size=rank, max_size=rank).filter(distinct)


@st.composite
def moves(draw):
    """An array on one mesh, and a sharding of it over another."""
    rank = draw(st.integers(0, 3))
    ends = [(draw(meshes()), draw(specs(rank))) for _ in range(2)]
    shape = []
    for dim in range(rank):
        ways = [
            math.prod(m.shape[n] for n in ([a[dim]] if isinstance(a[dim], str) else a[dim] or ()))
            for m, a in ends
        ]
        shape.append(math.lcm(*ways) * draw(st.integers(1, 2)))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int8", "int4"]))
    return tuple(shape), dtype, ends


SAVINGS = [
    {"use_ocdbt": False, "use_compression": False},
    {"use_zarr3": True},
    {},
    {"chunk_byte_size": 64},
]


@settings(max_examples=examples(20))
@given(moves(), st.sampled_from(SAVINGS), st.sampled_from(["16MiB", "1GiB"]))
def test_any_mesh_to_any_other(tmp_path_factory, move, saving, max_memory):
    shape, dtype, ((one, from_axes), (other, to_axes)) = move
    values = np.arange(math.prod(shape)).reshape(shape).astype(jax.numpy.dtype(dtype))
    path = tmp_path_factory.mktemp("any") / "c"
    save_pytree(path, {"w": put(values, *from_axes, on=one)}, **saving)
    sharding, reports = NamedSharding(other, P(*to_axes)), []
    found = reshard.restore(path, layout=sharding, max_memory=max_memory, report=reports.append)[
        "w"
    ]
    assert found.sharding == sharding
    assert_same(found, values)
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), values[shard.index])
    assert reports[0].amplification == 1.0


def test_stock_orbax_restores_the_same_onto_the_same_shardings(source):
    path, tree = source
    shardings = jax.tree.map(lambda x: NamedSharding(REAL, P("b") if x.ndim else P()), tree)
    structs = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings
    )
    ours, theirs = reshard.restore(path, structs), ocp.StandardCheckpointer().restore(path, structs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_same(a, b)
        assert a.sharding == b.sharding
        for mine, other in zip(a.addressable_shards, b.addressable_shards, strict=True):
            assert (mine.device, mine.index) == (other.device, other.index)
            np.testing.assert_array_equal(mine.data, other.data)
