"""Checks values and indices that are given to a variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reshard.errors import VariableError, VariableIndexError, VariableTypeError
from reshard.variables.sharded.shards import check_not_deleted

# A Python number may take a dtype of its own kind or of a later one in this order.
_KINDS = ("bool", "integer", "floating", "complexfloating")


def checked_values(value: Any, shape: Sequence[int], dtype: Any, name: str, method: str) -> Any:
    """``value`` as an array of exactly ``shape`` and ``dtype``; Python numbers take the dtype.

    Raises VariableTypeError for another dtype, VariableError for another shape.
    """
    if not hasattr(value, "dtype"):
        value = _from_python(value, dtype, name, method)
    elif not hasattr(value, "__jax_array__"):
        value = _plain(value, name, method)
    if value.dtype != dtype:
        raise VariableTypeError(
            f"{method} of {name!r} expects values of dtype {dtype}, not {value.dtype}; cast them first"
        )
    if tuple(value.shape) != tuple(shape):
        raise VariableError(
            f"{method} of {name!r} expects values of shape {list(shape)}, not {list(value.shape)}"
        )
    return value


def checked_indices(indices: Any, rows: int, name: str, method: str) -> Any:
    """``indices`` as a numpy array of int64 in ``0 <= index < rows``, of any rank.

    Raises VariableTypeError unless they are whole numbers, VariableIndexError out of range.
    """
    import numpy as np

    found = checked_index_type(indices, name, method)
    found = np.asarray(found)
    wrong = found[(found < 0) | (found >= rows)]
    if wrong.size:
        raise VariableIndexError(
            f"{method} of {name!r} was given index {wrong[0]}; it has rows 0 to {rows - 1}"
            if rows
            else f"{method} of {name!r} was given index {wrong[0]}; it has no rows"
        )
    return found.astype(np.int64)


def checked_index_type(indices: Any, name: str, method: str) -> Any:
    """``indices`` as an array of whole numbers, traced or not; an empty list is allowed."""
    import jax.numpy as jnp
    import numpy as np

    if not hasattr(indices, "dtype"):
        indices = to_numpy(indices, name, method)
        indices = indices if indices.size else indices.astype(np.int64)
    elif not hasattr(indices, "__jax_array__"):
        indices = _plain(indices, name, method)
    if not jnp.issubdtype(indices.dtype, np.integer):
        raise VariableTypeError(
            f"{method} of {name!r} expects whole numbers as indices, not {indices.dtype}"
        )
    return indices


def check_rank_one(indices: Any, name: str, method: str) -> None:
    """Raises VariableError for indices of more or fewer than one dimension."""
    if indices.ndim != 1:
        raise VariableError(
            f"{method} of {name!r} expects indices of one dimension, not of shape {list(indices.shape)}"
        )


def _from_python(value: Any, dtype: Any, name: str, method: str) -> Any:
    import numpy as np

    found = to_numpy(value, name, method)
    if found.size and not _becomes(found, dtype):
        raise VariableTypeError(
            f"{method} of {name!r} expects values of dtype {dtype}, which the given "
            f"{found.dtype.name} numbers cannot become"
        )
    return np.asarray(found, dtype)


def _becomes(found: Any, dtype: Any) -> bool:
    given, wanted = _kind(found.dtype), _kind(dtype)
    if given == "integer" == wanted:
        limits: Any = _limits(dtype)
        return bool(limits.min <= found.min() and found.max() <= limits.max)
    if given is None or wanted is None or "bool" in {given, wanted}:
        return given == wanted == "bool"
    return _KINDS.index(given) <= _KINDS.index(wanted)


def _limits(dtype: Any) -> Any:
    import ml_dtypes

    limits: Any = ml_dtypes.iinfo
    return limits(dtype)


def _kind(dtype: Any) -> str | None:
    import jax.numpy as jnp
    import numpy as np

    if dtype == np.bool_:
        return "bool"
    return next((k for k in _KINDS[1:] if jnp.issubdtype(dtype, getattr(jnp, k))), None)


def _plain(array: Any, name: str, method: str) -> Any:
    """An object with a dtype as a jax or numpy array; masked arrays are refused."""
    import jax

    check_not_deleted(array, name, f"an array given to {method} of")
    return array if isinstance(array, jax.Array) else to_numpy(array, name, method)


def to_numpy(value: Any, name: str, method: str) -> Any:
    """The value as a numpy array; VariableError if numpy cannot convert it."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        raise VariableTypeError(
            f"{method} of {name!r} was given a masked array; fill it first, with .filled(…)"
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise VariableError(f"{method} of {name!r} was given no array: {error}") from None
