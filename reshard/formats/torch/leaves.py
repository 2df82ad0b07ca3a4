"""Leaves of a tree that torch saved: numbers are tensors without dimensions, as everywhere here; text and None are other leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.formats.contents import Leaf, PathKey
from reshard.formats.torch.plain_value import Empty, Unread

_MOST_SHOWN = 3

_NUMBER = {"value_metadata": {"value_type": "scalar", "skip_deserialize": False}}
_TEXT = {"value_type": "string", "skip_deserialize": False}


TUPLES_KEY = "tuples"
"""In the metadata of a leaf in a value of torch: the depths of the tuples around it, in keys before the end of its path."""


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


def unread_leaf(path: tuple[PathKey, ...], value: Unread, digest: str, **more: Any) -> Leaf:
    """The leaf of a value that is not read; ``digest`` is the same for the same content."""
    return leaf_at(path, {"object": value.kind, "digest": digest, **more}, is_tensor=False)


def leaf_at(path: tuple[PathKey, ...], meta: Mapping[str, Any], *, is_tensor: bool = True) -> Leaf:
    """The leaf with this path and its format's metadata."""
    return Leaf("/".join(key.key for key in path), path, tensor=is_tensor, meta=meta)


def unread_warnings(leaves: Sequence[Leaf]) -> Iterator[str]:
    """A sentence about the values that are not read."""
    unread = [leaf for leaf in leaves if leaf.is_object]
    found = [f"{leaf.name!r} is {leaf.kind}" for leaf in unread]
    carried = sum(leaf.carried is not None for leaf in unread)
    if carried:
        instead = f"torch DCP targets get {carried} of {len(unread)} as they are; leave them out (drop) of others"
    else:
        instead = "leave them out (drop) where the checkpoint is converted"
    if found:
        more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        yield (
            f"{', '.join(found[:_MOST_SHOWN])}{more}: such values are not read; {instead}, or save them as tensors, "
            "numbers and text"
        )
