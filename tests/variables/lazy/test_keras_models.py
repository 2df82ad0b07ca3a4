"""Keras models made in a scope come alive by themselves: names as the Keras of dtensor gave them, in shards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from reshard import LayoutError, LayoutMap, VariableError
from reshard.variables import materialize
from reshard.variables.lazy.keras_objects import variables_with_keras
from tests.variables.models import layouts, mesh

RULES = {
    r".*d1\.kernel": ("data", "model"),
    r".*d1\.bias": ("model",),
    r"blk(_1)?\.lst\.0\.kernel": (None, "model"),
    r"blk(_1)?\.inner\.d2\.kernel": ("model",),
    r".*seed.*|drop.*": ("model",),
    r"out\.kernel": ("data",),  # an inner Sequential comes alive by itself, with paths of its own
    r"head\..*": ("model",),
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
    """Built by a symbolic call, in the scope."""
    model = Subclassed(**options)
    model(keras.Input((8,)))
    return model


DATA = np.ones((4, 8), np.float32)


def called(model: keras.Model) -> None:
    model(DATA)


def fitted(model: keras.Model) -> None:
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    model.fit(DATA, np.ones((4, 4)), verbose=0)


def predicted(model: keras.Model) -> None:
    assert model.predict(DATA, verbose=0).shape[0] == 4


def evaluated(model: keras.Model) -> None:
    model.compile("sgd", "mse")
    model.evaluate(DATA, np.ones((4, 4)), verbose=0)


def stepped(model: keras.Model) -> None:
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.train_on_batch(DATA, np.ones((4, 4)))


def called_symbolically(model: keras.Model) -> None:
    model(keras.Input((8,)))


FIRST_BUILDS = [called, fitted, predicted, evaluated, stepped, called_symbolically]


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
HEAD = {"head.out.kernel": P("data"), "head.out.bias": P()}

MODELS = {
    "subclassed": (subclassed, DENSE | {f"blk.{p}": s for p, s in BLOCK.items()} | NORM | HEAD),
    "functional": (functional, DENSE | NAMED),
    "sequential": (sequential, DENSE | NAMED),
}
every_model = pytest.mark.parametrize(("make", "specs"), MODELS.values(), ids=MODELS)


def made(make: Any, rules: LayoutMap) -> Any:
    with rules.scope():
        return make()


def specs_of(model: keras.Model) -> dict[str, P]:
    found = variables_with_keras(model)
    return {path: v.variable.value.sharding.spec for path, v in found.items()}


@every_model
def test_variables_have_the_layouts_of_their_paths(make: Any, specs: dict[str, P]) -> None:
    assert specs_of(made(make, layouts(**RULES))) == specs


@pytest.mark.parametrize(
    ("build", "inside"),
    [
        *((build, False) for build in FIRST_BUILDS),
        (called, True),
        (fitted, True),
        (predicted, True),
    ],
)
def test_a_first_build_inside_or_outside_of_the_scope(build: Any, inside: bool) -> None:
    keras.utils.set_random_seed(1)
    with layouts(**RULES).scope():
        model = Subclassed()
        if inside:
            build(model)
    if not inside:
        build(model)
    assert specs_of(model) == MODELS["subclassed"][1]
    for variable in (v for metric in model.metrics for v in metric.variables):
        assert variable.value.is_fully_replicated
    keras.utils.set_random_seed(1)
    plain = Subclassed()
    plain(keras.Input((8,)))
    for ours, theirs in zip(model.trainable_variables, plain.trainable_variables, strict=True):
        assert np.asarray(ours.value).tobytes() == np.asarray(theirs.value).tobytes(), ours.path


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


def test_no_value_exists_before_the_path_is_known() -> None:
    with layouts(**RULES).scope():
        dense = keras.layers.Dense(8, name="d1")
        outputs = dense(inputs := keras.Input((8,)))
        assert (dense.kernel.shape, dense.kernel._value) == ((8, 8), None)
        keras.Model(inputs, outputs)
        assert dense.kernel.value.sharding.spec == P("data", "model")


def test_a_device_holds_its_shard_and_no_more() -> None:
    kernel = made(functional, layouts(**RULES)).layers[1].kernel.value
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(4, 2)}


def test_regularization_losses_are_of_the_values_that_came_to_life() -> None:
    model = made(lambda: Subclassed(regularizer="l2"), layouts(**RULES))
    fitted(model)
    (loss,) = model.losses
    assert float(loss) == pytest.approx(0.01 * float((np.asarray(model.d1.kernel) ** 2).sum()))


def test_it_trains_as_without_the_scope_and_its_optimizer_state_is_in_shards_too() -> None:
    def compiled() -> keras.Model:
        model = Subclassed()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        return model

    def trained(make: Any) -> tuple[keras.Model, list[float]]:
        keras.utils.set_random_seed(1)
        model = make(compiled)
        history = model.fit(np.ones((16, 8)), np.ones((16, 4)), epochs=3, verbose=0).history
        return model, history["loss"]

    model, losses = trained(lambda make: made(make, layouts(**RULES)))
    plain, expected = trained(lambda make: make())
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


def test_using_it_inside_the_scope() -> None:
    with layouts(**RULES).scope():
        model = functional()
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


def test_a_layer_that_two_models_share_has_its_path_in_the_first() -> None:
    with layouts(**{r"shared\.kernel": ("data",), r"late\..*": ("model",)}).scope():
        dense = keras.layers.Dense(8, name="shared")
        inputs = keras.Input((8,))
        first = keras.Model(inputs, dense(inputs))
        second = keras.Model(inputs, keras.layers.Dense(8, name="late")(dense(inputs)))
    assert first.layers[1] is second.layers[1] is dense
    assert dense.kernel.value.sharding.spec == P("data")
    assert second.layers[2].kernel.value.sharding.spec == P("model")


def test_inner_models_keep_inner_paths() -> None:
    """As with dtensor; a subclassed model inside another has the path of its attributes."""

    class Outer(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def call(self, x: Any) -> Any:
            return self.inner(x)

    class Leaf(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d = keras.layers.Dense(8)

        def call(self, x: Any) -> Any:
            return self.d(x)

    inputs = keras.Input((8,))
    inner: dict[str, Any] = {
        "functional": (lambda: keras.Model(inputs, keras.layers.Dense(8, name="d")(inputs)), P("data")),
        "known": (lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="d")]), P("data")),
        "unknown": (lambda: keras.Sequential([keras.layers.Dense(8, name="d")]), P("data")),
        "subclassed": (Leaf, P("model")),
    }  # fmt: skip
    rules = layouts(**{r"d\.kernel": ("data",), r"inner\.d\.kernel": ("model",)})
    for make, spec in inner.values():
        model = made(lambda make=make: Outer(make()), rules)
        fitted_on = model.predict(DATA, verbose=0)
        assert fitted_on.shape == (4, 8)
        kernel = next(v for v in model.variables if v.name == "kernel")
        assert kernel.value.sharding.spec == spec
    with rules.scope():
        keras.Model(inputs, (leaf := Leaf())(inputs))  # its first build is its own
    assert leaf.d.kernel.value.sharding.spec == P("data")


def test_layers_that_the_first_build_does_not_reach_come_alive_later() -> None:
    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d1 = keras.layers.Dense(8)
            self.late = [keras.layers.Dense(8)]

        def build(self, _: Any) -> None:  # builds none of its layers
            self.w = self.add_weight(shape=(8,), name="w")

        def call(self, x: Any, deep: bool = False) -> Any:
            x = self.d1(x) * self.w
            return self.late[0](x) if deep else x

    model = made(
        Lazy, layouts(**{"d1.kernel": ("data",), "late.0.kernel": ("model",), "w": ("model",)})
    )
    model(DATA)
    assert model.w.value.sharding.spec == P("model")
    assert model.d1.kernel.value.sharding.spec == P("data")
    model(DATA, deep=True)
    assert model.late[0].kernel.value.sharding.spec == P("model")


def test_a_model_whose_call_cannot_be_traced() -> None:
    """Keras then builds it while it computes, layer by layer."""

    class Eager(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d1 = keras.layers.Dense(8)
            self.d2 = keras.layers.Dense(8)

        def call(self, x: Any) -> Any:
            x = self.d1(x)
            return self.d2(x) if float(np.asarray(x).sum()) > -1e9 else x

    model = made(Eager, layouts(**{"d1.kernel": ("data",), "d2.kernel": ("model",)}))
    assert model(DATA).shape == (4, 8)
    assert model.d1.kernel.value.sharding.spec == P("data")
    assert model.d2.kernel.value.sharding.spec == P("model")


def test_a_sequential_model_that_grows() -> None:
    model = made(lambda: keras.Sequential([keras.Input((8,))]), layouts(**{"d.kernel": ("data",), "e.kernel": ("model",)}))  # fmt: skip
    model.add(keras.layers.Dense(8, name="d"))
    assert model.layers[0].kernel.value.sharding.spec == P("data")
    model.add(keras.layers.Dense(8, name="e"))
    assert model.layers[1].kernel.value.sharding.spec == P("model")


def test_trainable_flags_stay() -> None:
    def frozen() -> keras.Model:
        model = Subclassed()
        model.d1.trainable = False
        return model

    model, plain = made(frozen, layouts(**RULES)), frozen()
    fitted(model)
    fitted(plain)
    assert not model.d1.kernel.trainable
    for ours, theirs in (
        (model.trainable_variables, plain.trainable_variables),
        (model.non_trainable_variables, plain.non_trainable_variables),
        (model.non_trainable_weights, plain.non_trainable_weights),
    ):
        assert [v.name for v in ours] == [v.name for v in theirs]


@keras.saving.register_keras_serializable("tests")
class Small(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.d1 = keras.layers.Dense(8)

    def call(self, x: Any) -> Any:
        return self.d1(x)


@pytest.mark.parametrize("make", [lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="d1")]), Small], ids=["sequential", "subclassed"])  # fmt: skip
def test_saved_and_loaded(tmp_path: Path, make: Any) -> None:
    rules = layouts(**RULES)
    model = made(make, rules)
    expected = model.predict(DATA, verbose=0)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    with rules.scope():
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        fresh = make()
    fresh.predict(DATA, verbose=0)
    fresh.load_weights(tmp_path / "m.weights.h5")
    copied = keras.models.clone_model(model) if isinstance(model, keras.Sequential) else loaded
    assert copied.predict(DATA, verbose=0).shape == expected.shape
    for other in (loaded, fresh):
        np.testing.assert_allclose(other.predict(DATA, verbose=0), expected, rtol=1e-6)
        kernel = next(v for v in other.variables if v.name == "kernel")
        assert kernel.value.sharding.spec == P("data", "model")


def test_a_model_that_is_never_built_and_an_exception_in_a_constructor() -> None:
    class Broken(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.w = self.add_weight(shape=(8,))
            raise ZeroDivisionError

    with layouts(**RULES).scope():
        unbuilt = Subclassed()
        with pytest.raises(ZeroDivisionError):
            Broken()
        fine = functional()
    assert not unbuilt.built
    assert fine.layers[1].kernel.value.sharding.spec == P("data", "model")


def test_another_thread_is_in_no_scope() -> None:
    with layouts(**RULES).scope(), ThreadPoolExecutor(1) as threads:
        other = threads.submit(functional).result()
        mine = functional()
    assert len(other.layers[1].kernel.value.devices()) == 1
    assert len(mine.layers[1].kernel.value.devices()) == 8


def test_the_innermost_scope_counts() -> None:
    with layouts(**{"d1.kernel": ("data",)}).scope():
        with layouts(**{"d1.kernel": ("model",)}).scope():
            inner = functional()
        outer = functional()
    assert inner.layers[1].kernel.value.sharding.spec == P("model")
    assert outer.layers[1].kernel.value.sharding.spec == P("data")


def test_a_layer_made_before_the_scope_is_laid_out_with_its_model() -> None:
    dense = keras.layers.Dense(8, name="d1")
    dense.build((None, 8))
    before = np.asarray(dense.kernel)
    inputs = keras.Input((8,))
    made(lambda: keras.Model(inputs, dense(inputs)), layouts(**RULES))
    assert dense.kernel.value.sharding.spec == P("data", "model")
    np.testing.assert_array_equal(dense.kernel, before)


def test_under_jit_it_must_be_built_before() -> None:
    model = made(Subclassed, layouts(**RULES))
    with pytest.raises(
        VariableError, match=r"makes its weights while jax traces a function .* build it before"
    ):
        jax.jit(lambda x: model(x))(DATA)


def test_a_model_in_a_plain_object() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.models = [functional()]

    trainer = made(Trainer, layouts(**{r"d1\.kernel": ("data",)}))
    assert materialize(trainer) is trainer  # nothing is left to do
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
        dense = keras.layers.Dense(8, name="d1")
        dense.build((8, 8))
    expected = (
        r"'d1/kernel' \(shape \[8, 8\], float32\) was made in a layout map's scope and has no value yet; "
        r"build the model that holds it first, .* or call reshard\.variables\.materialize on what holds it"
    )
    for use in (
        lambda: dense.kernel.value, lambda: dense(DATA), lambda: dense.kernel.numpy(), lambda: dense.kernel + 1,
        lambda: dense.kernel.assign_add(np.ones((8, 8))),
    ):  # fmt: skip
        with pytest.raises(VariableError, match=expected):
            use()
    materialize({"d1": dense})
    assert dense.kernel.value.sharding.spec == P("data", "model")


def test_errors_name_the_path_and_change_nothing() -> None:
    rules = layouts(**{r"(blk|blk_1)\.inner\.d2\.bias": (None, "model")})
    with (
        rules.scope(),
        pytest.raises(LayoutError, match=r"'blk_1\.inner\.d2\.bias' has 1 dimensions"),
    ):
        functional()
    for build in (called, fitted, predicted):
        model = made(Subclassed, rules)
        with pytest.raises(LayoutError, match=r"'blk\.inner\.d2\.bias' has 1 dimensions"):
            build(model)
        assert model.d1.kernel._value is None
        assert functional().layers[1].kernel.value is not None  # Keras is as it was
        del rules[r"(blk|blk_1)\.inner\.d2\.bias"]
        assert materialize(model) is model
        assert model(DATA).shape == (4, 4)
        rules[r"(blk|blk_1)\.inner\.d2\.bias"] = (None, "model")


def test_an_initializer_that_fails_after_tracing_leaves_keras_as_it_was() -> None:
    class Failing(keras.initializers.Initializer):
        calls = 0

        def __call__(self, shape: Any, dtype: Any = None) -> Any:
            Failing.calls += 1
            if not keras.src.backend.common.stateless_scope.in_stateless_scope():
                raise ZeroDivisionError
            return keras.ops.zeros(shape, dtype)

    with layouts(**RULES).scope():
        model = Small()
        model.d1.kernel_initializer = Failing()
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="Unable to automatically build the model"):  # Keras' own
        model.fit(DATA, DATA, verbose=0)
    plain = Small()
    plain.compile("sgd", "mse")
    plain.fit(DATA, DATA, verbose=0)
    assert len(plain.d1.kernel.value.devices()) == 1


def test_materialising_what_came_alive_or_cannot_yet() -> None:
    model = made(functional, layouts(**RULES))
    assert materialize(model) is model
    unbuilt = made(lambda: keras.Sequential([keras.layers.Dense(4)]), layouts())
    with pytest.raises(
        VariableError,
        match=r"'sequential\w*' is not built: dense\w* would make weights later, .*; call it on a",
    ):
        materialize(unbuilt)
    plain = functional()
    with pytest.raises(VariableError, match="variables of this Functional is lazy"):
        materialize(plain)


def test_a_model_that_is_built_only_in_part_is_refused() -> None:
    with layouts().scope():
        model = Subclassed()
        model.scale = model.add_weight(shape=(8,), name="scale")
    with pytest.raises(VariableError, match="is not built: d1, blk, norm, head would make weights"):
        materialize([model])
    assert model.scale._value is None


def test_weights_that_were_set_before_are_laid_out_too() -> None:
    kernel = np.arange(64, dtype="float32").reshape(8, 8)
    with layouts(**RULES).scope():
        dense = keras.layers.Dense(8, name="d1")
        outputs = dense(inputs := keras.Input((8,)))
        dense.kernel.assign(kernel)
        keras.Model(inputs, outputs)
    assert np.array_equal(dense.kernel.value, kernel)
    assert dense.kernel.value.sharding.spec == P("data", "model")
    assert dense.bias.value.sharding.spec == P("model")


@pytest.mark.parametrize(
    "make",
    [lambda: keras.Variable(0), lambda: keras.Variable("zeros", shape=()), keras.metrics.Mean, keras.optimizers.Adam,
     lambda: keras.random.SeedGenerator(1).state],
)  # fmt: skip
def test_what_is_no_weight_is_made_as_keras_makes_it(make: Any) -> None:
    with layouts(**RULES).scope():
        found = make()
    variables = getattr(found, "variables", None) or [found]
    assert all(len(variable.value.devices()) == 1 for variable in variables)


def test_nothing_of_keras_stays_patched() -> None:
    before = keras.Layer.add_weight, keras.Model.__init__
    with layouts(**RULES).scope():
        assert keras.Layer.add_weight is not before[0]
        with layouts(**RULES).scope():
            model = Subclassed()
        assert keras.Layer.add_weight is not before[0]
    assert (keras.Layer.add_weight, keras.Model.__init__) == before
    model(DATA)
    assert (keras.Layer.add_weight, keras.Model.__init__) == before


def test_the_page_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/explanation/live-weights.md").read_text("utf-8")
    code = page.split("### Keras\n")[1].split("```python\n")[1].split("```")[0]
    rules = LayoutMap(mesh())
    rules[r"d\d\.kernel"] = (None, "model")
    exec(code, {"layouts": rules})  # noqa: S102  an example of the docs
    assert capsys.readouterr().out == "P(None, 'model')\n"
