"""embedding_lookup: the rows of a table by their ids, as a function of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    from reshard.variables.sharded.shards import Array


def embedding_lookup(
    params: ShardedVariable | Sequence[Any],
    ids: Any,
    partition_strategy: str | None = None,
    name: str | None = None,
    validate_indices: bool = True,  # noqa: ARG001  TensorFlow's; ids are always checked
    max_norm: float | None = None,
) -> Array:
    """The rows at ``ids`` of a table, which is a ShardedVariable or a list of its shards: ``tf.nn.embedding_lookup``.

    Args:
        params: a ShardedVariable; or arrays, the shards of a table that is split along dimension 0.
        ids: row numbers, in an array of any shape.
        partition_strategy: "div" or "mod". For a list the default is "mod", as in TensorFlow 1, where this argument is
            from; for a ShardedVariable it is the variable's own, and any other raises VariableError.
        name: without effect, as ``validate_indices``: ids out of range always raise VariableIndexError.
        max_norm: rows with a larger L2 norm are scaled down to it.

    Returns:
        An array of shape ``ids.shape + table.shape[1:]``.

    >>> import numpy as np
    >>> embedding_lookup([np.array([[0.0], [2.0]]), np.array([[1.0], [3.0]])], [3, 0]).tolist()
    [[3.0], [0.0]]
    """
    if not isinstance(params, ShardedVariable):
        strategy = "mod" if partition_strategy is None else partition_strategy
        params = ShardedVariable(params, name or "params", partition_strategy=strategy)
    return params.embedding_lookup(ids, partition_strategy, max_norm)
