"""The shards of a variable: arrays of one dtype and fitting shapes, and the place of each row in them (ShardRows).

Row ``i`` of ``n`` over ``k`` shards::

    'div', sizes 3 3 2        'mod', 8 rows over 3
    shard 0: 0 1 2            shard 0: 0 3 6      row i is in shard i % k
    shard 1: 3 4 5            shard 1: 1 4 7      at place i // k
    shard 2: 6 7              shard 2: 2 5

'div' shards may have any sizes, also 0; 'mod' determines the sizes.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError, VariableIndexError, VariableTypeError
from reshard.geometry.dtypes import DTYPES, narrowed_by_jax

if TYPE_CHECKING:
    from typing import TypeAlias

    import jax
    import numpy as np

    Array: TypeAlias = "jax.Array | np.ndarray[Any, Any]"


def checked_shards(variables: Any, axis: int, name: str) -> tuple[tuple[Array, ...], int]:
    """``variables`` as the variable's own arrays, and ``axis`` counted from the front.

    numpy arrays are copied and stay numpy; beside jax arrays they become jax arrays. Python lists are converted
    to arrays. Raises VariableTypeError unless ``variables`` is a non-empty sequence of arrays, VariableError
    if ranks, dtypes or sizes of other axes differ, or shards are scalars.
    """
    if not isinstance(name, str):
        raise VariableTypeError(f"the name of a variable must be text, not {name!r}")
    _check_sequence(variables, name)
    arrays = [from_python(v, name) if isinstance(v, list) else v for v in variables]
    axis = common_axis(arrays, axis, name)
    if are_numpy(arrays):
        return tuple(map(kept_numpy, arrays)), axis
    return tuple(as_jax_array(v, name) for v in arrays), axis


def live_shards(shards: Sequence[Any], axis: int, name: str) -> tuple[Array, ...]:
    """The shards of a variable, checked again, as all numpy or all jax arrays."""
    common_axis(shards, axis, name)
    if are_numpy(shards):
        return tuple(shards)
    return tuple(as_jax_array(shard, name) for shard in shards)


def are_numpy(arrays: Sequence[Any]) -> bool:
    """True if all of them are numpy arrays."""
    import numpy as np

    return all(isinstance(array, np.ndarray) for array in arrays)


def array_module(arrays: Sequence[Any]) -> Any:
    """The module that computes with these shards: ``numpy`` or ``jax.numpy``."""
    import jax.numpy as jnp
    import numpy as np

    return np if are_numpy(arrays) else jnp


def kept_numpy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A read-only copy: a variable changes by replacing its arrays, as with jax."""
    import numpy as np

    copied: np.ndarray[Any, Any] = unwritable(np.array(array))
    return copied


def unwritable(array: Any) -> Any:
    """A read-only view of a numpy array; anything else unchanged."""
    import numpy as np

    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.setflags(write=False)
    return view


def from_python(value: Any, name: str) -> np.ndarray[Any, Any]:
    """An array of a Python list, with TensorFlow's dtypes: float32, int32, and int64 for larger numbers."""
    import numpy as np

    try:
        found = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise VariableError(f"{name!r} was given a list that is not an array: {error}") from None
    if any(isinstance(leaf, np.generic | np.ndarray) for leaf in _leaves(value)):
        return found
    if found.dtype == np.float64:
        return _as_float32(found, name)
    limits = np.iinfo(np.int32)
    fits = found.dtype == np.int64 and (
        not found.size or (limits.min <= found.min() and found.max() <= limits.max)
    )
    return found.astype(np.int32) if fits else found


def _leaves(value: Any) -> Iterator[Any]:
    for item in value:
        yield from _leaves(item) if isinstance(item, list | tuple) else (item,)


def _as_float32(found: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    import numpy as np

    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32)
    if np.isinf(narrow).sum() > np.isinf(found).sum():
        raise VariableError(
            f"{name!r} was given a list of numbers beyond float32, which is the dtype of a list; give "
            f"numpy.array(…), which is float64"
        )
    return narrow


def common_axis(shards: Sequence[Any], axis: int, name: str) -> int:
    """``axis`` counted from the front; an error if shards are not arrays or do not fit together."""
    for shard in shards:
        _check_array(shard, name)
    _check_same("dtype", [str(s.dtype) for s in shards], name)
    _check_same("number of dimensions", [s.ndim for s in shards], name)
    axis = checked_axis(shards[0].shape, axis, name)
    beside = [s.shape[:axis] + s.shape[axis + 1 :] for s in shards]
    if len(set(beside)) > 1:
        raise VariableError(
            f"shards of {name!r} must have the same shape except along axis {axis}, but have "
            f"{_brief([list(s.shape) for s in shards])}"
        )
    return axis


