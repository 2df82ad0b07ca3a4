"""Scopes around Keras: threads, nesting and errors; nothing of Keras stays changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import pytest
from jax.sharding import PartitionSpec as P

from reshard import LayoutError
from reshard.variables import materialize
from tests.variables.lazy.keras_models import (
    DATA,
    RULES,
    Small,
    Subclassed,
    called,
    fitted,
    functional,
    made,
    predicted,
)
from tests.variables.models import layouts


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
