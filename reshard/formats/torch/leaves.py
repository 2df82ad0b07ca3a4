"""Leaves of a tree that torch saved: numbers are tensors without dimensions, as everywhere here; text and None are other leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.formats.contents import Leaf, PathKey
from reshard.formats.torch.plain_value import Empty

_NUMBER = {"value_metadata": {"value_type": "scalar", "skip_deserialize": False}}
_TEXT = {"value_type": "string", "skip_deserialize": False}


def tensor_leaf(path: tuple[PathKey, ...]) -> Leaf:
    """The leaf of a tensor."""
    return leaf_at(path, {})


def value_leaf(path: tuple[PathKey, ...], value: Any) -> Leaf:
    """The leaf of a number, a text, None or an empty container."""
    if isinstance(value, str):
        return leaf_at(path, {"value_metadata": _TEXT, "string": value}, is_tensor=False)
    if value is None or isinstance(value, Empty):
        kind = "None" if value is None else value.kind
        meta = {"value_metadata": {"value_type": kind, "skip_deserialize": True}}
        return leaf_at(path, meta, is_tensor=False)
    return leaf_at(path, _NUMBER)


def leaf_at(path: tuple[PathKey, ...], meta: Mapping[str, Any], *, is_tensor: bool = True) -> Leaf:
    """The leaf with this path and what its format says of it."""
    return Leaf("/".join(key.key for key in path), path, tensor=is_tensor, meta=meta)
