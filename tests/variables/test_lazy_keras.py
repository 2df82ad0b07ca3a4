"""Keras models made in a scope: names as the Keras of dtensor gave them, values in shards."""

from __future__ import annotations

import gc
from typing import Any

import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from reshard import LayoutError, LayoutMap, VariableError
from reshard.variables import materialize
from reshard.variables.keras_objects import variables_with_keras
from tests.variables.models import layouts, mesh

RULES = {
    r".*d1\.kernel": ("data", "model"),
    r".*d1\.bias": ("model",),
    r"blk(_1)?\.lst\.0\.kernel": (None, "model"),
    r"blk(_1)?\.inner\.d2\.kernel": ("model",),
    r".*seed.*|drop.*": ("model",),
}


class Inner(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.d2 = keras.layers.Dense(8)

    def call(self, x: Any) -> Any:
        return self.d2(x)


class Block(keras.layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lst = [keras.layers.Dense(8), keras.layers.Dense(8)]
        self.by_name = {"x": keras.layers.Dense(8)}
        self.inner = Inner()

    def build(self, _: Any) -> None:
        self.w = self.add_weight(shape=(8,), name="scale", initializer="ones")

    def call(self, x: Any) -> Any:
        for layer in [*self.lst, self.by_name["x"], self.inner]:
            x = layer(x)
        return x * self.w


class Subclassed(keras.Model):
    def __init__(self, regularizer: Any = None) -> None:
        super().__init__()
        self.d1 = keras.layers.Dense(
            8,
            kernel_initializer=keras.initializers.RandomNormal(0.1, 0.7),
            kernel_regularizer=regularizer,
        )
        self.blk = Block()
        self.drop = keras.layers.Dropout(0.5)
        self.norm = keras.layers.BatchNormalization()
        self.head = keras.Sequential([keras.layers.Dense(4, name="out")])

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.drop(self.blk(self.d1(x)), training=training)
        return self.head(self.norm(x, training=training))


def subclassed(**options: Any) -> keras.Model:
    model = Subclassed(**options)
    model(keras.Input((8,)))
    return model


def functional() -> keras.Model:
    inputs = keras.Input((8,))
    x = keras.layers.Dense(8, name="d1")(inputs)
    x = keras.layers.Dropout(0.5, name="drop")(x)
    return keras.Model(inputs, Block(name="blk_1")(x))


def sequential() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(8, name="d1"),
            layers.Dropout(0.5, name="drop"),
            Block(name="blk_1"),
        ]
    )


BLOCK = {
    "lst.0.kernel": P(None, "model"), "lst.0.bias": P(), "lst.1.kernel": P(), "lst.1.bias": P(),
    "by_name.x.kernel": P(), "by_name.x.bias": P(), "inner.d2.kernel": P("model"), "inner.d2.bias": P(),
    "w": P(),
}  # fmt: skip
DENSE = {"d1.kernel": P("data", "model"), "d1.bias": P("model"), "drop.seed_generator.state": P()}
NAMED = {f"blk_1.{path}": spec for path, spec in BLOCK.items()}
NORM = {f"norm.{name}": P() for name in ("gamma", "beta", "moving_mean", "moving_variance")}
HEAD = {"head.out.kernel": P(), "head.out.bias": P()}

MODELS = {
    "subclassed": (subclassed, DENSE | {f"blk.{p}": s for p, s in BLOCK.items()} | NORM | HEAD),
    "functional": (functional, DENSE | NAMED),
    "sequential": (sequential, DENSE | NAMED),
}
every_model = pytest.mark.parametrize(("make", "specs"), MODELS.values(), ids=MODELS)


def made(make: Any, rules: LayoutMap) -> keras.Model:
    with rules.scope():
        model = make()
    return materialize(model)


@every_model
def test_variables_have_the_layouts_of_their_paths(make: Any, specs: dict[str, P]) -> None:
    found = variables_with_keras(made(make, layouts(**RULES)))
    assert {path: v.variable.value.sharding.spec for path, v in found.items()} == specs


@every_model
def test_every_bit_is_as_without_the_scope(make: Any, specs: dict[str, P]) -> None:
    keras.utils.set_random_seed(1)
    sharded = made(make, layouts(**RULES))
    keras.utils.set_random_seed(1)
    plain = make()
    assert len(sharded.variables) == len(plain.variables) == len(specs)
    for ours, theirs in zip(sharded.variables, plain.variables, strict=True):
        assert ours.name == theirs.name
        assert np.asarray(ours.value).tobytes() == np.asarray(theirs.value).tobytes(), ours.path


@every_model
def test_an_empty_map_replicates_everything(make: Any, specs: dict[str, P]) -> None:
    variables = made(make, LayoutMap(mesh())).variables
    assert len(variables) == len(specs)
    assert all(v.value.is_fully_replicated and len(v.value.devices()) == 8 for v in variables)


def test_no_value_exists_before_it_is_materialised() -> None:
    with layouts(**RULES).scope():
        model = functional()
    gc.collect()
    assert all(variable._value is None for variable in model.variables)
    assert model.layers[1].kernel.shape == (8, 8)


def test_a_device_holds_its_shard_and_no_more() -> None:
    kernel = made(functional, layouts(**RULES)).layers[1].kernel.value
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(4, 2)}


def test_regularization_losses_are_of_the_values_that_came_to_life() -> None:
    model = made(lambda: subclassed(regularizer="l2"), layouts(**RULES))
    (loss,) = model.losses
    assert float(loss) == pytest.approx(0.01 * float((np.asarray(model.d1.kernel) ** 2).sum()))


