"""New paths for leaves that are renamed: keys that a rename leaves alone stay what they were."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.errors import FormatError
from reshard.formats.base import Leaf, PathKey


def renamed(leaf: Leaf, name: str, items: Sequence[str]) -> Leaf:
    """``leaf`` under another name; ``items`` are the trees that a name must begin with, if several.

    Keys at both ends of the path that are the same text stay the same keys, so that a list stays a
    list and a key with a slash in it stays one key; what is new is split at slashes into dict keys.
    """
    if name == leaf.name:
        return leaf
    item, inner = _item_of(leaf, name, items)
    return Leaf(name, _path(leaf.path, inner), item, leaf.tensor, leaf.meta)


def _item_of(leaf: Leaf, name: str, items: Sequence[str]) -> tuple[str, str]:
    if len(items) < 2:
        return leaf.item, name
    item, _, inner = name.partition("/")
    if item not in items or not inner:
        raise FormatError(
            f"{leaf.name!r} would be renamed to {name!r}, but this checkpoint has several trees and a name must "
            f"begin with one of them: {', '.join(items)}"
        )
    return item, inner


def _path(path: tuple[PathKey, ...], inner: str) -> tuple[PathKey, ...]:
    head: list[PathKey] = []
    for key in path:
        if not inner.startswith(key.key + "/"):
            break
        head.append(key)
        inner = inner[len(key.key) + 1 :]
    tail: list[PathKey] = []
    for key in reversed(path[len(head) :]):
        if inner == key.key:
            return (*head, key, *reversed(tail))
        if not inner.endswith("/" + key.key):
            break
        tail.append(key)
        inner = inner[: -len(key.key) - 1]
    middle = [PathKey(part) for part in inner.split("/")]
    return (*head, *middle, *reversed(tail))
