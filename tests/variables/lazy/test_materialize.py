"""Lazy variables of plain objects get values, laid out by their paths."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from reshard import DeviceMesh, LayoutError, LayoutMap, TensorLayout, VariableError
from reshard.variables import Variable, create, materialize, named_variables
from tests.variables.models import PATHS, Model, layouts, mesh

RULES = {
    "d1.kernel": ("data", "model"),
    "d1.bias": ("model",),
    r"blk\.lst\.\d\.kernel": (None, "model"),
    "table": (("data", "model"),),
    ".*bias": ("data",),
    "rng": (),
}
SPECS = {
    "d1.kernel": P("data", "model"),
    "d1.bias": P("model"),
    "d2.bias": P("data"),
    "blk.a.bias": P("data"),
    "blk.lst.0.kernel": P(None, "model"),
    "blk.lst.0.bias": P("data"),
    "blk.lst.1.kernel": P(None, "model"),
    "blk.lst.1.bias": P("data"),
    "table": P(("data", "model")),
}


def lazy_model() -> Model:
    with layouts(**RULES).scope():
        return Model()


def test_each_variable_has_the_layout_of_its_path() -> None:
    model = materialize(lazy_model())
    found = named_variables(model)
    assert list(found) == PATHS
    assert {path: v.sharding.spec for path, v in found.items()} == dict.fromkeys(PATHS, P()) | SPECS
    assert all(v.sharding.mesh == mesh().backend_mesh for v in found.values())


def test_every_bit_is_as_without_the_scope() -> None:
    lazy, plain = named_variables(materialize(lazy_model())), named_variables(Model())
    for path in PATHS:
        here, there = lazy[path].value, plain[path].value
        if path == "rng":
            here, there = jax.random.key_data(here), jax.random.key_data(there)
        assert here.dtype == there.dtype, path
        assert np.asarray(here).tobytes() == np.asarray(there).tobytes(), path


def test_a_device_holds_its_shard_and_no_more() -> None:
    model = materialize(lazy_model())
    assert {s.data.shape for s in model.d1.kernel.value.addressable_shards} == {(8, 2)}
    assert {s.data.shape for s in model.table.value.addressable_shards} == {(2, 4)}


def test_a_value_made_by_numpy_is_handed_out_in_slices() -> None:
    asked: list[tuple[int, ...]] = []

    class Watched(np.ndarray):
        def __getitem__(self, index):
            part = np.asarray(super().__getitem__(index))
            asked.append(part.shape)
            return part

    values = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    with layouts(w=("model",)).scope():
        root = {"w": Variable(values.view(Watched))}
    assert asked == []
    assert np.array_equal(materialize(root)["w"].value, values)
    assert set(asked) == {(2, 4)}


def test_jax_arrays_get_a_new_layout() -> None:
    values = jnp.arange(8)
    with layouts(w=("data",)).scope():
        root = {"w": Variable(values)}
    assert materialize(root)["w"].sharding.spec == P("data")
    assert np.array_equal(root["w"].value, values)


def test_an_empty_map_replicates_everything() -> None:
    with LayoutMap(mesh()).scope():
        model = Model()
    for variable in named_variables(materialize(model)).values():
        assert variable.value.is_fully_replicated
        assert len(variable.value.addressable_shards) == 8


def test_random_state_is_always_replicated() -> None:
    with layouts(**{".*": ("model",)}).scope():
        root = {
            "keys": Variable(jax.random.split(jax.random.key(0), 4)),
            "w": Variable(jnp.ones, (4,)),
        }
    materialize(root)
    assert root["keys"].value.is_fully_replicated
    assert root["w"].sharding.spec == P("model")


def test_dataclasses_and_tuples_keep_their_objects() -> None:
    @dataclass(frozen=True)
    class Frozen:
        kernel: Variable
        rest: tuple[Variable, ...]

    with layouts(**{"rest.1": ("data",)}).scope():
        frozen = Frozen(
            Variable(jnp.ones, (2,)), (Variable(jnp.ones, (2,)), Variable(jnp.ones, (2,)))
        )
    rest = frozen.rest
    assert materialize(frozen) is frozen
    assert frozen.rest is rest
    assert [v.sharding.spec for v in rest] == [P(), P("data")]


def test_a_shared_variable_is_made_once_by_its_first_path() -> None:
    with layouts(tied=("model",), **{"d1.kernel": ("data",)}).scope():
        model = Model()
    materialize(model)
    assert model.tied is model.d1.kernel
    assert model.tied.sharding.spec == P("data")


def test_variables_remember_the_map_of_their_scope() -> None:
    with layouts(**{".*": ("data",)}).scope():
        outer = Variable(jnp.ones, (8,))
        with layouts(**{".*": ("model",)}).scope():
            inner = Variable(jnp.ones, (8,))
        after = Variable(jnp.ones, (8,))
        materialize([outer, inner])
    materialize([after])
    assert [v.sharding.spec for v in (outer, inner, after)] == [P("data"), P("model"), P("data")]


def test_what_lives_already_is_left_alone() -> None:
    alive = Variable(jnp.ones, (8,))
    value = alive.value
    with layouts(**{".*": ("data",)}).scope():
        root = [alive, Variable(jnp.ones, (8,))]
    materialize(root)
    assert alive.value is value
    assert root[1].sharding.spec == P("data")


def test_equal_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = jax.jit
    monkeypatch.setattr(jax, "jit", lambda *a, **k: made.append(a) or real(*a, **k))
    normal = jax.nn.initializers.normal(0.02)
    with layouts(**{".*": ("data",)}).scope():
        root = [Variable(normal, (8, 8), key=jax.random.key(i)) for i in range(10)]
    materialize(root)
    assert 0 < len(made) < 10


def test_axis_types_are_kept() -> None:
    explicit = DeviceMesh((8,), ("x",), jax.devices(), axis_types=["Explicit"])
    made = LayoutMap(explicit)
    made["w"] = ("x",)
    with made.scope():
        root = {"w": Variable(jax.nn.initializers.normal(), (8, 4), key=jax.random.key(0))}
    assert materialize(root)["w"].sharding == made["w"].backend_layout


def test_a_mesh_that_jax_has_set_does_not_disturb() -> None:
    with jax.set_mesh(mesh().backend_mesh), layouts(w=("data",)).scope():
        root = materialize({"w": Variable(jnp.ones, (8, 4))})
        tree = create(lambda: {"w": jnp.ones((8, 4))})
    assert root["w"].sharding.spec == tree["w"].sharding.spec == P("data")


def test_a_mesh_of_explicit_axes_that_jax_has_set_is_refused() -> None:
    explicit = DeviceMesh((8,), ("x",), jax.devices(), axis_types=["Explicit"])
    with layouts().scope():
        root = {"w": Variable(jnp.ones, (8,))}
    with (
        jax.set_mesh(explicit.backend_mesh),
        pytest.raises(
            VariableError, match=r"while jax\.set_mesh is in force with axes of type Explicit \(x\)"
        ),
    ):
        materialize(root)
    assert materialize(root)["w"].value.is_fully_replicated


def test_a_key_on_another_device_will_do() -> None:
    key = jax.device_put(jax.random.key(3), jax.devices()[7])
    four = DeviceMesh((4,), ("x",), jax.devices()[:4])
    made = LayoutMap(four)
    made["w"] = ("x",)
    with made.scope():
        root = {"w": Variable(jax.nn.initializers.normal(), (8, 4), key=key)}
    plain = Variable(jax.nn.initializers.normal(), (8, 4), key=key)
    assert np.array_equal(materialize(root)["w"].value, plain.value)


def test_materialising_twice_is_refused() -> None:
    model = materialize(lazy_model())
    with pytest.raises(
        VariableError,
        match="none of the 12 variables of this Model is lazy: they were materialised before",
    ):
        materialize(model)


def test_nothing_to_materialise_is_refused() -> None:
    with pytest.raises(
        VariableError, match="no variable was found in the attributes, lists and dicts"
    ):
        materialize({"a": 3})


def refuse(made: LayoutMap, shape: tuple[int, ...] = (6, 8)) -> None:
    """``d1.kernel`` cannot be made; what stands beside it stays lazy too."""
    with made.scope():
        root = {"a": Variable(jnp.ones, (4,)), "d1": {"kernel": Variable(jnp.ones, shape)}}
    try:
        materialize(root)
    finally:
        assert root["a"].is_lazy and root["d1"]["kernel"].is_lazy


def test_an_indivisible_dimension_names_the_path() -> None:
    with pytest.raises(
        LayoutError, match=r"'d1\.kernel' of shape \[6, 8\]: dimension 0 of size 6 does not"
    ):
        refuse(layouts(**{"d1.kernel": ("model",)}))


def test_a_layout_of_too_many_axes_names_the_path() -> None:
    with pytest.raises(
        LayoutError, match=r"'d1\.kernel' has 1 dimensions .*more axes than dimensions: 2"
    ):
        refuse(layouts(**{"d1.kernel": (None, "model")}), (8,))


def test_a_mesh_without_devices_takes_all_there_are() -> None:
    made = LayoutMap(DeviceMesh((8,), ("model",)))
    made["w"] = ("model",)
    with made.scope():
        root = {"w": Variable(jnp.ones, (8,))}
    assert len(materialize(root)["w"].sharding.device_set) == 8


def test_a_mesh_that_the_devices_do_not_fill_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"'a' cannot get its value: .*\(model=4\)"):
        refuse(LayoutMap(DeviceMesh((4,), ("model",))))


def test_an_abstract_layout_takes_the_devices_of_the_default_mesh() -> None:
    made = LayoutMap(mesh())
    made["w"] = TensorLayout(("model",), mesh().abstract)
    with made.scope():
        root = {"w": Variable(jnp.ones, (8,))}
    assert materialize(root)["w"].sharding.spec == P("model")


def test_a_layout_of_another_mesh_is_refused() -> None:
    made = LayoutMap(mesh())
    four = DeviceMesh((4,), ("model",), jax.devices()[:4])
    made["d1.kernel"] = TensorLayout((None, "model"), four)
    with pytest.raises(
        LayoutError,
        match=r"layout of 'd1\.kernel' has another mesh than the layout map: .* has devices \[0, 1, 2, 3\], the",
    ):
        refuse(made)


def test_other_axes_over_the_same_devices_are_no_other_mesh() -> None:
    made = LayoutMap(mesh())
    made["w"] = TensorLayout(("all",), DeviceMesh((8,), ("all",), jax.devices()))
    with made.scope():
        root = {"w": Variable(jnp.ones, (8,))}
    assert materialize(root)["w"].sharding.spec == P("all")


def test_a_map_without_a_mesh_cannot_replicate() -> None:
    with pytest.raises(
        LayoutError, match="'a' matches no key, so it is replicated, but the layout map"
    ):
        refuse(LayoutMap())
    with (
        LayoutMap().scope(),
        pytest.raises(LayoutError, match="'k' is the state of a random number"),
    ):
        materialize({"k": Variable(jax.random.key(0))})


def test_an_initializer_of_another_shape_changes_nothing() -> None:
    with layouts().scope():
        root = {
            "a": Variable(jnp.ones, (4,)),
            "w": Variable(lambda _, d: jnp.ones((3, 2), d), (2, 3)),
        }
    with pytest.raises(
        VariableError,
        match=r"the initializer of 'w' must return shape \[2, 3\] and dtype float32, but returned shape \[3, 2\]",
    ):
        materialize(root)
    assert root["a"].is_lazy
