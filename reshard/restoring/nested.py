"""The tree of a checkpoint that is restored without ``like``: dicts and lists, as stock Orbax gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reshard.formats.base import PathKey
from reshard.formats.sequences import is_list

_EMPTY: dict[str, Any] = {"Dict": dict, "List": list, "Tuple": tuple}
"""By Orbax's names; an empty namedtuple, whose class is not known, is None."""


def nested(leaves: Iterable[tuple[tuple[PathKey, ...], Any]]) -> Any:
    """The tree of these leaves, each with its path; a node is a list where its keys are exactly 0, 1, …

    A single leaf without a path is the whole tree.
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
    """What stands for a leaf without data: an empty container, or None."""
    return _EMPTY.get(value_type, lambda: None)()


class _Node(dict[PathKey, Any]):
    """An inner node, told apart from restored values that are dicts."""


def _built(node: dict[PathKey, Any]) -> Any:
    values = {key: _built(v) if isinstance(v, _Node) else v for key, v in node.items()}
    return _as_list(values) if is_list(values) else {k.key: v for k, v in values.items()}


def _as_list(values: dict[PathKey, Any]) -> list[Any]:
    return [values[PathKey(str(i), True)] for i in range(len(values))]
