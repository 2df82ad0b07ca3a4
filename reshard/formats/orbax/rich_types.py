"""``value_metadata_tree``: the tree with its tuples and namedtuples, if Orbax recorded them.

Orbax reads it instead of ``tree_metadata`` if rich types are enabled, so it must have exactly the leaves that were
written. If it has, its leaves are updated. If leaves were dropped or renamed, the types of the remaining tuples are
unknown, and it is left out: Orbax then uses ``tree_metadata``, as for every checkpoint without rich types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Keys = tuple[str, ...]
_LEAF = "ValueMetadataEntry"
_MAX_DEPTH = 200


def updated_tree(text: str, values: Mapping[Keys, Mapping[str, Any]]) -> str | None:
    """The tree's JSON with each leaf's data from ``values``, or None if the leaves differ."""
    try:
        tree = json.loads(text)
        leaves = dict(_leaves(tree, ()))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if leaves.keys() != values.keys():
        return None
    for keys, leaf in leaves.items():
        leaf["data"] = dict(values[keys])
    return json.dumps(tree)


def _leaves(node: Any, keys: Keys) -> Iterator[tuple[Keys, dict[str, Any]]]:
    if len(keys) > _MAX_DEPTH:
        raise ValueError("the tree is nested too deep")
    if _category(node) == "custom" and node["clazz"] == _LEAF:
        yield keys, node
        return
    for key, child in _children(node):
        yield from _leaves(child, (*keys, key))


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    category = _category(node)
    if category == "namedtuple":
        yield from ((entry["key"], entry["value"]) for entry in node["entries"])
    elif category == "custom":
        yield from ((str(i), child) for i, child in enumerate(node["entries"]))
    elif isinstance(node, list):
        yield from ((str(i), child) for i, child in enumerate(node))
    elif isinstance(node, dict):
        yield from node.items()
    else:
        raise TypeError("neither a container nor a leaf")


def _category(node: Any) -> str | None:
    found = node.get("category") if isinstance(node, dict) else None
    return found if isinstance(found, str) else None
