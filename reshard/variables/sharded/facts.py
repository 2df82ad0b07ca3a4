"""Facts: a sharded variable's shards, shape, dtype, rows and boxes, without a look at its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError
from reshard.geometry.grid import Box
from reshard.layout.partitioners import Partitioner
from reshard.layout.tensor_spec import SaveSliceInfo
from reshard.variables.sharded.in_jax import Shape
from reshard.variables.sharded.shards import ShardRows, sizes_along

if TYPE_CHECKING:
    import numpy as np

    from reshard.variables.sharded.shards import Array


class Static(Struct, frozen=True):
    """The parts of a variable that are not shards; jax treats them as tree structure.

    ``numpy_dtype`` is the dtype of numpy shards that jax would narrow; otherwise empty. ``partitioner`` is one of this
    package's, which can be compared and hashed, or None.
    """

    name: str
    axis: int
    strategy: str
    numpy_dtype: str = ""
    partitioner: Partitioner | None = None


class Facts:
    """Facts of a variable that follow from its shards and its ``Static``."""

    _shards: tuple[Any, ...]
    _static: Static

    @property
    def variables(self) -> list[Array]:
        """The shards, in order; numpy shards are read-only."""
        return list(self._shards)

    @property
    def name(self) -> str:
        """The variable's name, in messages and in slice metadata."""
        return self._static.name

    @property
    def axis(self) -> int:
        """The dimension that is split, counted from the front."""
        return self._static.axis

    @property
    def partition_strategy(self) -> str:
        """Strategy by which rows are assigned to shards: "div" or "mod"."""
        return self._static.strategy

    @property
    def partitioner(self) -> Partitioner | None:
        """The partitioner of this package that chose the number of shards; None if the number is from elsewhere."""
        return self._static.partitioner

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        dtype: np.dtype[Any] = self._shards[0].dtype
        return dtype

    @property
    def shape(self) -> Shape:
        """Shape of the whole variable: a tuple, and a list by ``.as_list()``."""
        total = self._rows.total
        first = self._shards[0].shape
        return Shape((*first[: self.axis], total, *first[self.axis + 1 :]))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shards[0].shape)

    @property
    def rows(self) -> tuple[range, ...]:
        """For each shard, its rows (indices along ``axis``), in its order."""
        return tuple(map(self._rows.of, range(len(self._shards))))

    @property
    def boxes(self) -> tuple[Box, ...]:
        """For each shard, its box of the variable; empty for a shard without rows.

        Raises VariableError for a "mod" table, whose shards are not boxes; use ``rows`` instead.
        """
        if self.partition_strategy == "mod":
            raise VariableError(
                f"the shards of {self.name!r} contain every {len(self._shards)}th row ('mod'), which "
                f"no box describes; use .rows, or split it as 'div'"
            )
        shape, axis = self.shape, self.axis
        return tuple(_box(shape, axis, held) for held in self.rows)

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """For each shard, the start of its box; VariableError for a "mod" table."""
        return tuple(box.start for box in self.boxes)

    @property
    def save_slice_infos(self) -> list[SaveSliceInfo]:
        """For each shard, its slice of the variable; VariableError for a "mod" table."""
        shape = self.shape
        return [SaveSliceInfo.from_box(self.name, shape, box) for box in self.boxes]

    @property
    def _rows(self) -> ShardRows:
        return ShardRows(sizes_along(self.axis, self._shards, self.name), self.partition_strategy)


def _box(shape: tuple[int, ...], axis: int, held: range) -> Box:
    whole = Box.full(shape)
    return Box(
        (*whole.start[:axis], held.start, *whole.start[axis + 1 :]),
        (*whole.stop[:axis], held.stop, *whole.stop[axis + 1 :]),
    )
