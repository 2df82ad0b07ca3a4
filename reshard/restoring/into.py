"""``into``: numpy arrays that a restore fills in place, checked before anything is read.

Names are those of ``like``: the keys of the path, joined with ``/``. A flat dict by name is a tree too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reshard.errors import PlanError, ReshardError, TreeError
from reshard.formats.limits import MAX_PATH_KEYS
from reshard.formats.live_trees import named_leaves
from reshard.geometry.dtypes import DTYPES
from reshard.restoring.target_tree import TargetLeaf, TargetTree
from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    import numpy as np

    from reshard.restoring.regions import Array

SHOWN = 10
"""Leaves that an error lists; the rest is counted."""

OVERLAP_WORK = 10_000
"""Most work for deciding whether two arrays with interleaved memory overlap; for slices of one array numpy needs far
less."""

MIXED = "the arrays of into may hold new and old values now; restore into them again before you use them"


def check_alone(into: Any, others: Mapping[str, Any]) -> None:
    """Raises PlanError if ``into`` comes with an argument that chooses another output."""
    given = [f"{name}=" for name, value in others.items() if value is not None]
    if into is not None and given:
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
