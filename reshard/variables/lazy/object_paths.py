"""The graph of Python objects below a root, as paths: ``blk.lst.0.kernel``.

Attributes (also of dataclasses and ``__slots__``) by name, lists and tuples by index, mappings by
key, named tuples by field; sets have no order and are passed over. Depth first, in the order in which attributes were set; an object that
is reached twice keeps the path that was first. Properties are not run: they may compute anything.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from reshard.errors import VariableError

CACHED_ATTRIBUTES = frozenset(
    {
        "_self_tracked_trackables",
        "_trainable_weights",
        "_non_trainable_weights",
        "_captured_weight_regularizer",
    }
)
"""Attributes that only list what is somewhere else too, as the Keras of dtensor kept them."""

Children = Iterator[tuple[str, object]]

_PLAIN = (
    str, bytes, bytearray, memoryview, int, float, complex, bool, type(None), type, ModuleType,
    FunctionType, BuiltinFunctionType, MethodType, *weakref.ProxyTypes,
)  # fmt: skip


def object_paths(
    root: object,
    is_leaf: Callable[[object], bool],
    children: Callable[[object], Children | None] = lambda _: None,
) -> dict[str, Any]:
    """Every leaf below ``root`` by its dot-joined path; the root itself has the path ``""``.

    Args:
        root: where paths start.
        is_leaf: what to collect.
        children: names and children of kinds of objects that have ways of their own, else None.

    Raises VariableError where two leaves have the same path, as ``{"a.b": x, "a": {"b": y}}``.
    """
    found: dict[str, Any] = {}
    seen: dict[int, object] = {}  # keeps what was seen alive, so that no id is used twice
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, node = stack.pop()
        if _is_plain(node) or id(node) in seen:
            continue
        seen[id(node)] = node
        if is_leaf(node):
            _add(found, path, node)
            continue
        below = children(node)
        every = _children(node) if below is None else below
        named = [(name, child) for name, child in every if not _is_plain(child)]
        stack.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(named))
    return found


def _is_plain(node: object) -> bool:
    return issubclass(
        type(node), _PLAIN
    )  # isinstance would ask a weak proxy for what it stands for


def _add(found: dict[str, Any], path: str, leaf: object) -> None:
    if path in found:
        raise VariableError(
            f"two variables have the path {path!r}, so a layout map cannot tell them apart; rename a "
            f"key or an attribute that has a dot in it"
        )
    found[path] = leaf


def _children(node: object) -> Children:
    if isinstance(node, Mapping):
        return ((str(key), value) for key, value in node.items())
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return zip(node._fields, node, strict=True)
    if isinstance(node, list | tuple | deque):
        return ((str(index), value) for index, value in enumerate(node))
    return iter(()) if isinstance(node, Set) or _is_array(node) else attributes(node)


def attributes(node: object) -> Children:
    """The attributes that an instance holds, in its slots and its ``__dict__``, without the cached ones."""
    for name, slot in _slots(type(node)):
        with suppress(AttributeError):  # of a slot that was never set
            yield name, slot.__get__(node)
    with suppress(AttributeError):  # of an object that has slots alone
        for name, value in list(object.__getattribute__(node, "__dict__").items()):
            if name not in CACHED_ATTRIBUTES:
                yield name, value


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    for base in reversed(kind.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            hidden = name.startswith("__") and not name.endswith("__")
            slot = vars(base).get(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
            if isinstance(slot, MemberDescriptorType) and name not in CACHED_ATTRIBUTES:
                yield name, slot


def _is_array(node: object) -> bool:
    jax = sys.modules.get("jax")
    # Asks the type: an object may answer any attribute, and compute something to do so.
    return hasattr(type(node), "__array_interface__") or (
        jax is not None and isinstance(node, jax.Array)
    )
