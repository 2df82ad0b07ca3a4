"""The scatter methods of a variable: new values for some of its rows."""

# ruff: noqa: ARG002  arguments that upstream has and that mean nothing here

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct

from reshard.errors import VariableTypeError


class IndexedSlices(Struct, frozen=True):
    """``values[i]`` belongs to row ``indices[i]``; what the ``scatter_*`` methods take.

    ``indices`` are whole numbers in one dimension, ``values`` has as many rows. What they must fit is
    the variable, which checks it.
    """

    values: Any
    indices: Any


def indexed_slices(delta: Any, values: Any, name: str, method: str) -> IndexedSlices:
    """From either way of calling: ``(indices, values)``, or one object that carries both."""
    if values is not None and not isinstance(values, bool):
        return IndexedSlices(values, delta)
    if hasattr(delta, "indices") and hasattr(delta, "values"):
        return IndexedSlices(delta.values, delta.indices)
    raise VariableTypeError(
        f"{method} of {name!r} expects IndexedSlices(values, indices), or indices and values, not "
        f"a {type(delta).__name__} alone"
    )


class RowUpdates:
    """``scatter_*``, over the one method that changes rows.

    Each is called with ``(indices, values)`` or with one ``IndexedSlices(values, indices)``.
    ``indices`` are places in dimension 0, as those of ``sparse_read`` are, whichever axis the shards lie
    along; ``values`` have the variable's dtype, and its shape with as many entries in dimension 0. An index that comes twice takes both values, in their order.

    Raises VariableIndexError for an index out of range, VariableTypeError for another dtype,
    VariableError for another shape and under tracing; then nothing has changed.
    """

    name: Any
    _scatter: Any

    def scatter_add(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Add rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_add")
        changed: Self = self._scatter("scatter_add", "add", delta)
        return changed

    def scatter_sub(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Subtract rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_sub")
        changed: Self = self._scatter("scatter_sub", "sub", delta)
        return changed

    def scatter_mul(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Multiply rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_mul")
        changed: Self = self._scatter("scatter_mul", "mul", delta)
        return changed

    def scatter_div(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Divide rows, whole numbers towards zero."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_div")
        changed: Self = self._scatter("scatter_div", "div", delta)
        return changed

    def scatter_max(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Keep the larger of the old and new elements of rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_max")
        changed: Self = self._scatter("scatter_max", "max", delta)
        return changed

    def scatter_min(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Keep the smaller of the old and new elements of rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_min")
        changed: Self = self._scatter("scatter_min", "min", delta)
        return changed

    def scatter_update(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Replace rows; of an index that comes twice the last value stays."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_update")
        changed: Self = self._scatter("scatter_update", "update", delta)
        return changed

    def batch_scatter_update(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Replace rows, as ``scatter_update`` does: upstream's batches have one dimension."""
        delta = indexed_slices(sparse_delta, values, self.name, "batch_scatter_update")
        changed: Self = self._scatter("batch_scatter_update", "update", delta)
        return changed
