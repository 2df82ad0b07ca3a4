"""A variable goes through jax's functions as a tree of its shards, and cannot be changed in them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from reshard import IndexedSlices, ReshardError, ShardedVariable, VariableError

WHOLE = np.arange(14, dtype=np.float32).reshape(7, 2)


@pytest.fixture(params=["div", "mod"])
def variable(request: pytest.FixtureRequest) -> ShardedVariable:
    return ShardedVariable.split(WHOLE, 3, "w", partition_strategy=request.param)


def test_shards_are_the_leaves(variable: ShardedVariable) -> None:
    leaves, _ = jax.tree_util.tree_flatten_with_path({"layer": variable})
    assert [jax.tree_util.keystr(path) for path, _ in leaves] == [
        f"['layer'][{i}]" for i in range(3)
    ]
    assert all(leaf is shard for (_, leaf), shard in zip(leaves, variable, strict=True))
    doubled = jax.tree.map(lambda x: x * 2, variable)
    assert (doubled.name, doubled.partition_strategy) == ("w", variable.partition_strategy)
    np.testing.assert_array_equal(doubled.numpy(), WHOLE * 2)


def test_anything_may_stand_for_a_shard(variable: ShardedVariable) -> None:
    shapes = jax.tree.map(lambda x: x.shape, variable)
    assert isinstance(shapes, ShardedVariable)
    assert shapes.variables == [(3, 2), (2, 2), (2, 2)]
    assert "w" in repr(jax.tree.map(lambda _: None, variable))
    structs = jax.eval_shape(lambda v: v, variable)
    assert (structs.shape, structs.dtype) == ((7, 2), np.float32)


def test_a_copy_on_the_host_is_a_variable_too(variable: ShardedVariable) -> None:
    host = jax.device_get(variable)
    assert all(isinstance(shard, np.ndarray) for shard in host)
    np.testing.assert_array_equal(host.numpy(), WHOLE)
    np.testing.assert_array_equal(host[1:6], WHOLE[1:6])
    np.testing.assert_array_equal(jnp.asarray(host), WHOLE)
    np.testing.assert_array_equal(host.scatter_add([6], [[1, 1]])[6], WHOLE[6] + 1)
    np.testing.assert_array_equal(jax.device_get(variable).assign(WHOLE * 2), WHOLE * 2)


def test_what_is_no_array_is_not_read(variable: ShardedVariable) -> None:
    sums = jax.tree.map(jnp.sum, variable)
    with pytest.raises(
        VariableError, match=r"the shards of 'w' are not arrays along axis 0 but \(\),"
    ):
        print(sums.shape)
    for leaf in (None, 1.0, jax.ShapeDtypeStruct((1, 2), np.float32)):
        filled = jax.tree.map(lambda _, leaf=leaf: leaf, variable)
        for use in (filled.numpy, lambda v=filled: v + 1, lambda v=filled: v[0]):
            with pytest.raises(ReshardError, match=r"shards? of 'w'"):
                use()


def test_trees_of_other_shard_counts_do_not_match(variable: ShardedVariable) -> None:
    other = ShardedVariable.split(WHOLE, 2, "w", partition_strategy=variable.partition_strategy)
    with pytest.raises(
        ValueError, match=r"(?s)with 3 child keys\n    0 1 2\n.*2 child keys\n    0 1\n"
    ):
        jax.tree.map(jnp.add, variable, other)


def test_two_threads_may_make_the_first_of_a_class() -> None:
    ready = Barrier(4)

    def make(kind: Any) -> int:
        ready.wait()
        return len(jax.tree.leaves(kind([WHOLE])))

    for turn in range(20):
        kind = type(f"Kind{turn}", (ShardedVariable,), {})
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(make, [kind] * 4)) == [1] * 4


def test_tree_structures_differ_by_name_axis_and_strategy(variable: ShardedVariable) -> None:
    others = [
        ShardedVariable.split(WHOLE, 3, "other", partition_strategy=variable.partition_strategy),
        ShardedVariable.split(WHOLE, 3, "w", axis=1),
        ShardedVariable.split(WHOLE, 2, "w", partition_strategy=variable.partition_strategy),
    ]
    structure = jax.tree.structure(variable)
    assert all(jax.tree.structure(other) != structure for other in others)


def test_jit_and_grad(variable: ShardedVariable) -> None:
    out = jax.jit(lambda v: jax.tree.map(lambda x: x + 1, v))(variable)
    np.testing.assert_array_equal(out.numpy(), WHOLE + 1)
    assert jax.jit(lambda v: (jnp.asarray(v) ** 2).sum())(variable) == (WHOLE**2).sum()
    grad = jax.jit(jax.grad(lambda v: (jnp.asarray(v) ** 2).sum()))(variable)
    assert isinstance(grad, ShardedVariable)
    np.testing.assert_array_equal(grad.numpy(), 2 * WHOLE)


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_shards_on_different_devices(strategy: str) -> None:
    devices = jax.devices()[1:4]
    variable = ShardedVariable.split(WHOLE, 3, partition_strategy=strategy, devices=devices)
    ids = jnp.array([0, 6, 4, 2])
    losses: list[Any] = [
        lambda v: (jnp.asarray(v)[ids] ** 2).sum(),
        lambda v: (v[np.asarray(ids)] ** 2).sum(),
        lambda v: (v.embedding_lookup([0, 6, 4, 2]) ** 2).sum(),
    ]
    expected = np.zeros_like(WHOLE)
    expected[ids] = 2 * WHOLE[ids]
    for loss in losses:
        gradient = jax.grad(loss)(variable)
        np.testing.assert_array_equal(gradient.numpy(), expected)
        assert [shard.devices() for shard in gradient] == [{d} for d in devices]
    rows = jax.lax.scan(lambda c, i: (c, variable.embedding_lookup(i)), 0, ids)[1]
    np.testing.assert_array_equal(rows, WHOLE[ids])
    np.testing.assert_array_equal(jax.jit(variable.sparse_read)(ids), WHOLE[ids])


def test_meshes_that_differ_in_the_order_of_devices() -> None:
    devices = np.array(jax.devices()[:2])
    shards = [
        jax.device_put(WHOLE[:4], NamedSharding(Mesh(order, ("x",)), PartitionSpec("x")))
        for order in (devices, devices[::-1])
    ]
    np.testing.assert_array_equal(jnp.asarray(ShardedVariable(shards)), [*WHOLE[:4], *WHOLE[:4]])


@pytest.mark.parametrize("jit", [False, True])
def test_gradient_of_a_lookup(variable: ShardedVariable, jit: bool) -> None:
    def loss(v: ShardedVariable, ids: Any) -> jax.Array:
        return v.embedding_lookup(ids).sum()

    grad = jax.grad(loss)
    found = (jax.jit(grad) if jit else grad)(variable, jnp.array([[0, 6], [6, 3]]))
    np.testing.assert_array_equal(found.numpy()[:, 0], [1, 0, 0, 1, 0, 0, 2])


def test_optimizers_keep_their_state_in_shards(variable: ShardedVariable) -> None:
    optimizer = optax.adam(0.1)
    state = optimizer.init({"w": variable})
    assert isinstance(state[0].mu["w"], ShardedVariable)
    gradient = jax.grad(lambda p: jnp.sum(jnp.asarray(p["w"]) ** 2))({"w": variable})
    updates, _ = optimizer.update(gradient, state)
    changed = optax.apply_updates({"w": variable}, updates)["w"]
    assert isinstance(changed, ShardedVariable)
    assert np.all(changed.numpy()[1:] < WHOLE[1:])


CHANGES = {
    "assign": lambda v, x: v.assign(x),
    "assign_add": lambda v, x: v.assign_add(x),
    "scatter_add": lambda v, x: v.scatter_add([0], x[:1]),
    "scatter_update": lambda v, x: v.scatter_update(IndexedSlices(x[:1], [0])),
    "batch_scatter_update": lambda v, x: v.batch_scatter_update([0], x[:1]),
}


@pytest.mark.parametrize("method", CHANGES)
def test_no_change_under_tracing(variable: ShardedVariable, method: str) -> None:
    change = CHANGES[method]
    ones = jnp.ones((7, 2), jnp.float32)
    message = f"{method} would change 'w' while jax traces a function"

    def closed_over(x: Any) -> Any:
        return (change(variable, ones), x)[1]

    def argument(v: ShardedVariable) -> Any:
        return change(v, ones)

    def traced_values(x: Any) -> Any:
        return (change(variable, x), x.sum())[1]

    cases: list[tuple[Any, Any]] = [
        (jax.jit(closed_over), 1.0),
        (jax.jit(argument), variable),
        (jax.grad(lambda v: jnp.asarray(argument(v)).sum()), variable),
        (jax.grad(traced_values), ones),
        (jax.vmap(traced_values), ones[None]),
        (lambda x: jax.lax.scan(lambda c, y: (closed_over(c), y), x, ones), 1.0),
        (lambda x: jax.eval_shape(closed_over, x), 1.0),
        (jax.grad(closed_over), 1.0),
        (jax.vmap(closed_over), ones),
    ]
    for function, given in cases:
        with pytest.raises(VariableError, match=message):
            function(given)
    np.testing.assert_array_equal(variable.numpy(), WHOLE)
    assert not any(isinstance(v, jax.core.Tracer) for v in variable)
