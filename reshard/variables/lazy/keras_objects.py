"""Finds the Keras variables below an object: their paths, as the Keras of dtensor named them, and their values.

A private variable of a Keras layer with a public property (``Dense._kernel``) takes the
property's name. Below Functional and Sequential models a path has ``layer.name`` in place of an
attribute. A variable that is in no attribute has Keras' own path, with dots.
"""

from __future__ import annotations

from typing import Any

from reshard.errors import VariableError
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_layout import TensorLayout
from reshard.variables.distribute import distribute_tensor
from reshard.variables.lazy.initial_value import Compiled, InitialValue
from reshard.variables.lazy.keras_internals import (
    CACHED_BY_KERAS,
    has_layout,
    hold,
    initialized_by,
    is_claimed,
    is_made_of_layers,
    keras_on_jax,
    lazy_initializer,
    value_of,
    variable_dtype,
)
from reshard.variables.lazy.object_paths import (
    Children,
    attributes,
    layout_at,
    object_paths,
    sharding_of,
)
from reshard.variables.lazy.variable import Variable


def in_use() -> bool:
    """True if the program has imported Keras with the jax backend."""
    return keras_on_jax() is not None


class KerasVariable:
    """A Keras variable that can be materialised.

    ``layout_map`` is the map of the model that gets its values, for variables that no scope made lazy.
    """

    def __init__(self, variable: Any, is_rng_state: bool, layout_map: LayoutMap | None) -> None:
        self.variable = variable
        self.is_rng_state = is_rng_state
        self._layout_map = layout_map

    @property
    def is_lazy(self) -> bool:
        """True if it has no value in shards yet; ``load_weights`` may have assigned it another."""
        if lazy_initializer(self.variable) is not None:
            return True
        return self._layout_map is not None and not has_layout(self.variable)

    @property
    def layout_map(self) -> LayoutMap | None:
        """The map of the scope in which it was made, else that of its model."""
        waiting = lazy_initializer(self.variable)
        return self._layout_map if waiting is None else waiting.layout_map

    def layout_at(self, path: str) -> TensorLayout:
        rank = len(self.variable.shape)
        return layout_at(self._map(), path, rank, is_rng_state=self.is_rng_state)

    def sharding_at(self, path: str) -> Any:
        shape = self.variable.shape
        return sharding_of(self._map(), path, shape, is_rng_state=self.is_rng_state)

    def _map(self) -> LayoutMap:
        if self.layout_map is None:
            raise VariableError(f"the Keras variable {self.variable.path!r} is not lazy")
        return self.layout_map

    def made(self, path: str, compiled: Compiled) -> Any:
        import jax.numpy as jnp

        value, waiting = value_of(self.variable), lazy_initializer(self.variable)
        if value is not None or waiting is None:
            return distribute_tensor(value, self.sharding_at(path))
        initial = InitialValue(
            tuple(self.variable.shape),
            jnp.dtype(variable_dtype(self.variable)),
            call=lambda: initialized_by(self.variable, waiting.initializer),
        )
        return initial.sharded(self.sharding_at(path), path, compiled)

    def _hold(self, value: Any, layout: TensorLayout) -> None:
        hold(self.variable, value, layout)


def variables_with_keras(root: object, layout_map: LayoutMap | None = None) -> dict[str, Any]:
    """Every variable below ``root`` that can be materialised, of Keras and of this package, by its path.

    With ``layout_map``, variables that have a value but no layout count as lazy too.
    """
    keras = keras_on_jax()
    found = object_paths(root, lambda node: isinstance(node, Variable | keras.Variable), _children)
    for variable in _hidden_variables(root, found):
        found[_free(variable.path.replace("/", "."), found)] = variable
    kind = keras.random.SeedGenerator
    generators = object_paths(root, lambda node: isinstance(node, kind), _children).values()
    states = {id(generator.state) for generator in generators}
    return {
        path: v if isinstance(v, Variable) else KerasVariable(v, id(v) in states, layout_map)
        for path, v in found.items()
    }


def check_built(root: object) -> None:
    """Raises VariableError for models with layers that have no weights yet: they would be made later, unsharded."""
    keras = keras_on_jax()
    models = object_paths(root, lambda node: isinstance(node, keras.Model), _children)
    for model in models.values():
        unbuilt = [] if model.built else _unbuilt_layers(model)
        if unbuilt:
            raise VariableError(
                f"the Keras model {model.name!r} is not built: {', '.join(unbuilt[:8])} would make weights "
                f"later, outside of the scope and unsharded; call it on a keras.Input in the scope first"
            )


def has_claimed_model(root: object) -> bool:
    """True if a Keras model below ``root`` was made in a scope, and so gets its values when it is built."""
    keras = keras_on_jax()
    if keras is None:
        return False
    models = object_paths(root, lambda node: isinstance(node, keras.Model), _children)
    return any(map(is_claimed, models.values()))


def _unbuilt_layers(model: Any) -> list[str]:
    keras = keras_on_jax()

    def is_inner(node: object) -> bool:
        return isinstance(node, keras.Layer) and node is not model

    layers = object_paths(model, is_inner, _children)
    return [path for path, layer in layers.items() if not layer.built]


def _hidden_variables(root: object, found: dict[str, Any]) -> list[Any]:
    """Variables that the layers list, but that are in none of their attributes."""
    keras = keras_on_jax()
    known = {id(variable) for variable in found.values()}
    layers = object_paths(root, lambda node: isinstance(node, keras.Layer), _children).values()
    every = {id(variable): variable for layer in layers for variable in layer.variables}
    return [variable for number, variable in every.items() if number not in known]


def _children(node: object) -> Children | None:
    keras = keras_on_jax()
    if isinstance(node, keras.KerasTensor):
        return iter(())  # it refers to every layer that it passed
    if isinstance(node, keras.optimizers.Optimizer | keras.metrics.Metric):
        return iter(())  # their variables are no weights; Keras makes them
    return _layer_children(node) if isinstance(node, keras.Layer) else None


def _layer_children(layer: Any) -> Children:
    keras = keras_on_jax()
    if is_made_of_layers(layer):
        yield from ((inner.name, inner) for inner in layer.layers)
    for name, value in attributes(layer):
        if name not in CACHED_BY_KERAS:
            yield _public(layer, name) if isinstance(value, keras.Variable) else name, value


def _public(layer: Any, name: str) -> str:
    public = name.lstrip("_")
    return public if isinstance(getattr(type(layer), public, None), property) else name


def _free(path: str, taken: dict[str, Any]) -> str:
    """A path that is not taken; Keras' own paths may repeat, and the second ``a.b`` becomes ``a.b_1``."""
    paths = (path, *(f"{path}_{n}" for n in range(1, len(taken) + 1)))
    return next(p for p in paths if p not in taken)
