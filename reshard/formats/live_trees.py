"""Live trees as jax flattens them, for ``save`` and for ``restore(like=…)``."""

from __future__ import annotations

from typing import Any

from reshard.errors import TreeError
from reshard.formats.limits import MAX_PATH_KEYS
from reshard.variables.sharded.variable import ShardedVariable


def children(node: Any) -> list[Any]:
    """The children of a node, one level down; a ShardedVariable counts as a leaf."""
    import jax

    if isinstance(node, ShardedVariable):
        return []
    opened = jax.tree_util.default_registry.flatten_one_level(node)
    return [] if opened is None else list(opened[0])


def refuse_circles(tree: Any, what: str) -> None:
    """Raises TreeError for a tree that contains itself or nests too deep; ``what`` is its name in messages.

    jax would follow a cycle until the interpreter's stack overflows, which ends the process.
    """
    above: list[Any] = []
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        del above[depth:]
        found = children(node)
        if not found:
            continue
        if depth >= MAX_PATH_KEYS or any(node is other for other in above):
            raise TreeError(
                f"the {what} contains itself, or nests more than {MAX_PATH_KEYS} levels deep (a "
                f"{type(node).__name__} in a {type(above[-1]).__name__}); expected a tree without circles"
            )
        above.append(node)
        waiting.extend((child, depth + 1) for child in found)


def named_leaves(tree: Any, what: str, is_leaf: Any = None) -> tuple[dict[str, Any], Any]:
    """Leaves by name, and the tree's structure; ``what`` is the tree's name in messages."""
    import jax

    def whole(node: Any) -> bool:
        return isinstance(node, ShardedVariable) or (is_leaf is not None and is_leaf(node))

    try:
        refuse_circles(tree, what)
        found, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=whole)
    except TreeError:
        raise
    except (ValueError, TypeError) as error:
        raise TreeError(
            f"the {what} is not a tree that jax can walk: {str(error).strip()}; use dicts with keys of one type, "
            "lists, tuples and registered classes"
        ) from error
    named: dict[str, Any] = {}
    for path, leaf in found:
        name = "/".join(map(_key_text, path))
        if name in named:
            raise TreeError(
                f"two leaves of the {what} are named {name!r}; rename one, since only one can be in a checkpoint"
            )
        named[name] = leaf
    return named, structure


def _key_text(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
