"""Gives lazy variables their values, each laid out by its object path; all of them or none."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from reshard.errors import VariableError
from reshard.layout.layout_map import LayoutMap
from reshard.layout.scope import warn_of_idle_keys
from reshard.layout.tensor_layout import TensorLayout
from reshard.variables.lazy import keras_objects
from reshard.variables.lazy.compute_in_steps import Compiled
from reshard.variables.lazy.object_paths import object_paths
from reshard.variables.lazy.variable import Variable
from reshard.variables.sharded.in_jax import being_traced

Root = TypeVar("Root")


class LazyVariable(Protocol):
    """A variable that can be materialised: a ``Variable`` or a Keras variable."""

    @property
    def is_lazy(self) -> bool: ...
    @property
    def layout_map(self) -> LayoutMap | None: ...
    def layout_at(self, path: str) -> TensorLayout: ...
    def sharding_at(self, path: str) -> Any: ...
    def made(self, path: str, compiled: Compiled) -> Any: ...
    def _hold(self, value: Any, layout: TensorLayout) -> None: ...


def materialize(root: Root) -> Root:
    """Gives every lazy variable below ``root`` its value, sharded by its object path; returns ``root``.

    ``root`` is a plain object, dataclass, list, dict or tuple that holds ``Variable``s, or a Keras
    model, or any mixture. A path joins attribute names, list indices and dict keys with
    dots: ``d1.kernel``, ``blk.lst.0.kernel``; below Keras Functional and Sequential models it joins layer
    names and attributes. A variable with several paths takes the first. Its layout comes from the map in
    whose scope it was made; without a matching key it is replicated on the map's mesh.

    A Keras model made in a scope gets its values when it is built, without this call; a layer outside of every model
    needs the call. Works inside the scope and after it. If anything is wrong with any variable, none is changed. Raises
    LayoutError for a layout that does not fit, VariableError if nothing is lazy or an initializer returns another shape
    or dtype.
    """
    if being_traced():
        raise VariableError(
            "variables cannot get values while jax traces a function (jit, grad, vmap, scan…); call "
            "materialize outside of it"
        )
    found = _variables(root)
    lazy = _lazy_of(found)
    if not lazy and not keras_objects.has_claimed_model(root):
        raise VariableError(_nothing_lazy(root, len(found)))
    _give_values(lazy)
    return root


def materialize_model(model: Any, layout_map: LayoutMap) -> None:
    """Gives the weights of a Keras model made in a scope their values; a later call gives values to new weights.

    Values that exist already, such as those of a layer made outside of the scope, are laid out too.
    """
    _give_values(_lazy_of(keras_objects.variables_with_keras(model, layout_map)))


def check_layouts(model: Any, layout_map: LayoutMap) -> None:
    """Raises what ``materialize_model`` would raise for a layout that does not fit; makes nothing."""
    for path, variable in _lazy_of(keras_objects.variables_with_keras(model, layout_map)).items():
        variable.sharding_at(path)


def _lazy_of(found: dict[str, LazyVariable]) -> dict[str, LazyVariable]:
    return {path: variable for path, variable in found.items() if variable.is_lazy}


def _give_values(lazy: dict[str, LazyVariable]) -> None:
    for path, variable in lazy.items():
        variable.sharding_at(path)
    compiled: Compiled = {}
    values = [variable.made(path, compiled) for path, variable in lazy.items()]
    maps = [variable.layout_map for variable in lazy.values()]
    for (path, variable), value in zip(lazy.items(), values, strict=True):
        variable._hold(value, variable.layout_at(path))
    for layout_map in {id(m): m for m in maps if m is not None}.values():
        warn_of_idle_keys(layout_map)


def named_variables(root: object) -> dict[str, Variable]:
    """Every ``Variable`` below ``root`` by its dot-joined path, lazy or not; each once."""
    return object_paths(root, lambda node: isinstance(node, Variable))


def _variables(root: object) -> dict[str, LazyVariable]:
    if keras_objects.in_use():
        keras_objects.check_built(root)
        return keras_objects.variables_with_keras(root)
    return dict(named_variables(root))


def _nothing_lazy(root: object, count: int) -> str:
    kind = type(root).__name__
    if not count:
        return (
            f"no variable was found in the attributes, lists and dicts of this {kind}; make its "
            f"variables with reshard.variables.Variable in a layout map's scope, or, where its "
            f"constructor computes arrays as flax NNX modules do, use reshard.variables.lazy.create; a Keras "
            f"model must be built first, which calling it on a keras.Input does"
        )
    return (
        f"none of the {count} variables of this {kind} is lazy: they were materialised before, or made "
        f"outside of every layout map's scope"
    )
