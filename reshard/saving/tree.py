"""A live tree as leaves: their paths, the metadata that stock Orbax would record, and their arrays.

Nodes are jax's nodes; paths are named as in Orbax. A ShardedVariable is one leaf. All leaves that cannot be
saved are refused in one error, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import TreeError
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.leaf_paths import children, refuse_circles
from reshard.geometry.dtypes import DTYPES, NOT_STORED, STORED_DTYPES
from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    import numpy as np

SHOWN_PROBLEMS = 20
"""Leaves that an error lists; it counts the others."""


class LiveLeaf(Struct, frozen=True):
    """A leaf and its array: of jax or numpy, a ShardedVariable, or None for a leaf without one."""

    leaf: Leaf
    array: Any = None


class _Value(Struct, frozen=True):
    """The value of a leaf: its metadata and array, or the reason why it cannot be saved."""

    meta: Mapping[str, Any]
    array: Any = None
    problem: str = ""


def live_leaves(tree: Any) -> tuple[LiveLeaf, ...]:
    """Every leaf of the tree, None and empty containers too, in jax's order.

    Raises TreeError, naming every leaf that cannot be saved and why.
    """
    pairs = [(_path(keys), value) for keys, value in flatten(tree)]
    if not (isinstance(tree, ShardedVariable) or pairs[0][0]) and _is_empty(tree):
        raise TreeError(f"the tree is empty ({type(tree).__name__}); expected at least one leaf")
    found = [_value_of(value) for _, value in pairs]
    refuse({_name(path): f.problem for (path, _), f in zip(pairs, found, strict=True) if f.problem})
    return tuple(_live(path, f) for (path, _), f in zip(pairs, found, strict=True))


def flatten(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """jax's key paths and values; empty containers and whole ShardedVariables are values too."""
    import jax

    try:
        refuse_circles(tree, "tree")
        return list(jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_leaf)[0])
    except TreeError:
        raise
    except (TypeError, ValueError) as error:
        raise TreeError(
            f"the tree cannot be flattened by jax: {str(error).splitlines()[0]}; expected nested "
            "containers whose dict keys can be sorted"
        ) from error


def key_path(keys: tuple[Any, ...]) -> str:
    """The name of the leaf at jax's key path."""
    return _name(_path(keys))


def _is_leaf(node: Any) -> bool:
    return not children(node)


def _path(keys: tuple[Any, ...]) -> tuple[PathKey, ...]:
    return tuple(map(_path_key, keys))


def _path_key(key: Any) -> PathKey:
    from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

    if isinstance(key, SequenceKey):
        return PathKey(str(key.idx), is_sequence=True)
    if isinstance(key, FlattenedIndexKey):
        return PathKey(str(key.key), is_sequence=True)
    if isinstance(key, GetAttrKey):
        return PathKey(key.name)
    if isinstance(key, DictKey):
        return PathKey(str(key.key))
    raise TreeError(
        f"a node of the tree names its children by {type(key).__name__}; expected jax's DictKey, "
        "GetAttrKey, SequenceKey or FlattenedIndexKey"
    )


def _name(path: tuple[PathKey, ...]) -> str:
    return "/".join(step.key for step in path)


def refuse(problems: Mapping[str, str]) -> None:
    """Raises one TreeError for all leaves with a problem, by name; does nothing without problems."""
    if not problems:
        return
    lines = [f"  {name!r} {problem}" for name, problem in problems.items()]
    more = len(lines) - SHOWN_PROBLEMS
    rest = [f"  … and {more} more"] if more > 0 else []
    count = "1 leaf" if len(lines) == 1 else f"{len(lines)} leaves"
    raise TreeError(
        "\n".join([f"{count} of the tree cannot be saved:", *lines[:SHOWN_PROBLEMS], *rest])
    )


def _live(path: tuple[PathKey, ...], found: _Value) -> LiveLeaf:
    leaf = Leaf(_name(path), path, tensor=found.array is not None, meta=found.meta)
    return LiveLeaf(leaf, found.array)


def _value_of(value: Any) -> _Value:
    for fits, found in _KINDS:
        if fits(value):
            return found(value)
    return _Value({}, problem=_unknown(value))


