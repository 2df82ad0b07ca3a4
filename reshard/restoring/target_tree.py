"""The tree that a restore returns: that of ``like``, or, without ``like``, dicts and lists as in stock Orbax.

Leaves of ``like`` have the names that Orbax gives them: keys, attribute names and positions of the path, joined
with ``/``, so that the leaves of an optax or NNX state match those of the checkpoint: ``opt_state/0/mu/dense/kernel``.

``into``: numpy arrays that a restore fills in place, checked before anything is read.

Names are those of ``like``: the keys of the path, joined with ``/``. A flat dict by name is a tree too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from reshard.errors import PlanError, ReshardError, TreeError
from reshard.formats.contents import PathKey
from reshard.formats.leaf_paths import is_list, named_leaves
from reshard.formats.limits import MAX_PATH_KEYS
from reshard.geometry.dtypes import DTYPES
from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    import jax
    import numpy as np

    from reshard.restoring.regions import Array


LeafKind = Literal["jax", "numpy", "scalar", "string", "shards", "key", "given"]
"""``given``: an array of ``into``, which is filled in place."""


class TargetLeaf(Struct, frozen=True):
    """One leaf of ``like`` or ``into``.

    Attributes:
        leaf: the leaf itself.
        dtype: None for a Python number or a string.
        sharding: that of the leaf; None if it has none, or is an uncommitted array.
        is_placed: true if the caller chose the sharding; a live array has one in any case.
    """

    kind: LeafKind
    leaf: Any
    shape: tuple[int, ...] = ()
    dtype: str | None = None
    sharding: jax.sharding.Sharding | None = None
    is_placed: bool = False

    @property
    def what(self) -> str:
        """Its dtype and shape, or its type, in words."""
        if self.kind in ("string", "scalar"):
            return f"a {type(self.leaf).__name__}"
        return f"{self.dtype} of shape {list(self.shape)}"


class TargetTree(Struct, frozen=True):
    """``like`` or ``into`` as leaves by name, in the tree's order, and the structure of ``like``."""

    leaves: Mapping[str, TargetLeaf]
    structure: Any

    def filled(self, values: Mapping[str, Any]) -> Any:
        """The same tree with these values."""
        import jax

        return jax.tree_util.tree_unflatten(self.structure, [values[name] for name in self.leaves])


def read_target(tree: Any) -> TargetTree:
    """The leaves and the structure of ``like``.

    Raises TreeError, naming every leaf that nothing can be restored onto, or two leaves with the same name.
    """
    named, structure = named_leaves(tree, "tree (like)")
    targets = {name: _target_leaf(leaf) for name, leaf in named.items()}
    wrong = [f"{name or '(the whole tree)'} is {_kind_of(named[name])}"
             for name, found in targets.items() if found is None]  # fmt: skip
    if wrong:
        count = "a leaf" if len(wrong) == 1 else f"{len(wrong)} leaves"
        more = f", and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise TreeError(
            f"like has {count} that nothing can be restored onto: {', '.join(wrong[:10])}{more}; "
            "expected jax.ShapeDtypeStruct, jax or numpy arrays, ShardedVariables, numbers or strings"
        )
    return TargetTree(
        {name: found for name, found in targets.items() if found is not None}, structure
    )


def _kind_of(leaf: Any) -> str:
    import jax

    if isinstance(leaf, jax.core.Tracer):
        return "a tracer of jax (restore outside of jax.jit)"
    return (
        f"the class {leaf.__name__}" if isinstance(leaf, type) else f"of type {type(leaf).__name__}"
    )


def _target_leaf(leaf: Any) -> TargetLeaf | None:
    """The target of a leaf; None for one that nothing can be restored onto."""
    import jax
    import numpy as np

    if isinstance(leaf, str):
        return TargetLeaf("string", leaf)
    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        return TargetLeaf("scalar", leaf)
    if isinstance(leaf, ShardedVariable):
        return TargetLeaf("shards", leaf, tuple(leaf.shape), str(leaf.dtype))
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None or isinstance(leaf, type | jax.core.Tracer):
        return None
    if isinstance(leaf, np.ndarray | np.generic):
        # dtype.name has no byte order: the result has the byte order of this machine.
        return TargetLeaf("numpy", leaf, tuple(shape), leaf.dtype.name)
    return _jax_leaf(leaf, tuple(shape), dtype)


