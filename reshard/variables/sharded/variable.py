"""ShardedVariable: one large variable, kept as several arrays along an axis. embedding_lookup: rows of it by their ids."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from reshard.errors import VariableError
from reshard.geometry.dtypes import narrowed_by_jax
from reshard.variables.sharded.facts import Facts, Static
from reshard.variables.sharded.in_jax import refuse_tracing, register_pytree
from reshard.variables.sharded.operators import ArrayOperators
from reshard.variables.sharded.reading import (
    check_norm,
    check_same_strategy,
    clipped,
    gathered,
    rows_of,
    take_index,
    whole_array,
)
from reshard.variables.sharded.shards import (
    ShardRows,
    are_numpy,
    check_jax_keeps,
    checked_axis,
    checked_shards,
    common_axis,
    from_python,
    live_shards,
    unwritable,
)
from reshard.variables.sharded.updating import (
    Combine,
    IndexedSlices,
    RowUpdates,
    check_arithmetic,
    cut,
    known_partitioner,
    replaced,
    scattered,
    shard_count,
)
from reshard.variables.sharded.values import (
    check_rank_one,
    checked_index_type,
    checked_values,
    to_numpy,
)

if TYPE_CHECKING:
    import jax
    import numpy as np

    from reshard.variables.sharded.shards import Array


# ruff: noqa: ARG002  TensorFlow's arguments without a meaning here


class ShardedVariable(Facts, ArrayOperators, RowUpdates):
    """One variable in shards along ``axis``; the shards may be on different devices.

    ``variables`` are jax or numpy arrays, or Python lists, of one dtype, whose shapes differ only along
    ``axis``; sizes may be 0. numpy arrays are copied and stay numpy, of any dtype: values read or computed from them
    are numpy too, until they are combined with jax arrays. With ``partition_strategy="div"`` the variable is the
    concatenation of its shards. With "mod" row ``i`` is row ``i // k`` of shard ``i % k`` of k; ``shape``, slices and
    ``numpy()`` still count rows by ``i``.

    >>> import numpy as np
    >>> table = ShardedVariable([np.ones((2, 3), "f4"), np.ones((1, 3), "f4")], name="table")
    >>> table.shape
    (3, 3)

    A jax pytree whose children are the shards; ``jax.jit`` accepts it if all shards are on the same devices. Numpy
    shards of a dtype that jax would narrow, such as float64 without ``jax_enable_x64``, cannot be passed to jax. Raises
    VariableTypeError (a TypeError) for anything but a non-empty sequence of arrays, VariableError (a ValueError) if
    they do not fit together.
    """

    _changing: RLock

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        kind: Any = cls
        register_pytree(kind)  # here, since unpickling does not call __init__
        made = super().__new__(cls)
        made._changing = RLock()  # updates of two threads do not overwrite each other
        return made

    def __init__(
        self,
        variables: Sequence[jax.Array | np.ndarray[Any, Any]],
        name: str | None = None,
        *,
        axis: int = 0,
        partition_strategy: str = "div",
    ) -> None:
        name = "ShardedVariable" if name is None else name
        self._shards, axis = checked_shards(variables, axis, name)
        self._static = Static(name, axis, partition_strategy)
        self._rows  # noqa: B018  the sizes must suit the strategy

    @classmethod
    def split(
        cls,
        array: Any,
        partition: Any,
        name: str | None = None,
        *,
        axis: int = 0,
        partition_strategy: str = "div",
        devices: Sequence[Any] | None = None,
    ) -> Self:
        """Splits ``array`` into a variable; the first ``rows % shards`` shards have one row more.

        ``partition`` is a number of shards, a partitioner (``FixedShardsPartitioner(4)``) or a list of parts
        per dimension. Shards are dealt to ``devices`` (devices or shardings) in turn; None leaves
        them on the array's device, and splits a numpy array or a list into numpy shards. With more shards than
        rows the last shards have no rows.
        """
        import jax

        name = "ShardedVariable" if name is None else name
        if isinstance(array, list):
            array = from_python(array, name)
        elif not isinstance(array, jax.Array | ShardedVariable):
            array = to_numpy(array, name, "split")
        axis = checked_axis(array.shape, axis, name)
        shards = shard_count(partition, array.shape, array.dtype, axis, name)
        rows = ShardRows.even(array.shape[axis], shards, partition_strategy)
        pieces = cut(array, rows, axis, name, devices)
        made = cls(pieces, name, axis=axis, partition_strategy=partition_strategy)
        made._static = replace(made._static, partitioner=known_partitioner(partition))
        return made

    @classmethod
    def _of(cls, shards: tuple[Any, ...], static: Static) -> Self:
        made = cls.__new__(cls)
        made._shards, made._static = shards, static
        made._refuse_narrowed()
        return made

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole variable as a new numpy array, joined in host memory."""
        common_axis(self._shards, self.axis, self.name)
        return whole_array(self._shards, self.axis, self._rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise VariableError(
                f"{self.name!r} is kept in shards, so an array of it is always a copy; leave copy=False out"
            )
        whole = self.numpy()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __jax_array__(self) -> jax.Array:
        import jax.numpy as jnp

        check_jax_keeps(self.dtype, self.name)
        return jnp.asarray(self._whole())

    def _whole(self) -> Array:
        return gathered(self._live, self.axis, self._rows)

    def __getitem__(self, index: Any) -> Array:
        """Part of the variable by NumPy's rules; only the needed shards are read.

        Takes integers, slices, ``...``, None, masks and integer arrays. Raises VariableIndexError (an IndexError) if
        NumPy raises IndexError. Traced indices follow jax.numpy's rules instead.
        """
        return take_index(self._live, self.axis, self._rows, index, self.name)

    def assign(
        self, value: Any, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Self:  # fmt: skip
        """Replaces the whole value by ``value``, of the same shape and dtype, or raises and changes nothing.

        Raises VariableTypeError for another dtype, VariableError for another shape and under
        tracing. The other arguments of this and of all methods below are TensorFlow's, and have no effect.
        """
        return self._replace("assign", value, lambda _, new: new)

    def assign_add(
        self, delta: Any, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Self:  # fmt: skip
        """Adds ``delta``, of the same shape and dtype; raises the errors of ``assign``."""
        return self._replace("assign_add", delta, operator.add)

    def assign_sub(
        self, delta: Any, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Self:  # fmt: skip
        """Subtracts ``delta``, of the same shape and dtype; raises the errors of ``assign``."""
        return self._replace("assign_sub", delta, operator.sub)

    def sparse_read(self, indices: Any, name: str | None = None) -> Array:
        """The rows at ``indices``, whole numbers in one dimension, in that order.

        Raises VariableIndexError for an index out of range. A traced one gives NaN, the smallest integer, or
        for an unsigned dtype the largest, instead.
        """
        indices = checked_index_type(indices, self.name, "sparse_read")
        check_rank_one(indices, self.name, "sparse_read")
        return rows_of(self._live, self.axis, self._rows, indices, self.name, "sparse_read")

    def embedding_lookup(
        self, ids: Any, partition_strategy: str | None = None, max_norm: float | None = None
    ) -> Array:
        """The rows at ``ids``, of any shape: an array of shape ``ids.shape + self.shape[1:]``.

        ``partition_strategy`` must be the table's own or None; any other raises VariableError. Rows with an L2
        norm above ``max_norm`` are scaled down to it. Ids out of range are treated as in ``sparse_read``.
        """
        check_same_strategy(partition_strategy, self._rows, self.name)
        ids = checked_index_type(ids, self.name, "embedding_lookup")
        if max_norm is not None:
            check_norm(max_norm, self.dtype, self.name)
        found = rows_of(self._live, self.axis, self._rows, ids, self.name, "embedding_lookup")
        return found if max_norm is None else clipped(found, max_norm, ids.ndim, self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_changing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shards = tuple(map(unwritable, self._shards))

    def __iter__(self) -> Iterator[Array]:
        """The shards, in order."""
        return iter(self._shards)

    def __repr__(self) -> str:
        shapes = [list(getattr(s, "shape", ())) for s in self._shards]
        return (
            f"ShardedVariable(name={self.name!r}, axis={self.axis}, "
            f"partition_strategy={self.partition_strategy!r}, shards={shapes})"
        )

    def _replace(self, method: str, value: Any, combine: Combine) -> Self:
        refuse_tracing(self.name, method, self._shards, value)
        if method != "assign":
            check_arithmetic(self.dtype, self.name, method)
        value = checked_values(value, self.shape, self.dtype, self.name, method)
        with self._changing:
            old = self._shards if method == "assign" else self._live
            self._shards = replaced(old, self.axis, self._rows, value, combine)
        return self

    def _scatter(self, method: str, operation: str, delta: IndexedSlices) -> Self:
        refuse_tracing(self.name, method, self._shards, delta.values, delta.indices)
        with self._changing:
            self._shards = scattered(
                self._live, self.axis, self._rows, delta, operation, self.name, method
            )
        return self

    @property
    def _live(self) -> tuple[Array, ...]:
        # jax.tree.map may have replaced shards by something else, or by a mix of numpy and jax arrays.
        return live_shards(self._shards, self.axis, self.name)

    def _refuse_narrowed(self) -> None:
        """Raises VariableTypeError if jax has narrowed numpy shards, as under ``jit``."""
        if not self._static.numpy_dtype:
            return
        import jax

        held = narrowed_by_jax(self._static.numpy_dtype)
        if any(isinstance(shard, jax.Array) and str(shard.dtype) == held for shard in self._shards):
            check_jax_keeps(self._static.numpy_dtype, self.name)


def variable_of_shards(shards: Sequence[Any], static: Static) -> ShardedVariable:
    """A variable of arrays that nothing else refers to, so numpy arrays are not copied.

    Raises the errors of ``ShardedVariable``.
    """
    if not are_numpy(shards):
        made = ShardedVariable(
            shards, static.name, axis=static.axis, partition_strategy=static.strategy
        )
        made._static = static
        return made
    made = ShardedVariable._of(tuple(map(unwritable, shards)), static)
    made._live, made._rows  # noqa: B018  they must fit together, and suit the strategy
    return made


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
