"""Keras variables among the objects: their paths as dtensor's Keras named them, and their values.

A variable that a Keras layer holds privately behind a public property (``Dense._kernel``) has the
property's name. Functional and Sequential models are transparent: ``layer.name`` stands where an
attribute would. A variable that hangs on no attribute has Keras' own path, with dots.
"""

from __future__ import annotations

from typing import Any

from reshard.errors import VariableError
from reshard.layout.keras_deferral import WaitingInitializer, keras_on_jax
from reshard.layout.layout_map import LayoutMap
from reshard.layout.scope import current_layout_map
from reshard.variables.distribute import distribute_tensor
from reshard.variables.initial_value import InitialValue
from reshard.variables.object_paths import Children, attributes, object_paths
from reshard.variables.placement import sharding_of
from reshard.variables.steps import Compiled
from reshard.variables.variable import Variable

_CACHED_BY_KERAS = frozenset(
    {
        "_functional", "_inbound_nodes", "_inputs", "_inputs_struct", "_layers", "_losses", "_losses_override",
        "_metrics", "_nodes", "_nodes_by_depth", "_non_trainable_variables", "_operations",
        "_operations_by_depth", "_outbound_nodes", "_outputs", "_outputs_struct", "_seed_generators",
        "_tracker", "_trainable_variables",
    }
)  # fmt: skip
"""Attributes in which Keras 3 lists once more what hangs on other attributes, or how layers are wired."""


def in_use() -> bool:
    """Whether the program has imported Keras with the jax backend."""
    return keras_on_jax() is not None


class KerasVariable:
    """A Keras variable, as something to materialise."""

    def __init__(self, variable: Any, is_rng_state: bool) -> None:
        self.variable = variable
        self.is_rng_state = is_rng_state

    @property
    def is_lazy(self) -> bool:
        """Also where it was assigned a value since, as ``load_weights`` does: that is not in shards."""
        waiting = isinstance(self.variable._initializer, WaitingInitializer)
        return waiting or self.variable._value is None

    def sharding_at(self, path: str) -> Any:
        _, layout_map = self._waiting()
        return sharding_of(layout_map, path, self.variable.shape, is_rng_state=self.is_rng_state)

    def made(self, path: str, compiled: Compiled) -> Any:
        import jax.numpy as jnp

        if self.variable._value is not None:
            return distribute_tensor(self.variable._value, self.sharding_at(path))
        initializer, _ = self._waiting()
        shape, dtype = tuple(self.variable.shape), self.variable._dtype
        value = InitialValue(
            shape,
            jnp.dtype(dtype),
            call=lambda: self.variable._convert_to_tensor(initializer(shape, dtype=dtype)),
        )
        return value.sharded(self.sharding_at(path), path, compiled)

    def _hold(self, value: Any) -> None:
        self.variable._layout = value.sharding
        self.variable._value = value
        self.variable._initializer = None

    def _waiting(self) -> tuple[Any, LayoutMap]:
        initializer = self.variable._initializer
        if isinstance(initializer, WaitingInitializer):
            return initializer.initializer, initializer.layout_map
        layout_map = current_layout_map()
        if layout_map is None:
            raise VariableError(
                f"the Keras variable {self.variable.path!r} was left without a value by Keras, not by a "
                f"layout map's scope; let Keras initialise it, or make its model in the scope"
            )
        return initializer, layout_map


def variables_with_keras(root: object) -> dict[str, Any]:
    """Every variable below ``root``, Keras' and ours, as something to materialise, by its path."""
    keras = keras_on_jax()
    found = object_paths(root, lambda node: isinstance(node, Variable | keras.Variable), _children)
    for variable in _hidden_variables(root, found):
        found[_free(variable.path.replace("/", "."), found)] = variable
    states = _rng_states(root)
    return {
        path: v if isinstance(v, Variable) else KerasVariable(v, id(v) in states)
        for path, v in found.items()
    }


def check_built(root: object) -> None:
    """Refuse models with layers that have no weights yet: they would be made later, in one piece."""
    keras = keras_on_jax()
    models = object_paths(root, lambda node: isinstance(node, keras.Model), _children)
    for model in models.values():
        unbuilt = [] if model.built else _unbuilt_layers(model)
        if unbuilt:
            raise VariableError(
                f"the Keras model {model.name!r} is not built: {', '.join(unbuilt[:8])} would make weights "
                f"later, outside of the scope and unsharded; call it on a keras.Input in the scope first"
            )


def _unbuilt_layers(model: Any) -> list[str]:
    keras = keras_on_jax()

    def is_inner(node: object) -> bool:
        return isinstance(node, keras.Layer) and node is not model

    layers = object_paths(model, is_inner, _children)
    return [path for path, layer in layers.items() if not layer.built]


def _hidden_variables(root: object, found: dict[str, Any]) -> list[Any]:
    """Variables that the layers know of, but that hang on none of their attributes."""
    keras = keras_on_jax()
    known = {id(variable) for variable in found.values()}
    layers = object_paths(root, lambda node: isinstance(node, keras.Layer), _children).values()
    every = {id(variable): variable for layer in layers for variable in layer.variables}
    return [variable for number, variable in every.items() if number not in known]


def _rng_states(root: object) -> set[int]:
    keras = keras_on_jax()
    kind = keras.random.SeedGenerator
    generators = object_paths(root, lambda node: isinstance(node, kind), _children).values()
    return {id(generator.state) for generator in generators}


def _children(node: object) -> Children | None:
    keras = keras_on_jax()
    if isinstance(node, keras.KerasTensor):
        return iter(())  # remembers every layer that it passed
    return _layer_children(node) if isinstance(node, keras.Layer) else None


def _layer_children(layer: Any) -> Children:
    keras = keras_on_jax()
    if isinstance(layer, keras.Sequential) or hasattr(layer, "_operations_by_depth"):
        yield from ((inner.name, inner) for inner in layer.layers)
    for name, value in attributes(layer):
        if name not in _CACHED_BY_KERAS:
            yield _public(layer, name) if isinstance(value, keras.Variable) else name, value


def _public(layer: Any, name: str) -> str:
    public = name.lstrip("_")
    return public if isinstance(getattr(type(layer), public, None), property) else name


def _free(path: str, taken: dict[str, Any]) -> str:
    """Keras' own paths need not differ: the second ``a.b`` is ``a.b_1``."""
    paths = (path, *(f"{path}_{n}" for n in range(1, len(taken) + 1)))
    return next(p for p in paths if p not in taken)
