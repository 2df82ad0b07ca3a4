"""IndexedSlices, and the scatter methods of a variable, which change some of its rows."""

# ruff: noqa: ARG002  TensorFlow's arguments without a meaning here

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct

from reshard.errors import VariableTypeError


class IndexedSlices(Struct, frozen=True):
    """New rows for the ``scatter_*`` methods: ``values[i]`` belongs to row ``indices[i]``.

    ``indices`` are whole numbers in one dimension, ``values`` has as many rows. The variable checks both.
    """

    values: Any
    indices: Any


def indexed_slices(delta: Any, values: Any, name: str, method: str) -> IndexedSlices:
    """IndexedSlices from the arguments ``(indices, values)``, or from one object with both."""
    if values is not None and not isinstance(values, bool):
        return IndexedSlices(values, delta)
    if hasattr(delta, "indices") and hasattr(delta, "values"):
        return IndexedSlices(delta.values, delta.indices)
    raise VariableTypeError(
        f"{method} of {name!r} expects IndexedSlices(values, indices), or indices and values, not "
        f"a {type(delta).__name__} alone"
    )


class RowUpdates:
    """The ``scatter_*`` methods, all of which call ``_scatter``.

    They take ``(indices, values)`` or one ``IndexedSlices(values, indices)``. ``indices`` count rows of
    dimension 0, as in ``sparse_read``, along whichever axis the variable is split; ``values`` have the variable's dtype
    and, except for dimension 0, its shape. If an index occurs twice, both values are applied, in order.

    Raises VariableIndexError for an index out of range, VariableTypeError for another dtype,
    VariableError for another shape and under tracing; an error leaves the variable unchanged.
    """

    name: Any
    _scatter: Any

    def scatter_add(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Adds rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_add")
        changed: Self = self._scatter("scatter_add", "add", delta)
        return changed

    def scatter_sub(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Subtracts rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_sub")
        changed: Self = self._scatter("scatter_sub", "sub", delta)
        return changed

    def scatter_mul(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Multiplies rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_mul")
        changed: Self = self._scatter("scatter_mul", "mul", delta)
        return changed

    def scatter_div(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Divides rows; integer division rounds towards zero."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_div")
        changed: Self = self._scatter("scatter_div", "div", delta)
        return changed

    def scatter_max(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Keeps the larger of the old and new elements of rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_max")
        changed: Self = self._scatter("scatter_max", "max", delta)
        return changed

    def scatter_min(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Keeps the smaller of the old and new elements of rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_min")
        changed: Self = self._scatter("scatter_min", "min", delta)
        return changed

    def scatter_update(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Replaces rows; the last value of a repeated index counts."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_update")
        changed: Self = self._scatter("scatter_update", "update", delta)
        return changed

    def batch_scatter_update(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Replaces rows like ``scatter_update``; TensorFlow's batches have one dimension too."""
        delta = indexed_slices(sparse_delta, values, self.name, "batch_scatter_update")
        changed: Self = self._scatter("batch_scatter_update", "update", delta)
        return changed