def test_it_trains_as_without_the_scope_and_its_optimizer_state_is_in_shards_too() -> None:
    def trained(make: Any) -> tuple[keras.Model, list[float]]:
        keras.utils.set_random_seed(1)
        model = make()
        model.compile(keras.optimizers.Adam(0.01), "mse")
        history = model.fit(np.ones((16, 8)), np.ones((16, 4)), epochs=3, verbose=0).history
        return model, history["loss"]

    model, losses = trained(lambda: made(subclassed, layouts(**RULES)))
    plain, expected = trained(subclassed)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]
    assert np.asarray(model.norm.moving_mean).any()
    np.testing.assert_allclose(model.norm.moving_mean, plain.norm.moving_mean, rtol=1e-3, atol=1e-6)
    assert np.asarray(model.drop.seed_generator.state)[1] > 0
    assert model.d1.kernel.value.sharding.spec == P("data", "model")
    slots = model.optimizer.variables[2:]  # after iterations and learning rate, two per variable
    assert len(slots) == 2 * len(model.trainable_variables)
    for index, variable in enumerate(model.trainable_variables):
        for slot in slots[2 * index : 2 * index + 2]:
            assert slot.value.sharding.is_equivalent_to(variable.value.sharding, slot.ndim)


def test_materialising_inside_the_scope_and_using_it_there() -> None:
    with layouts(**RULES).scope():
        model = materialize(functional())
        model.layers[1].bias.assign(np.arange(8))
        assert model(np.ones((2, 8))).shape == (2, 8)
    assert np.array_equal(model.layers[1].bias, np.arange(8))


def test_a_shared_layer_has_its_first_path() -> None:
    def tied() -> keras.Model:
        model = Subclassed()
        model.again = model.d1
        model(keras.Input((8,)))
        return model

    found = variables_with_keras(made(tied, layouts(**RULES)))
    assert [path for path in found if path.startswith(("d1", "again"))] == ["d1.kernel", "d1.bias"]


def test_a_model_in_a_plain_object() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.models = [functional()]

    trainer = made(Trainer, layouts(**{r"models\.0\.d1\.kernel": ("data",)}))
    assert trainer.models[0].layers[1].kernel.value.sharding.spec == P("data")


@pytest.mark.parametrize("inside", [True, False])
def test_keras_outside_of_a_scope_is_as_it_was(inside: bool) -> None:
    with layouts(**RULES).scope():
        if inside:
            functional()
    dense = keras.layers.Dense(4)
    dense.build((8, 8))
    assert dense.kernel.value.shape == (8, 4)
    assert not keras.src.backend.common.global_state.get_global_attribute("uninitialized_variables")


def test_an_exception_in_a_scope_leaves_keras_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError), layouts(**RULES).scope():
        _ = functional(), 1 / 0
    assert functional().layers[1].kernel.value is not None


def test_reading_a_lazy_variable_says_what_to_do() -> None:
    with layouts(**RULES).scope():
        model = functional()
        with pytest.raises(VariableError, match=r"'d1/bias' is lazy and cannot be assigned; call"):
            model.layers[1].bias.assign(np.zeros(8))
    expected = (
        r"'d1/kernel' \(shape \[8, 8\], float32\) was made in a layout map's scope and has no value yet; "
        r"call reshard\.variables\.materialize\(model\)"
    )
    with pytest.raises(VariableError, match=expected):
        _ = model.layers[1].kernel.value
    with pytest.raises(VariableError, match=expected):
        model(np.ones((2, 8)))


def test_errors_name_the_path_and_change_nothing() -> None:
    with layouts(**{r"blk_1\.inner\.d2\.bias": (None, "model")}).scope():
        model = functional()
    with pytest.raises(LayoutError, match=r"'blk_1\.inner\.d2\.bias' has 1 dimensions"):
        materialize(model)
    assert all(variable._value is None for variable in model.variables)


def test_a_model_that_is_not_built_or_was_materialised() -> None:
    with layouts().scope():
        unbuilt = keras.Sequential([keras.layers.Dense(4)])
    with pytest.raises(
        VariableError,
        match=r"'sequential\w*' is not built: dense\w* would make weights later, .*; call it on a",
    ):
        materialize(unbuilt)
    model = made(functional, layouts())
    with pytest.raises(VariableError, match="variables of this Functional is lazy"):
        materialize(model)


def test_a_model_that_is_built_only_in_part_is_refused() -> None:
    with layouts().scope():
        model = Subclassed()
        model.scale = model.add_weight(shape=(8,), name="scale")
    with pytest.raises(VariableError, match="is not built: d1, blk, norm, head would make weights"):
        materialize([model])
    assert model.scale._value is None


def test_weights_that_were_set_before_are_laid_out_too() -> None:
    with layouts(**RULES).scope():
        model = sequential()
    kernel = np.arange(64, dtype="float32").reshape(8, 8)
    model.get_layer("d1").kernel.assign(kernel)
    d1 = materialize(model).get_layer("d1")
    assert np.array_equal(d1.kernel.value, kernel)
    assert d1.kernel.value.sharding.spec == P("data", "model")
    assert d1.bias.value.sharding.spec == P("model")


@pytest.mark.parametrize("make", [lambda: keras.Variable(0), keras.optimizers.Adam])
def test_a_variable_that_has_its_value_cannot_wait(make: Any) -> None:
    with (
        pytest.raises(
            VariableError, match=r"is given its value, such as keras\.Variable\(0\), and so"
        ),
        layouts().scope(),
    ):
        make()
    assert make().name  # Keras is as it was
