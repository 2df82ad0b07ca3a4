"""Plain values that ``torch.save`` wrote: numbers, text, None, and lists, tuples and dicts of them.

Every other value becomes an ``Unread``: warnings name it, and nothing reads it.

Leaves of a tree that torch saved: numbers are tensors without dimensions, as everywhere here; text and None are other leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.answers.record import safe
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_NAME_CHARACTERS, MAX_PATH_KEYS
from reshard.formats.pickle.machine import Built, Name, Table
from reshard.formats.torch.archived_tensor import TENSOR_NAMES, is_tensor

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


COMPLEX, ORDERED, BYTES = "complex", "OrderedDict", "bytes"

PLAIN_NAMES = {
    "__builtin__.complex": COMPLEX,
    "builtins.complex": COMPLEX,
    # Before protocol 3 a pickle has bytes as the text that they are the Latin-1 code of.
    "_codecs.encode": BYTES,
    "__builtin__.bytes": BYTES,
    **TENSOR_NAMES,
}
"""Names in the pickle of a plain value; it lists tensors and bytes so that warnings can name them."""

EMPTY_KINDS = {list: "List", tuple: "Tuple", Table: "Dict"}

_FEW_PARTS = 1 << 16

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1

Plain = bool | int | float | complex | str | None


class Empty(Struct, frozen=True):
    """An empty container; ``kind`` is ``"List"``, ``"Tuple"`` or ``"Dict"``."""

    kind: str


class Unread(Struct, frozen=True):
    """A value that is not read; ``kind`` says what it is, as in "it is …"."""

    kind: str


PlainValues = tuple[tuple[Path, Plain | Empty, tuple[int, ...]], ...] | Unread
"""Each value with its path, and the depths of the tuples around it, in keys before the end of the path."""


class NotPlainError(Exception):
    """A part of a value is not plain; its text says what it is, as in "it is …"."""


def plain_values(node: Any, most: int) -> PlainValues:
    """The values in a node; an Unread where any part of it is not plain, or they are more than ``most``."""
    try:
        return tuple(
            (path, plain_leaf(leaf), tuple(len(path) - depth for depth in tuples))
            for path, leaf, tuples in _leaf_nodes(node, most)
        )
    except NotPlainError as error:
        return Unread(str(error))


def most_parts(pickled: bytes) -> int:
    """The most parts of a pickle that are looked at: each takes a byte, unless it is the same one again and again."""
    return max(_FEW_PARTS, 2 * len(pickled))


def _leaf_nodes(node: Any, most: int) -> Iterator[tuple[Path, Any, tuple[int, ...]]]:
    """The nodes that are no containers, in order: path, node, and the number of keys to each tuple around it.

    Containers may contain themselves, so that depth and number are limited: NotPlainError, as for keys that are no names.
    """
    waiting: list[tuple[Path, Any, tuple[int, ...]]] = [((), node, ())]
    steps = 0
    while waiting:
        path, value, tuples = waiting.pop()
        steps += 1
        if steps > most or len(path) > MAX_PATH_KEYS:
            raise NotPlainError("a value with too many parts")
        children = list(_children(value))
        if children:
            inner = (*tuples, len(path)) if isinstance(value, tuple) else tuples
            waiting += [((*path, key), child, inner) for key, child in reversed(children)]
        else:
            yield path, value, tuples


def _children(value: Any) -> Iterator[tuple[PathKey, Any]]:
    if isinstance(value, Built) and value.name == ORDERED and value.table is not None:
        value = value.table
    if isinstance(value, list | tuple):
        for number, child in enumerate(value):
            yield PathKey(str(number), is_sequence=True), child
    elif isinstance(value, Table):
        pairs = [(_key(key), child) for key, child in value.pairs()]
        if len({key for key, _ in pairs}) < len(pairs):
            raise NotPlainError("a dict with a key twice")
        yield from pairs


def _key(key: Any) -> PathKey:
    """The key of a dict. A number becomes text, as torch makes names of it."""
    if type(key) not in (str, int) or len(str(key)) > MAX_NAME_CHARACTERS:
        raise NotPlainError("a dict with keys that are no names")
    return PathKey(str(key))


def plain_leaf(value: Any) -> Plain | Empty:
    """A number, a text, None or an empty container. NotPlainError for any other node."""
    if type(value) in EMPTY_KINDS:
        return Empty(EMPTY_KINDS[type(value)])
    if value is None or type(value) in (bool, float, str):
        found: Plain = value
        return found
    if type(value) is int:
        if not _LEAST <= value <= _MOST:
            raise NotPlainError("an integer of more than 64 bits")
        return value
    if is_tensor(value):
        raise NotPlainError("a value with tensors in it")
    if isinstance(value, bytes):
        raise NotPlainError(BYTES)
    if isinstance(value, Built):
        return _made(value)
    if isinstance(value, Name):
        raise NotPlainError(f"the object {safe(value.text[:200])}")
    raise NotPlainError("an object")


def _made(value: Built) -> Plain | Empty:
    if value.name == ORDERED and not value.arguments:
        return Empty("Dict")  # attributes, such as the versions of modules, are left out
    arguments = value.arguments
    if value.name == COMPLEX and len(arguments) == 2 and {type(a) for a in arguments} == {float}:
        return complex(*arguments)
    if value.name == BYTES:
        raise NotPlainError(BYTES)
    raise NotPlainError(f"an object of {safe(value.name[:200])}")