def sizes_along(axis: int, shards: Sequence[Any], name: str) -> tuple[int, ...]:
    """Rows of each shard; VariableError if a jax transformation replaced a shard by something without that axis."""
    try:
        return tuple(shard.shape[axis] for shard in shards)
    except (AttributeError, IndexError):
        found = _brief([getattr(s, "shape", type(s).__name__) for s in shards])
        raise VariableError(
            f"the shards of {name!r} are not arrays along axis {axis} but {found}, which a jax function put in "
            f"their place; see .variables"
        ) from None


def checked_axis(shape: Sequence[int], axis: Any, name: str) -> int:
    """``axis`` counted from the front; an error for a scalar and for an axis out of range."""
    if not shape:
        raise VariableError(f"{name!r} is a scalar; a variable in shards needs an axis to split")
    axis = whole_number(given := axis)
    if axis is None:
        raise VariableTypeError(f"the axis of {name!r} must be a whole number, not {given!r}")
    if not -len(shape) <= axis < len(shape):
        raise VariableIndexError(
            f"axis {axis} is out of range for {name!r} of shape {list(shape)}; "
            f"expected {-len(shape)} to {len(shape) - 1}"
        )
    return int(axis % len(shape))


def as_jax_array(value: Any, name: str, device: Any = None) -> jax.Array:
    """A jax array of exactly the same dtype; numpy arrays are copied to ``device``.

    Raises VariableTypeError if ``value`` is not an array, and for a dtype that jax would narrow.
    """
    import jax
    import numpy as np

    _check_array(value, name)
    check_jax_keeps(value.dtype, name)
    if isinstance(value, jax.Array):
        return value if device is None else jax.device_put(value, device)
    # Without a copy jax may share the memory of a numpy array, and a later write would change the variable.
    held: jax.Array = jax.device_put(np.array(value), device)
    return held


