"""Checks that a list of arrays can be the shards of a variable: one dtype, fitting shapes."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError, VariableIndexError, VariableTypeError
from reshard.geometry.dtypes import DTYPES

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


def narrowed_by_jax(dtype: Any) -> str | None:
    """The dtype to which jax would narrow this one now; None if jax keeps it."""
    import jax

    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return None
    held = jax.dtypes.canonicalize_dtype(dtype)
    return None if held == dtype else str(held)


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