def _jax_leaf(leaf: Any, shape: tuple[int, ...], dtype: Any) -> TargetLeaf:
    """An array of jax, its abstract form, or anything else with a shape and a dtype."""
    import jax
    import numpy as np

    is_key = jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)
    name = str(dtype) if is_key else str(np.dtype(dtype))
    sharding = getattr(leaf, "sharding", None)
    is_free = isinstance(leaf, jax.Array) and not leaf.committed
    if is_free or not isinstance(sharding, jax.sharding.Sharding):
        sharding = None
    is_placed = sharding is not None and not isinstance(leaf, jax.Array)
    return TargetLeaf("key" if is_key else "jax", leaf, shape, name, sharding, is_placed)


_EMPTY: dict[str, Any] = {"Dict": dict, "List": list, "Tuple": tuple}
"""By Orbax's names of types; an empty namedtuple, whose class is not known, becomes None."""


def nested(leaves: Iterable[tuple[tuple[PathKey, ...], Any]]) -> Any:
    """The tree of these paths and values; a node whose keys are exactly 0, 1, … becomes a list.

    A leaf with an empty path is the whole tree.
    """
    root: dict[PathKey, Any] = {}
    for path, value in leaves:
        if not path:
            return value
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, _Node())
        node[path[-1]] = value
    return _built(root)


def empty_value(value_type: str) -> Any:
    """The value of a leaf without data: an empty container, or None."""
    return _EMPTY.get(value_type, lambda: None)()


class _Node(dict[PathKey, Any]):
    """An inner node; restored values may be dicts too."""


def _built(node: dict[PathKey, Any]) -> Any:
    values = {key: _built(v) if isinstance(v, _Node) else v for key, v in node.items()}
    if is_list(values):
        return [values[PathKey(str(i), True)] for i in range(len(values))]
    return {k.key: v for k, v in values.items()}


SHOWN = 10
"""Leaves that an error lists; the rest is counted."""

OVERLAP_WORK = 10_000
"""Most work for deciding whether two arrays with interleaved memory overlap; for slices of one array numpy needs far
less."""

MIXED = "the arrays of into may hold new and old values now; restore into them again before you use them"


def check_alone(others: Mapping[str, Any]) -> None:
    """Raises PlanError if an argument that chooses another output comes with ``into``."""
    given = [f"{name}=" for name, value in others.items() if value is not None]
    if given:
        raise PlanError(
            f"into= was given together with {', '.join(given)}, but the arrays of into already say where "
            "everything goes; leave out one of them. into= can be combined with select, drop, rename, cast, missing, "
            "unexpected, max_memory, workers, verify, progress and report"
        )


def read_into(tree: Any) -> TargetTree:
    """The arrays of ``into`` by name.

    Raises one TreeError that names every leaf that cannot be filled in place, or two that share memory.
    """
    named = _named(tree)
    wrong = [f"{name or '(the whole tree)'} is {reason}"
             for name, leaf in named.items() if (reason := _refusal(leaf))]  # fmt: skip
    if wrong:
        count = "a leaf" if len(wrong) == 1 else f"{len(wrong)} leaves"
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise TreeError(
            f"into has {count} that cannot be filled in place: {'; '.join(wrong[:SHOWN])}{more}; expected numpy "
            "arrays that can be written"
        )
    _refuse_shared_memory(named)
    return TargetTree({name: _target(array) for name, array in named.items()}, None)


