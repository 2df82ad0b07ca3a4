"""The tree that a restore returns: that of ``like``, or, without ``like``, dicts and lists as in stock Orbax.

Leaves of ``like`` have the names that Orbax gives them: keys, attribute names and positions of the path, joined
with ``/``, so that the leaves of an optax or NNX state match those of the checkpoint: ``opt_state/0/mu/dense/kernel``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from reshard.errors import TreeError
from reshard.formats.contents import PathKey
from reshard.formats.leaf_paths import is_list
from reshard.formats.live_trees import named_leaves
from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    import jax

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
    return _as_list(values) if is_list(values) else {k.key: v for k, v in values.items()}


def _as_list(values: dict[PathKey, Any]) -> list[Any]:
    return [values[PathKey(str(i), True)] for i in range(len(values))]
