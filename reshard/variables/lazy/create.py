"""Makes objects whose constructors compute arrays in shards (flax NNX modules, optimizer states), and gives lazy variables their values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from reshard.errors import VariableError, VariableTypeError
from reshard.layout.layout_map import LayoutMap, current_layout_map, warn_of_idle_keys
from reshard.layout.tensor_layout import TensorLayout
from reshard.variables.lazy import keras_objects
from reshard.variables.lazy.initial_value import Compiled, compute_in_steps, is_numeric
from reshard.variables.lazy.object_paths import object_paths, sharding_of
from reshard.variables.lazy.variable import Variable
from reshard.variables.sharded.in_jax import being_traced

Made = TypeVar("Made")


def create(function: Callable[[], Made]) -> Made:
    """Calls ``function`` and returns its result, with every array made in shards by the current layout map.

    For flax NNX modules, NNX optimizers and trees (dicts, lists, optax states) of jax arrays, whose
    constructors compute at once. The function is traced, once, and its operations run in shards: no
    full tensor exists, and every bit is the same as without the scope. The path of an array joins
    attributes, list indices and dict keys with dots, such as ``blk.lst.0.kernel``. PRNG keys and the state
    of NNX random number generators are replicated, and so is every array that no key matches.

    Outside of every scope it only calls ``function``. Raises VariableTypeError if a leaf of the result
    is not an array, LayoutError for a layout that does not fit.
    """
    layout_map = current_layout_map()
    if layout_map is None:
        return function()
    if being_traced():
        raise VariableError(
            "variables cannot get values while jax traces a function (jit, grad, vmap, scan…); call "
            "create outside of it, and not in a function that another create runs"
        )
    return _NnxTree(function, layout_map).made() if _nnx() else _array_tree(function, layout_map)


def _array_tree(function: Callable[[], Made], layout_map: LayoutMap) -> Made:
    import jax

    def checked() -> Any:
        made = function()
        _check_arrays(made)
        return made

    def shardings(shapes: Any) -> list[Any]:
        leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
        return [_sharding(layout_map, tuple(map(_part, path)), leaf) for path, leaf in leaves]

    shapes, arrays = compute_in_steps(checked, shardings)
    made: Made = jax.tree.unflatten(jax.tree.structure(shapes), arrays)
    return made


class _NnxTree:
    """Splits NNX objects into a static graph and a flat state, which jax computes.

    The result is split as a tuple of one element, since nnx does not split a bare array; paths omit that 0.
    """

    def __init__(self, function: Callable[[], Any], layout_map: LayoutMap) -> None:
        self.function = function
        self.layout_map = layout_map
        self.graph: Any = None
        self.paths: list[tuple[Any, ...]] = []

    def made(self) -> Any:
        import jax

        nnx = _nnx()
        shapes, arrays = compute_in_steps(self._state, self._shardings)
        variables = jax.tree.unflatten(jax.tree.structure(shapes), arrays)
        state = nnx.from_flat_state(zip(self.paths, variables, strict=True))
        return nnx.merge(self.graph, state)[0]

    def _state(self) -> list[Any]:
        nnx = _nnx()
        made = self.function()
        _check_arrays(made, nnx.graph.is_graph_node)
        self.graph, state = nnx.split((made,))
        flat = list(nnx.to_flat_state(state))
        self.paths = [path for path, _ in flat]
        return [variable for _, variable in flat]

    def _shardings(self, variables: list[Any]) -> list[Any]:
        import jax

        nnx = _nnx()
        return [
            _sharding(self.layout_map, path[1:], leaf, isinstance(variable, nnx.RngState))
            for path, variable in zip(self.paths, variables, strict=True)
            for leaf in jax.tree.leaves(variable)
        ]


def _sharding(
    layout_map: LayoutMap, path: tuple[Any, ...], leaf: Any, is_rng_state: bool = False
) -> Any:
    import jax
    import jax.numpy as jnp

    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    name = ".".join(map(str, path))
    return sharding_of(layout_map, name, leaf.shape, is_rng_state=is_rng_state or is_key)


def _check_arrays(made: Any, is_node: Callable[[Any], bool] = lambda _: False) -> None:
    import jax
    import numpy as np

    leaves = jax.tree_util.tree_flatten_with_path(made, is_leaf=is_node)[0]
    for path, leaf in leaves:
        if not is_node(leaf) and not (
            isinstance(leaf, int | float | complex | jax.Array)
            or (isinstance(leaf, np.ndarray | np.generic) and is_numeric(leaf.dtype))
        ):
            raise VariableTypeError(
                f"create's function returned a {type(leaf).__name__} at "
                f"{'.'.join(map(_part, path)) or 'its top'!r}, which is not an array, tree of arrays or NNX "
                f"object; make a Keras model, or an object that contains reshard.variables.Variable, in the "
                f"scope without create, and give it to reshard.variables.materialize"
            )


def _part(key: Any) -> str:
    found = next((getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)), key)
    return str(found)


def _nnx() -> Any:
    """``flax.nnx`` if the program has imported it."""
    return sys.modules.get("flax.nnx")


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
