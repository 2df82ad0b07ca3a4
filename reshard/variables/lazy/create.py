"""Makes objects whose constructors compute arrays in shards: flax NNX modules, optimizer states, trees of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from reshard.errors import VariableError, VariableTypeError
from reshard.layout.layout_map import LayoutMap
from reshard.layout.scope import current_layout_map
from reshard.variables.lazy.compute_in_steps import compute_in_steps
from reshard.variables.lazy.initial_value import is_numeric
from reshard.variables.lazy.path_sharding import sharding_of
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