def whole_number(value: Any) -> int | None:
    """``value`` as an int; None for anything that is not a whole number, also for True and 2.0."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_not_deleted(value: Any, name: str, what: str) -> None:
    """Raises VariableError for an array that was donated or deleted."""
    import jax

    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return
    if value.is_deleted():
        raise VariableError(
            f"{what} {name!r} was donated or deleted, so its values are gone; use the result of the function "
            f"that it was donated to"
        )


def _check_array(value: Any, name: str) -> None:
    import jax
    import numpy as np

    masked = isinstance(value, np.ma.MaskedArray)
    if masked or not isinstance(value, jax.Array | np.ndarray):
        raise VariableTypeError(
            f"a shard of {name!r} must be a jax or numpy array, not a {type(value).__name__}"
        )
    check_not_deleted(value, name, "a shard of")
    _check_dtype(value.dtype, name)


def check_jax_keeps(dtype: Any, name: str) -> None:
    """Raises VariableTypeError for a dtype that jax would silently narrow."""
    held = narrowed_by_jax(dtype)
    if held is not None:
        raise VariableTypeError(
            f"{name!r} has dtype {dtype}, which jax would narrow to {held}; set jax_enable_x64, cast it "
            f"first, or stay with numpy: .numpy(), slices and look-ups keep {dtype}"
        )


def _check_dtype(dtype: Any, name: str) -> None:
    import jax

    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        raise VariableTypeError(
            f"a shard of {name!r} has dtype {dtype}, which has no elements to slice; "
            f"shard jax.random.key_data(keys) instead"
        )
    if str(dtype) not in DTYPES:
        raise VariableTypeError(
            f"a shard of {name!r} has dtype {dtype}, which is not a dtype of numbers"
        )


def _check_sequence(variables: Any, name: str) -> None:
    sequence = isinstance(variables, Sequence) and not isinstance(variables, str | bytes)
    if not sequence or not variables:
        found = "an empty one" if sequence else f"a {type(variables).__name__}"
        raise VariableTypeError(
            f"the shards of {name!r} must be a non-empty list or tuple of arrays, not {found}"
        )


def _check_same(what: str, found: list[Any], name: str) -> None:
    if len(set(found)) > 1:
        raise VariableError(
            f"shards of {name!r} must have one {what}, but have {_brief(found)}; cast or reshape them first"
        )


def _brief(found: list[Any]) -> str:
    shown = ", ".join(map(str, found[:8]))
    return f"{shown}, … ({len(found)} shards)" if len(found) > 8 else shown


STRATEGIES = ("div", "mod")


class RowPart(Struct, frozen=True):
    """The rows that one shard contributes to a list of wanted rows: its rows at ``places`` go to positions ``at``.

    Both are ranges, or arrays of whole numbers, of equal length.
    """

    shard: int
    places: Any
    at: Any


@dataclass(frozen=True)
class ShardRows:
    """The rows of each shard of a variable: ``sizes`` rows each, assigned by ``strategy``.

    >>> ShardRows((3, 3, 2), "mod").of(1)
    range(1, 8, 3)

    Raises VariableError for an unknown strategy and for sizes that 'mod' does not give.
    """

    sizes: tuple[int, ...]
    strategy: str = "div"

    def __post_init__(self) -> None:
        check_strategy(self.strategy)
        if self.strategy == "div":
            return
        expected = even_sizes(self.total, len(self.sizes))
        if self.sizes != expected:
            raise VariableError(
                f"a 'mod' table of {self.total} rows in {len(self.sizes)} shards has "
                f"{list(expected)} rows in them, not {list(self.sizes)}; row i must be in shard "
                f"i % {len(self.sizes)}"
            )

    @classmethod
    def even(cls, total: int, shards: int, strategy: str = "div") -> ShardRows:
        """``total`` rows over ``shards``; the first ``total % shards`` have one row more."""
        return cls(even_sizes(total, shards), strategy)

    @cached_property
    def total(self) -> int:
        """Rows of the whole variable."""
        return sum(self.sizes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each shard, for 'div'."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def of(self, shard: int) -> range:
        """The rows of ``shard``, in its order."""
        if self.strategy == "mod":
            return range(shard, self.total, len(self.sizes))
        return range(self.starts[shard], self.starts[shard] + self.sizes[shard])

    def owners(self, rows: Any, xp: Any) -> tuple[Any, Any]:
        """The shard of each row number and the place in that shard; ``xp`` is numpy or jax.numpy.

        The answer for a row outside of ``0 <= row < total`` is meaningless.
        """
        if self.strategy == "mod":
            return rows % len(self.sizes), rows // len(self.sizes)
        starts = xp.asarray(self.starts)
        shard = xp.searchsorted(starts + xp.asarray(self.sizes), rows, side="right")
        shard = xp.minimum(shard, len(self.sizes) - 1)
        return shard, rows - starts[shard]

    def parts_of_range(self, wanted: range) -> list[RowPart]:
        """The parts of a rising range of rows, in time independent of its length."""
        if self.strategy == "mod":
            return list(self._mod_parts(wanted))
        return list(self._div_parts(wanted))

    def parts_of(self, wanted: np.ndarray[Any, Any]) -> list[RowPart]:
        """The parts of row numbers ``0 <= row < total`` in any order, with or without repetitions."""
        import numpy as np

        shard, place = self.owners(wanted, np)
        order = np.argsort(shard, kind="stable")
        holders, starts = np.unique(shard[order], return_index=True)
        groups = np.split(order, starts[1:])
        return [RowPart(int(s), place[at], at) for s, at in zip(holders, groups, strict=False)]

    def _div_parts(self, wanted: range) -> Iterator[RowPart]:
        for shard, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            at = range(bisect_left(wanted, start), bisect_left(wanted, start + size))
            if at:
                held = wanted[at.start : at.stop]
                yield RowPart(shard, range(held.start - start, held[-1] - start + 1, held.step), at)

    def _mod_parts(self, wanted: range) -> Iterator[RowPart]:
        # Every period-th wanted row is in the same shard, at evenly spaced places.
        shards = len(self.sizes)
        period = shards // math.gcd(wanted.step, shards)
        for first in range(min(period, len(wanted))):
            held = wanted[first::period]
            places = range(held[0] // shards, held[-1] // shards + 1, held.step // shards)
            yield RowPart(held[0] % shards, places, range(first, len(wanted), period))


def even_sizes(total: int, shards: int) -> tuple[int, ...]:
    """The number of rows of each shard; the first ``total % shards`` have one row more.

    >>> even_sizes(13, 5)
    (3, 3, 3, 2, 2)
    """
    base, extra = divmod(total, shards)
    return (base + 1,) * extra + (base,) * (shards - extra)


def check_strategy(strategy: Any) -> None:
    """Raises VariableError for anything but 'div' and 'mod'."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise VariableError(f"a partition strategy is 'div' or 'mod', not {strategy!r}")


def as_slice(rows: range) -> slice:
    """A rising range of non-negative numbers as a slice."""
    return slice(rows.start, rows.stop, rows.step)
