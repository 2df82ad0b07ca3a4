"""ShardedVariable: one large variable, held as several arrays along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError
from reshard.layout.box import Box
from reshard.layout.slice_info import SaveSliceInfo
from reshard.variables.indexing import take_index
from reshard.variables.pytree import register_pytree
from reshard.variables.reading import filled, gathered
from reshard.variables.shard_rows import ShardRows
from reshard.variables.shards import checked_axis, checked_shards
from reshard.variables.splitting import cut, shard_count

if TYPE_CHECKING:
    import jax
    import numpy as np


@dataclass(frozen=True, slots=True)
class Static:
    """What a variable is besides its shards; part of the tree's structure to jax."""

    name: str
    axis: int
    strategy: str


class ShardedVariable:
    """One variable held in shards along ``axis``; the shards may lie on different devices.

    ``variables`` are jax or numpy arrays of one dtype whose shapes differ only along ``axis``; sizes
    may differ and may be 0. With ``partition_strategy="div"`` the variable is its shards one after
    another. With "mod" row ``i`` is row ``i // k`` of shard ``i % k`` of k, and everything here
    (``shape``, slices, ``numpy()``) still counts rows by ``i``.

    >>> import numpy as np
    >>> table = ShardedVariable([np.ones((2, 3)), np.ones((1, 3))], name="table")  # doctest: +SKIP
    >>> table.shape  # doctest: +SKIP
    (3, 3)

    A jax pytree whose children are the shards. Raises VariableTypeError (a TypeError) unless given a
    non-empty sequence of arrays, VariableError (a ValueError) where they do not fit together.
    """

    _shards: tuple[Any, ...]
    _static: Static

    def __new__(cls, *_args: Any, **_kwargs: Any) -> ShardedVariable:
        kind: Any = cls
        register_pytree(kind)  # however an instance comes to be, jax knows what it is
        return super().__new__(cls)

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
    ) -> ShardedVariable:
        """Cut ``array`` into a variable: the first ``rows % shards`` shards have one row more.

        ``partition`` is a number of shards, a partitioner (``FixedShardsPartitioner(4)``) or parts
        per dimension. Shards are dealt to ``devices`` (devices or shardings) in turn; None leaves
        them where the array is. More shards than rows leave the last ones without rows.
        """
        import jax
        import numpy as np

        name = "ShardedVariable" if name is None else name
        array = array if isinstance(array, jax.Array | cls) else np.asarray(array)
        axis = checked_axis(array.shape, axis, name)
        shards = shard_count(partition, array.shape, array.dtype, axis, name)
        rows = ShardRows.even(array.shape[axis], shards, partition_strategy)
        pieces = cut(array, rows, axis, name, devices)
        return cls(pieces, name, axis=axis, partition_strategy=partition_strategy)

    @classmethod
    def _of(cls, shards: tuple[Any, ...], static: Static) -> ShardedVariable:
        made = cls.__new__(cls)
        made._shards, made._static = shards, static
        return made

    @property
    def variables(self) -> list[jax.Array]:
        """The shards, in order."""
        return list(self._shards)

    @property
    def name(self) -> str:
        """What the variable is called, in messages and in slice metadata."""
        return self._static.name

    @property
    def axis(self) -> int:
        """The dimension along which the shards lie, counted from the front."""
        return self._static.axis

    @property
    def partition_strategy(self) -> str:
        """How rows are dealt to shards: "div" or "mod"."""
        return self._static.strategy

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        dtype: np.dtype[Any] = self._shards[0].dtype
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole variable."""
        first = self._shards[0].shape
        return (*first[: self.axis], self._rows.total, *first[self.axis + 1 :])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shards[0].shape)

    @property
    def rows(self) -> tuple[range, ...]:
        """Per shard, which rows (indices along ``axis``) of the variable it holds, in its order."""
        return tuple(map(self._rows.of, range(len(self._shards))))

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Per shard, its box of the variable; one without rows has an empty box.

        The shards of a "mod" table are no boxes: VariableError. ``rows`` says what they hold.
        """
        if self.partition_strategy == "mod":
            raise VariableError(
                f"the shards of {self.name!r} hold every {len(self._shards)}th row ('mod'), which "
                f"no box describes; use .rows, or split it as 'div'"
            )
        return tuple(self._box(held) for held in self.rows)

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """Per shard, where its box begins; VariableError for a "mod" table."""
        return tuple(box.start for box in self.boxes)

    @property
    def save_slice_infos(self) -> list[SaveSliceInfo]:
        """Per shard, which slice of the variable it is; VariableError for a "mod" table."""
        return [SaveSliceInfo.from_box(self.name, self.shape, box) for box in self.boxes]

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole variable as a new numpy array, put together on the host."""
        return filled(self._shards, self.axis, self._rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise VariableError(
                f"{self.name!r} is held in shards, so one array of it is always a copy"
            )
        whole = self.numpy()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __jax_array__(self) -> jax.Array:
        return gathered(self._shards, self.axis, self._rows)

    def __getitem__(self, index: Any) -> jax.Array:
        """Part of the variable by NumPy's rules; only the shards that hold some of it are read.

        Integers, slices, ``...``, None, masks and integer arrays. Raises VariableIndexError (an
        IndexError) where NumPy does. With traced indices jax.numpy's rules hold instead.
        """
        return take_index(self._shards, self.axis, self._rows, index, self.name)

    def __iter__(self) -> Iterator[jax.Array]:
        """The shards, in order."""
        return iter(self._shards)

    def __repr__(self) -> str:
        shapes = [list(getattr(s, "shape", ())) for s in self._shards]
        return (
            f"ShardedVariable(name={self.name!r}, axis={self.axis}, "
            f"partition_strategy={self.partition_strategy!r}, shards={shapes})"
        )

    @property
    def _rows(self) -> ShardRows:
        return ShardRows(tuple(s.shape[self.axis] for s in self._shards), self.partition_strategy)

    def _box(self, held: range) -> Box:
        whole = Box.full(self.shape)
        at = self.axis
        return Box(
            (*whole.start[:at], held.start, *whole.start[at + 1 :]),
            (*whole.stop[:at], held.stop, *whole.stop[at + 1 :]),
        )
