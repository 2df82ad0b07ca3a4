"""Partitioners: the number of shards of a tensor along one axis, by count or by bytes.

The formulas are those of ``tf.distribute.experimental.partitioners``, in whole numbers: with d the
size of the axis, N the number of elements and b the bytes of one,

- fixed: ``min(k, d)``
- min size m: ``max(1, min(d, max_shards, ceil(N·b / m)))``
- max size M: ``ceil(d / max(1, floor(M / (N/d·b))))``, at most ``max_shards``

and shards are cut as by TensorFlow's 'div' strategy: the first ones have one row more.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from reshard.errors import LayoutError
from reshard.geometry.dtypes import DTYPES, storage_bytes
from reshard.geometry.grid import MAX_PARTS, Cuts


@runtime_checkable
class Partitioner(Protocol):
    """A function that gives the number of parts of a tensor along each dimension.

    The partitioners below are some. Any function of these arguments is one too.
    """

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class FixedShardsPartitioner:
    """A fixed number of shards; fewer if the axis has fewer elements.

    >>> FixedShardsPartitioner(3)((4, 10), "float32", axis=-1)
    [1, 3]
    """

    num_shards: int

    def __post_init__(self) -> None:
        _whole_numbers(self, num_shards=1)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:  # noqa: ARG002  of the interface
        """Parts along each dimension: the number of shards at ``axis``, 1 elsewhere."""
        shape = _checked_shape(shape)
        axis = _axis_index(shape, axis)
        return _parts(shape, axis, min(self.num_shards, shape[axis]))


@dataclass(frozen=True, slots=True)
class MinSizePartitioner:
    """The most shards, up to ``max_shards``, that have at least ``min_shard_bytes`` each.

    >>> MinSizePartitioner(4, max_shards=2)((6, 1), "float32")
    [2, 1]
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _whole_numbers(self, min_shard_bytes=1, max_shards=1, bytes_per_string=1)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Parts along each dimension: the number of shards at ``axis``, 1 elsewhere."""
        shape = _checked_shape(shape)
        axis = _axis_index(shape, axis)
        total_bytes = math.prod(shape) * _element_bytes(dtype, self.bytes_per_string)
        shards = min(shape[axis], self.max_shards, -(-total_bytes // self.min_shard_bytes))
        return _parts(shape, axis, max(1, shards))


@dataclass(frozen=True, slots=True)
class MaxSizePartitioner:
    """The fewest shards that have at most ``max_shard_bytes`` each, but no more than ``max_shards``.

    ``max_shards`` None or 0 sets no limit. A slice of one element along the axis is never split.

    >>> MaxSizePartitioner(4)((6, 1), "float32")
    [6, 1]
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _whole_numbers(self, max_shard_bytes=1, bytes_per_string=1)
        if self.max_shards is not None:
            _whole_numbers(self, max_shards=0)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Parts along each dimension: the number of shards at ``axis``, 1 elsewhere."""
        shape = _checked_shape(shape)
        axis = _axis_index(shape, axis)
        if not math.prod(shape):
            raise LayoutError(
                f"shape {list(shape)} has no elements, so no shard size can be kept; leave it whole"
            )
        element_bytes = _element_bytes(dtype, self.bytes_per_string)
        slice_bytes = math.prod(shape) // shape[axis] * element_bytes
        rows = max(1, self.max_shard_bytes // slice_bytes)
        shards = -(-shape[axis] // rows)
        return _parts(shape, axis, min(self.max_shards, shards) if self.max_shards else shards)


def recorded_partitioner(partitioner: object) -> dict[str, int]:
    """The record of a partitioner in ``slices.json``, in the words of layout files; empty for a user's function.

    >>> recorded_partitioner(MaxSizePartitioner(1 << 20, max_shards=8))
    {'max_size': 1048576, 'max_shards': 8}
    """
    match partitioner:
        case FixedShardsPartitioner():
            return {"fixed_shards": partitioner.num_shards}
        case MinSizePartitioner():
            return {"min_size": partitioner.min_shard_bytes, "max_shards": partitioner.max_shards}
        case MaxSizePartitioner():
            limit = {"max_shards": partitioner.max_shards} if partitioner.max_shards else {}
            return {"max_size": partitioner.max_shard_bytes, **limit}
        case _:
            return {}


def div_cuts(size: int, shards: int) -> Cuts:
    """Cuts of ``size`` rows into ``shards``, the first ``size % shards`` with one row more.

    An empty dimension has the single cut 0. More shards than rows are a LayoutError.

    >>> div_cuts(13, 5)
    (0, 3, 6, 9, 11, 13)
    """
    if size == 0:
        return (0,)
    if not 1 <= shards <= min(size, MAX_PARTS):
        raise LayoutError(
            f"{size} rows cannot be split into {shards} shards; expected 1 to {min(size, MAX_PARTS)}"
        )
    base, extra = divmod(size, shards)
    return tuple(i * base + min(i, extra) for i in range(shards + 1))


def _whole_numbers(partitioner: object, **least: int) -> None:
    """Converts fields that are whole numbers of another type, such as ``1e6``, to int; LayoutError for others."""
    for name, smallest in least.items():
        given = getattr(partitioner, name)
        found = _whole(given)
        if found is None or found < smallest:
            raise LayoutError(
                f"{name} must be a whole number of at least {smallest}, not {given!r}"
            )
        object.__setattr__(partitioner, name, found)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return (
            int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
        )
    except TypeError:
        return None


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes = [_whole(n) for n in shape] if isinstance(shape, Iterable) else [None]
    if any(n is None or n < 0 for n in sizes):
        raise LayoutError(f"a shape is a sequence of whole numbers of at least 0, not {shape!r}")
    return tuple(n for n in sizes if n is not None)


def _axis_index(shape: Sequence[int], axis: Any) -> int:
    if not shape:
        raise LayoutError("a scalar cannot be partitioned; it has no axis to split")
    try:
        axis = operator.index(axis)
    except TypeError:
        raise LayoutError(f"an axis is a whole number, not {axis!r}") from None
    if not -len(shape) <= axis < len(shape):
        raise LayoutError(
            f"axis {axis} is out of range for shape {list(shape)}; expected {-len(shape)} to {len(shape) - 1}"
        )
    return int(axis % len(shape))


def _parts(shape: Sequence[int], axis: int, shards: int) -> list[int]:
    return [shards if dim == axis else 1 for dim in range(len(shape))]


def _element_bytes(dtype: Any, bytes_per_string: int) -> int:
    if dtype is None:  # which numpy takes for float64
        raise LayoutError("a dtype is needed to count bytes, not None")
    name = dtype if isinstance(dtype, str) else _canonical(dtype)
    if name in {"string", "object"} or name.startswith(("str", "bytes")):
        return bytes_per_string
    return storage_bytes(name if name in DTYPES else _canonical(name))


def _canonical(dtype: Any) -> str:
    """The name of a dtype in any of numpy's forms (``"f4"``, ``np.float32``)."""
    import numpy as np

    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return str(dtype)
