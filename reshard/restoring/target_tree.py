"""The leaves of ``like``, under the names that Orbax gives them.

A name is the path's keys, attribute names and positions joined with ``/``, so that an optax or NNX
state finds what was saved of it: ``opt_state/0/mu/dense/kernel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from reshard.errors import TreeError
from reshard.formats.live_trees import named_leaves
from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    import jax

Kind = Literal["jax", "numpy", "scalar", "string", "shards", "key"]


class TargetLeaf(Struct, frozen=True):
    """One leaf of ``like``.

    Attributes:
        leaf: as it stands in ``like``.
        dtype: None where any of ``python_kind`` will do.
        sharding: where ``like`` says so itself.
        is_placed: whether the sharding was chosen, not merely where a live array happens to lie.
    """

    kind: Kind
    leaf: Any
    shape: tuple[int, ...] = ()
    dtype: str | None = None
    sharding: jax.sharding.Sharding | None = None
    is_placed: bool = False


class TargetTree(Struct, frozen=True):
    """The tree taken apart; ``leaves`` in the tree's order."""

    leaves: Mapping[str, TargetLeaf]
    structure: Any

    def filled(self, values: Mapping[str, Any]) -> Any:
        """The same tree with these values."""
        import jax

        return jax.tree_util.tree_unflatten(self.structure, [values[name] for name in self.leaves])


def read_target(tree: Any) -> TargetTree:
    """What the tree asks for.

    Raises TreeError, naming every leaf that nothing can be restored onto, and where two have one name.
    """
    named, structure = named_leaves(tree, "tree (like)")
    asked = {name: _asked(leaf) for name, leaf in named.items()}
    wrong = [f"{name or '(the whole tree)'} is {_kind_of(named[name])}"
             for name, found in asked.items() if found is None]  # fmt: skip
    if wrong:
        count = "a leaf" if len(wrong) == 1 else f"{len(wrong)} leaves"
        more = f", and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise TreeError(
            f"like has {count} that nothing can be restored onto: {', '.join(wrong[:10])}{more}; "
            "expected jax.ShapeDtypeStruct, jax or numpy arrays, ShardedVariables, numbers or strings"
        )
    return TargetTree(
        {name: found for name, found in asked.items() if found is not None}, structure
    )


def _kind_of(leaf: Any) -> str:
    import jax

    if isinstance(leaf, jax.core.Tracer):
        return "a tracer of jax (restore outside of jax.jit)"
    return (
        f"the class {leaf.__name__}" if isinstance(leaf, type) else f"of type {type(leaf).__name__}"
    )


def _asked(leaf: Any) -> TargetLeaf | None:
    """None for what cannot be restored onto."""
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
        return TargetLeaf(
            "numpy", leaf, tuple(shape), leaf.dtype.name
        )  # in this machine's byte order
    is_key = jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)
    name = str(dtype) if is_key else str(np.dtype(dtype))
    sharding = getattr(leaf, "sharding", None)
    is_free = isinstance(leaf, jax.Array) and not leaf.committed
    if is_free or not isinstance(sharding, jax.sharding.Sharding):
        sharding = None
    is_placed = sharding is not None and not isinstance(leaf, jax.Array)
    return TargetLeaf("key" if is_key else "jax", leaf, tuple(shape), name, sharding, is_placed)
