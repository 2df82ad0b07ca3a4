"""Objects whose constructors compute arrays: flax NNX modules, optimizer states, trees of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from reshard.errors import VariableError, VariableTypeError
from reshard.layout.layout_map import LayoutMap
from reshard.layout.scope import current_layout_map
from reshard.variables.lazy.compute_in_steps import compute_in_steps
from reshard.variables.lazy.initial_value import is_numeric
from reshard.variables.lazy.placement import sharding_of
from reshard.variables.sharded.tracing import being_traced

Made = TypeVar("Made")


def create(function: Callable[[], Made]) -> Made:
    """What ``function()`` returns, with every array made in shards by the current layout map.

    For flax NNX modules, NNX optimizers and trees (dicts, lists, optax states) of jax arrays, whose
    constructors compute at once: the function is traced, once, and its operations run in shards, so
    that no full tensor exists and every bit is as without the scope. The path of an array is its
    attributes, list indices and dict keys joined with dots, such as ``blk.lst.0.kernel``. The state of
    NNX random number generators and PRNG keys are replicated, and so is what no key matches.

    Outside of every scope it just calls ``function``. Raises VariableTypeError where something
    returned is no array, LayoutError for a layout that does not fit.
    """
    layout_map = current_layout_map()
    if layout_map is None:
        return function()
    if being_traced():
        raise VariableError(
            "variables cannot come to life while jax traces a function (jit, grad, vmap, scan…); call "
            "create outside of it, and not within what another create runs"
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
    """NNX objects are split into a static graph and a flat state; jax computes the state.

    What was made is split as a tuple of one, for nnx splits no bare array; paths leave the 0 away.
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
                f"{'.'.join(map(_part, path)) or 'its top'!r}, which is no array, tree of arrays or NNX "
                f"object; an object that holds reshard.variables.Variable, and a Keras model, is made in "
                f"the scope without create, and given to reshard.variables.materialize"
            )


def _part(key: Any) -> str:
    found = next((getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)), key)
    return str(found)


def _nnx() -> Any:
    """``flax.nnx`` where the program has imported it."""
    return sys.modules.get("flax.nnx")