@contextmanager
def filling() -> Iterator[None]:
    """Adds to an error of the block that the arrays may be half filled."""
    try:
        yield
    except PlanError:  # raised before anything is read
        raise
    except ReshardError as error:
        error.args = (f"{error}; {MIXED}", *error.args[1:])
        raise
    except BaseException as error:
        error.add_note(MIXED)
        raise


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by name. Trees with classes other than Python's own exist only if jax is loaded."""
    if "jax" in sys.modules:
        return named_leaves(tree, "tree (into)")[0]
    found: dict[str, Any] = {}
    for path, leaf in _leaves(tree, ()):
        name = "/".join(path)
        if name in found:
            raise TreeError(
                f"two leaves of the tree (into) are named {name!r}; rename one, since only one can be in a checkpoint"
            )
        found[name] = leaf
    return found


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) > MAX_PATH_KEYS:
        raise TreeError(
            f"the tree (into) contains itself, or nests more than {MAX_PATH_KEYS} levels deep; expected a tree "
            "without circles"
        )
    if isinstance(node, dict):
        children = [(str(key), child) for key, child in node.items()]
    elif isinstance(node, list | tuple):
        keys = getattr(node, "_fields", range(len(node)))
        children = [(str(key), child) for key, child in zip(keys, node, strict=True)]
    else:
        if node is not None:
            yield path, node
        return
    for key, child in children:
        yield from _leaves(child, (*path, key))


def _refusal(leaf: Any) -> str:
    """The kind of the leaf, and the remedy; "" for an array that can be filled."""
    import numpy as np

    if isinstance(leaf, np.ma.MaskedArray):
        return "a masked array (give its .data)"
    if isinstance(leaf, np.ndarray):
        return _array_refusal(leaf)
    if isinstance(leaf, ShardedVariable):
        return "a ShardedVariable, whose shards are never changed in place (give it as like=)"
    if isinstance(leaf, str):
        return "a string, which cannot change in place (leave it out, and say unexpected='ignore')"
    if isinstance(leaf, bool | int | float | complex | np.generic):
        return "a number, which cannot change in place (give a numpy array of shape [])"
    if type(leaf).__module__.partition(".")[0] in ("jax", "jaxlib"):
        what = "struct" if type(leaf).__name__ == "ShapeDtypeStruct" else "array"
        return f"a jax {what}, which cannot change in place (give it as like=)"
    return f"of type {type(leaf).__name__}"


def _array_refusal(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.name not in DTYPES:
        return f"an array of dtype {array.dtype}, which no checkpoint has"
    if not array.dtype.isnative:
        return f"an array in the other byte order, {array.dtype.str} (give one of dtype {array.dtype.name})"
    if not array.flags.writeable:
        return "a read-only array (give one that can be written; a file is mapped so by mode='r+')"
    if not _is_apart(array):
        return "an array whose elements overlap in memory (give a copy of it)"
    return ""


def _is_apart(array: np.ndarray[Any, Any]) -> bool:
    """True if no two elements share memory: each stride is longer than everything that smaller strides reach. True for
    every slice, transpose and diagonal of an array; false for a broadcast array.
    """
    reach = array.itemsize
    steps = ((abs(step), n) for step, n in zip(array.strides, array.shape, strict=True) if n > 1)
    for step, n in sorted(steps):
        if step < reach:
            return not array.size
        reach += step * (n - 1)
    return True


def _refuse_shared_memory(named: Mapping[str, Array]) -> None:
    """Raises TreeError for the first two arrays that share memory, in the order of their addresses."""
    spans = sorted((*_span(array), name) for name, array in named.items() if array.size)
    reaching: list[tuple[int, str]] = []
    for start, stop, name in spans:
        reaching = [(end, other) for end, other in reaching if end > start]
        for _, other in reaching:
            if _share(named[other], named[name]):
                first, second = sorted((other, name))
                raise TreeError(
                    f"the arrays {first!r} and {second!r} of into overlap in memory, so that one would overwrite "
                    "the other; give each its own"
                )
        reaching.append((stop, name))


def _span(array: Array) -> tuple[int, int]:
    """The addresses of the first byte and after the last."""
    first: int = array.__array_interface__["data"][0]
    reach = [step * (n - 1) for step, n in zip(array.strides, array.shape, strict=True)]
    low = sum(step for step in reach if step < 0)
    high = sum(step for step in reach if step > 0)
    return first + low, first + high + array.itemsize


def _share(a: Array, b: Array) -> bool:
    import numpy as np

    try:
        return np.shares_memory(a, b, max_work=OVERLAP_WORK)  # type: ignore[arg-type] # any number
    except np.exceptions.TooHardError:
        return True


def _target(array: np.ndarray[Any, Any]) -> TargetLeaf:
    import numpy as np

    plain = array.view(np.ndarray)  # a memmap or a subclass is filled as the array below it
    return TargetLeaf("given", plain, array.shape, array.dtype.name)
