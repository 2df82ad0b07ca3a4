"""Restoring onto a target tree: structure, names, dtypes, partial trees."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from tests.equal import assert_same, assert_same_trees
from tests.orbax_trees import mesh, put, save_pytree, save_standard, small_tree

Struct = jax.ShapeDtypeStruct


def as_structs(tree, sharding=None):
    return jax.tree.map(
        lambda leaf: (
            Struct(leaf.shape, leaf.dtype, sharding=sharding)
            if isinstance(leaf, jax.Array | np.ndarray)
            else leaf
        ),
        tree,
    )


def test_live_trees_keep_structure_shardings_and_kinds(small):
    tree = small_tree()
    found = reshard.restore(small, tree)
    assert_same_trees(found, tree)
    assert isinstance(found["opt"][0], type(tree["opt"][0]))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert type(a) is type(b)
        if isinstance(b, jax.Array):
            assert a.sharding.is_equivalent_to(b.sharding, b.ndim)


def test_structs_go_where_their_shardings_say_and_equal_what_orbax_restores(small):
    sharding = NamedSharding(mesh((2, 4), ("a", "b")), PartitionSpec())
    target = as_structs({k: v for k, v in small_tree().items() if k != "key"}, sharding)
    target["params"]["dense"]["kernel"] = Struct(
        (64, 64), jnp.float32, sharding=NamedSharding(sharding.mesh, PartitionSpec("b", "a"))
    )
    found = reshard.restore(small, target, drop=["^key$"])
    target["key"] = jax.random.key(0)
    theirs = ocp.StandardCheckpointer().restore(small, target)
    del theirs["key"]
    assert_same_trees(found, theirs)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(theirs), strict=True):
        assert getattr(a, "sharding", None) == getattr(b, "sharding", None)


def test_a_struct_without_a_sharding_is_free_to_follow_other_arrays(small):
    found = reshard.restore(
        small, {"opt": [{"count": Struct((), jnp.int32)}]}, select=["opt/0/count"]
    )
    count = found["opt"][0]["count"]
    assert not count.committed
    assert_same(count + put(np.int32(1)), np.int32(1))


def test_keys_are_restored_as_keys_or_as_their_data(small):
    sharding = NamedSharding(mesh((4,), ("x",)), PartitionSpec("x"))
    keys = jax.random.split(jax.random.key(3), 4)
    target = {"keys": Struct((4,), keys.dtype, sharding=sharding), "key": Struct((2,), jnp.uint32)}
    found = reshard.restore(small, target, select=["^key"])
    assert_same(found["keys"], keys)
    assert found["keys"].dtype == keys.dtype
    assert found["keys"].sharding.is_equivalent_to(sharding, 1)
    assert_same(found["key"], jax.random.key_data(jax.random.key(7)))


def test_an_nnx_state_with_its_optimizer_comes_back_whole(tmp_path):
    model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
    state = nnx.state((model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)))
    path = save_standard(tmp_path / "c", state)
    abstract = jax.tree.map(lambda x: Struct(x.shape, x.dtype), state)
    assert_same_trees(reshard.restore(path, abstract), state)


def test_registered_dataclasses_match_by_attribute_name(tmp_path):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        weights: jax.Array
        steps: list[jax.Array]

    state = State(jnp.arange(6.0), [jnp.int32(3)])
    path = save_pytree(tmp_path / "c", state)
    found = reshard.restore(path, as_structs(state))
    assert isinstance(found, State)
    assert_same_trees(found, state)


def test_a_dtype_that_loses_nothing_needs_no_rule(tmp_path):
    tree = {"w": np.arange(4).astype(jnp.bfloat16), "n": np.arange(3, dtype=np.int8)}
    path = save_pytree(tmp_path / "c", tree)
    found = reshard.restore(path, {"w": Struct((4,), jnp.float32), "n": Struct((3,), jnp.int32)})
    assert_same_trees(found, {"w": jnp.arange(4.0), "n": jnp.arange(3)})


def test_what_can_lose_something_needs_a_rule(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": np.ones(4, np.float32), "n": np.int32([3])})
    target = {"w": Struct((4,), jnp.bfloat16), "n": Struct((1,), jnp.float32)}
    with pytest.raises(reshard.TreeError) as refused:
        reshard.restore(path, target)
    assert "w is float32, but bfloat16 is asked for; cast=[('w', 'bfloat16')] converts it" in str(
        refused.value
    )
    assert "n is int32, but float32 is asked for; cast=[('n', 'float32')] converts it" in str(
        refused.value
    )
    found = reshard.restore(path, target, cast=[("w", "bfloat16"), ("n", "float32")])
    assert_same_trees(found, {"w": jnp.ones(4, jnp.bfloat16), "n": jnp.float32([3])})
    with pytest.raises(reshard.TreeError, match="w is cast to float16, but bfloat16 is asked for"):
        reshard.restore(path, target, cast=[("w", "float16"), ("n", "float32")])


def test_partial_trees_may_have_fewer_or_more_leaves_when_asked(tmp_path):
    path = save_pytree(tmp_path / "c", {"a": np.arange(3), "b": np.arange(4), "text": "t"})
    kept = np.full(2, 9)
    found = reshard.restore(path, {"a": np.zeros(3, int)}, unexpected="ignore")
    assert_same_trees(found, {"a": np.arange(3)})
    found = reshard.restore(
        path, {"a": np.zeros(3, int), "new": kept}, unexpected="ignore", missing="keep"
    )
    assert_same_trees(found, {"a": np.arange(3), "new": kept})
    assert found["new"] is kept


def test_one_error_names_everything_that_does_not_fit(tmp_path):
    path = save_pytree(
        tmp_path / "c",
        {
            "a": np.zeros((2, 3), np.float32),
            "b": np.zeros(2),
            "c": np.zeros(1),
            "text": "t",
            "n": 3,
        },
    )
    target = {
        "a": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.int32), "new": np.zeros(5, np.int8),
        "text": np.zeros(1), "n": 1.5,
    }  # fmt: skip
    with pytest.raises(reshard.TreeError) as refused:
        reshard.restore(path, target)
    assert str(refused.value).splitlines() == [
        f"the request does not fit the checkpoint {path}:",
        "  asked for, but not in the checkpoint: 1 (rename= gives stored leaves other names, missing='keep' leaves "
        "these as they are)",
        "    new (int8 of shape [5])",
        "  in the checkpoint, but not asked for: 1 (unexpected='ignore' leaves them out, and so does drop=)",
        "    c (float64 of shape [1])",
        "  of another kind: 1",
        "    text is a string, but float64 of shape [1] is asked for",
        "  of another shape: 1",
        "    a has shape [2, 3], but [3, 2] is asked for",
        "  of another dtype: 2",
        "    n is int64, but a float is asked for",
        "    b is float64, but int32 is asked for; cast=[('b', 'int32')] converts it",
    ]


def test_long_lists_are_cut_with_a_count(tmp_path):
    path = save_pytree(tmp_path / "c", {"a": np.zeros(1)})
    target = {f"x{i:02d}": np.zeros(1) for i in range(50)}
    with pytest.raises(reshard.TreeError) as refused:
        reshard.restore(path, target, unexpected="ignore")
    assert "not in the checkpoint: 50" in str(refused.value)
    assert "x19 " in str(refused.value)
    assert "x20 " not in str(refused.value)
    assert "… and 30 more" in str(refused.value)


def test_what_nothing_can_be_restored_onto_is_refused(small):
    with pytest.raises(
        reshard.TreeError,
        match=r"2 leaves .* a is of type set, b is of type object; expected jax.Shape",
    ):
        reshard.restore(small, {"a": {1}, "b": object()})
    with pytest.raises(reshard.TreeError, match=r"a leaf .*: a is the class ShapeDtypeStruct"):
        reshard.restore(small, {"a": jax.ShapeDtypeStruct})
    with pytest.raises(
        reshard.TreeError, match=r"a is a tracer of jax \(restore outside of jax.jit"
    ):
        jax.jit(lambda a: reshard.restore(small, {"a": a}))(np.zeros(3))
    with pytest.raises(
        reshard.TreeError, match=r"the tree \(like\) is not a tree that jax can walk"
    ):
        reshard.restore(small, {1: np.zeros(1), "a": np.zeros(1)})
    with pytest.raises(reshard.TreeError, match=r"two leaves of the tree \(like\) are named 'a/b'"):
        reshard.restore(small, {"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)})


def test_trees_in_a_circle(small):
    circle = {"a": [1]}
    circle["a"].append(circle)
    for what, asked in ((r"tree \(like\)", {"like": circle}), ("layout", {"layout": circle})):
        with pytest.raises(reshard.TreeError, match=f"the {what} contains itself, or nests more"):
            reshard.restore(small, **asked)


def test_a_numpy_array_of_another_byte_order_is_a_target_too(tmp_path):
    saved = {"a": np.arange(6, dtype=">f8")}
    reshard.save(tmp_path / "c", saved)
    assert_same_trees(reshard.restore(tmp_path / "c", saved), {"a": np.arange(6.0)})


def test_jax_is_not_let_to_narrow_a_dtype(tmp_path):
    path = save_pytree(tmp_path / "c", {"n": np.arange(3)})
    layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    layout["n"] = (None,)
    with pytest.raises(
        reshard.TreeError,
        match="n is int64, which jax would narrow to int32; set jax_enable_x64, take it out of the layout, "
        "so that it stays a numpy array, or cast=",
    ):
        reshard.restore(path, layout=layout)
    assert reshard.restore(path, layout=layout, cast=[("n", "int32")])["n"].dtype == jnp.int32
    with jax.enable_x64(True):
        assert reshard.restore(path, layout=layout)["n"].dtype == jnp.int64


def test_the_default_device_of_the_caller_counts(tmp_path):
    path = save_pytree(tmp_path / "c", {"n": np.float32([1])})
    device = jax.devices()[3]
    with jax.default_device(device):
        found = reshard.restore(path, {"n": Struct((1,), jnp.float32)})["n"]
        table = reshard.restore(path, partition=1)["n"]
    assert found.devices() == table.variables[0].devices() == {device}
    assert not found.committed


def test_a_bare_array_is_a_tree_too(tmp_path):
    path = save_pytree(tmp_path / "c", {"a": np.arange(3)})
    with pytest.raises(reshard.TreeError, match=r"\(the whole tree\) \(float64 of shape \[3\]\)"):
        reshard.restore(path, np.zeros(3))