def _unknown(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return (
        f"is of type {kind.removeprefix('builtins.')}; expected jax or numpy arrays, ShardedVariables, Python "
        "numbers, text or None (register its type as a jax pytree, or leave it out)"
    )


def _kind(value_type: str, *, skipped: bool = False, **more: Any) -> dict[str, Any]:
    return {"value_metadata": {"value_type": value_type, "skip_deserialize": skipped}, **more}


def _is_empty(value: Any) -> bool:
    import jax

    opened = jax.tree_util.default_registry.flatten_one_level(value)
    return value is None or opened is not None


def _empty(value: Any) -> _Value:
    """As in Orbax: an empty named tuple, and any other node without children, is restored as None."""
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    kinds = {"List": list, "Tuple": tuple, "Dict": Mapping}
    kind = next((k for k, t in kinds.items() if isinstance(value, t) and not named), "None")
    return _Value(_kind(kind, skipped=True))


def _sharded(value: ShardedVariable) -> _Value:
    for shard in value.variables:
        found = _value_of(shard)
        if found.problem or found.array is None:
            return _Value({}, problem=f"has a shard that {found.problem or 'is not an array'}")
    return _Value(_kind("np.ndarray"), value)


def _is_tracer(value: Any) -> bool:
    import jax

    return isinstance(value, jax.core.Tracer)


def _tracer(_: Any) -> _Value:
    return _Value({}, problem="is a tracer of jax, which has no value yet; save outside of jax.jit")


def _is_jax(value: Any) -> bool:
    import jax

    return isinstance(value, jax.Array)


def _jax(value: Any) -> _Value:
    import jax

    if value.is_deleted():
        problem = (
            "was deleted or donated, so its value is gone; save it before, or what replaced it"
        )
        return _Value({}, problem=problem)
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        ext = {"random_key_impl": str(jax.random.key_impl(value))}
        return _Value(_kind("jax.Array", ext_metadata=ext), value)
    return _Value(_kind("jax.Array"), value, _dtype_problem(value.dtype))


def _is_shape(value: Any) -> bool:
    import jax

    return isinstance(value, jax.ShapeDtypeStruct)


def _shape(_: Any) -> _Value:
    return _Value(
        {}, problem="is a jax.ShapeDtypeStruct, a shape without data; save the array itself"
    )


def _is_numpy(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.ndarray | np.generic) and not isinstance(value, str)


def _numpy(value: Any) -> _Value:
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        return _Value({}, problem="is a masked array, whose mask would be lost; fill it first")
    return _Value(_kind("np.ndarray"), np.asarray(value), _dtype_problem(value.dtype))


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex)


def _number(value: Any) -> _Value:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.name not in DTYPES:
        return _Value({}, problem="is a whole number beyond 64 bits; save it as text")
    # Orbax has no scalar of complex numbers.
    return _Value(_kind("np.ndarray" if isinstance(value, complex) else "scalar"), array)


def _text(value: str) -> _Value:
    return _Value(_kind("string", string=str(value)))


def _is_jax_like(value: Any) -> bool:
    return hasattr(value, "__jax_array__") and not isinstance(value, type)


def _jax_like(value: Any) -> _Value:
    import jax

    return _made(value, value.__jax_array__, jax.Array)


def _is_array_like(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, type)


def _array_like(value: Any) -> _Value:
    import numpy as np

    return _made(value, lambda: np.asarray(value), np.ndarray)


def _made(value: Any, make: Callable[[], Any], kind: type) -> _Value:
    """The array to which an object converts itself; the object's code may raise any exception."""
    try:
        array = make()
    except Exception as error:  # noqa: BLE001  reported for the leaf
        return _Value(
            {}, problem=f"cannot be turned into an array: {error or type(error).__name__}"
        )
    return _value_of(array) if isinstance(array, kind) else _Value({}, problem=_unknown(value))


def _dtype_problem(dtype: np.dtype[Any]) -> str:
    if dtype.name not in DTYPES:
        return f"has dtype {dtype}, which no checkpoint has; expected one of {', '.join(STORED_DTYPES)}"
    if dtype.name in NOT_STORED:
        return (
            f"has dtype {dtype}, which zarr3 as TensorStore reads it does not have; cast it first"
        )
    return ""


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], _Value]], ...] = (
    (lambda value: isinstance(value, ShardedVariable), _sharded),
    (_is_tracer, _tracer),
    (_is_jax, _jax),
    (lambda value: isinstance(value, str), _text),
    (_is_numpy, _numpy),
    (_is_number, _number),
    (_is_shape, _shape),
    (_is_empty, _empty),
    (_is_jax_like, _jax_like),
    (_is_array_like, _array_like),
)
"""Pairs of a test and a conversion; the first test that fits counts, so arrays come before array-likes."""
