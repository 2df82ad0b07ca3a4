"""The values in a pickle of ``torch.save``: tensors wherever they are, plain values, and values that are left out.

Dicts, lists and tuples give the path of each. An object is searched for tensors alone: the keys below it are joined with dots into one
key, without the tables in which a module of torch keeps its parts, so that a pickled model has the names of its state dict.

A pickle may be from a stranger: parts may be shared or contain themselves. An object is searched once, but for modules and parameters of
a module, which state dicts name at each of their places. The number of all steps is limited.

Tensors in the pickle of ``torch.save``, by the functions of torch that would make them: as they are, as parameters, with attributes.

``torch/_utils.py`` and ``torch/_tensor.py`` declare the functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.record import safe
from reshard.errors import shorten
from reshard.formats.contents import PathKey
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_NAME_CHARACTERS, MAX_PATH_KEYS
from reshard.formats.torch.pickle_machine import Built, Name, Persistent, Table
from reshard.formats.torch.saved_values import (
    ORDERED,
    PLAIN_NAMES,
    Empty,
    NotPlainError,
    Plain,
    Unread,
    is_tensor,
    plain_leaf,
)

_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_MAKERS = ("torch._utils._rebuild_", "torch._tensor._rebuild_")

_REFUSED: Mapping[str, str] = {
    "torch._utils._rebuild_qtensor": "a quantised tensor; save it after dequantize()",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor; save it after to_dense()",
    "torch._utils._rebuild_nested_tensor": "a nested tensor; save it after to_padded_tensor()",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor of the device 'meta', which has no elements",
    "torch.storage._load_from_bytes": "a storage in a pickle of its own",
}
"""Functions that make values that are not read, and the kinds of these, in words."""

STATE_NAMES: Mapping[str, str] = {
    **PLAIN_NAMES,
    "numpy.core.multiarray.scalar": "numpy.number",
    "numpy._core.multiarray.scalar": "numpy.number",
    "numpy.core.multiarray._reconstruct": "numpy.ndarray",
    "numpy._core.multiarray._reconstruct": "numpy.ndarray",
}
"""The names in a pickle of a state dict, and their texts in nodes; any other name is its own text."""

_MOST_WRAPPERS = 8
"""A tensor with attributes that is a parameter with attributes has four."""


class SavedTensor(Struct, frozen=True):
    """A tensor in a pickle.

    Attributes:
        tensor: the node that ``saved_values`` reads; an Unread for one that is not read.
        attributes: the states of its wrappers, which may hold tensors too.
    """

    tensor: Built | Unread
    attributes: list[Any]


def saved_tensor(value: Any) -> SavedTensor | None:
    """The tensor that a node would be; None for anything else."""
    if isinstance(value, Persistent):
        return SavedTensor(Unread("a storage without a tensor"), [])
    if not isinstance(value, Built):
        return None
    inner, wrapped_by, attributes = _unwrapped(value)
    if is_tensor(inner):
        return SavedTensor(inner, attributes)
    made_by = inner.name if isinstance(inner, Built) else ""
    if made_by in _REFUSED:
        return SavedTensor(Unread(_REFUSED[made_by]), attributes)
    if not wrapped_by and not made_by.startswith(_MAKERS):
        return None
    return SavedTensor(Unread(f"a tensor of {safe((wrapped_by or made_by)[:200])}"), attributes)


def _unwrapped(value: Any) -> tuple[Any, str, list[Any]]:
    """The value inside parameters and tensors with attributes, the class of the innermost of these, and the attributes."""
    wrapped_by, attributes = "", list[Any]()
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(value, Built):
            break
        attributes.append(value.state)
        given = value.arguments
        if value.name in _PARAMETERS and given:
            attributes += given[3:4]
            wrapped_by, value = value.name, given[0]
        elif value.name == _WITH_ATTRIBUTES and len(given) == 4 and _is_call(given):
            attributes.append(given[3])
            wrapped_by = given[1].text if isinstance(given[1], Name) else "a class without a name"
            value = Built(given[0].text, given[2])
        else:
            break
    return value, wrapped_by, attributes


def _is_call(given: tuple[Any, ...]) -> bool:
    return isinstance(given[0], Name) and isinstance(given[2], tuple)


_DICTS = (ORDERED, "collections.defaultdict")
"""Objects that are read as dicts; the additions of their class are of no use elsewhere."""

_TABLES = ("_modules", "_parameters", "_buffers")
"""Attributes of torch's modules that names in a state dict do not have."""

_ROOT = "tensor"
"""The name of a tensor that is all of a file."""


class LeftOut(Struct, frozen=True):
    """A value that only the program that wrote it can read; ``kind`` says what it is, as in "it is …"."""

    kind: str


PickledValue = Built | Plain | Empty | Unread | LeftOut
"""A tensor as its node, a plain value, a tensor that is not read, or another value."""

_Below = tuple[Any, str]
"""The keys below an object, the last first: those before it, or None, and one key."""


_Kind = Literal["tree", "value", "state", "attributes", "table", "listed", "module"]


class _Place(Struct, frozen=True):
    """The place of a value.

    Attributes:
        path: its keys, in no object; else those of the outermost object.
        below: its keys below that object; None at its top.
        kind: in the ``"tree"``; of an object a ``"value"``, its ``"state"``, a ``"table"`` in which a module of torch lists its parts,
            one that is ``"listed"`` there, or the ``"module"`` state of that one. The ``"attributes"`` of a tensor are such a state.
    """

    path: Path = ()
    below: _Below | None = None
    kind: _Kind = "tree"

    def named(self) -> Path:
        """The path of a tensor here."""
        if self.kind == "tree":
            return self.path or (PathKey(_ROOT),)
        keys, at = list[str](), self.below
        while at is not None and len(keys) <= MAX_PATH_KEYS:
            keys.append(at[1])
            at = at[0]
        if len(keys) > MAX_PATH_KEYS:
            raise NotPlainError(f"a tensor below more than {MAX_PATH_KEYS} keys")
        return (*self.path, PathKey(".".join(reversed(keys))))

    def of_tensor(self) -> _Place:
        """The place of the attributes of a tensor, besides its elements."""
        if self.kind != "tree":
            return _Place(self.path, self.below, "state")
        *above, last = self.named()
        return _Place(tuple(above), (None, last.key), "attributes")

    def inside(self, key: str, kind: _Kind = "value") -> _Place:
        """The place behind one more key of the object."""
        return _Place(self.path, (self.below, key), kind)

    def same(self, kind: _Kind) -> _Place:
        """The same place, of another kind."""
        return _Place(self.path, self.below, kind)


_Found = list[tuple[_Place, Any]]
"""Values that are still to be looked at, each with its place."""


def pickled_values(root: Any, most: int) -> Iterator[tuple[Path, PickledValue]]:
    """The values in order, each with its path; that of a root that is no container and no tensor is empty.

    Raises NotPlainError where more than ``most`` steps are needed, or dicts and lists are nested too deeply.
    """
    waiting: _Found = [(_Place(), root)]
    searched: set[int] = set()
    while waiting:
        place, value = waiting.pop()
        if place.kind in ("value", "state", "attributes") and id(value) in searched:
            continue
        searched.add(id(value))
        # Before a list is made of its parts, which may be the same ones again and again.
        most -= 1 + _size(value)
        if most < 0 or len(place.path) > MAX_PATH_KEYS:
            raise NotPlainError("a value with too many parts")
        found = saved_tensor(value)
        if found is not None:
            yield place.named(), found.tensor
            children: _Found = [(place.of_tensor(), state) for state in found.attributes if state]
        elif place.kind != "tree":
            children = _in_object(place, value)
            yield from _attributes(place, value)
        elif (pairs := _pairs(value)) is not None:
            children = [(_Place((*place.path, key)), child) for key, child in pairs]
            if not pairs:
                yield place.path, Empty(_EMPTY[type(value)])
            if isinstance(value, Built) and value.state is not None:
                children.append((_Place(place.path, None, "state"), value.state))
        else:
            try:
                yield place.path, plain_leaf(value)
                continue
            except NotPlainError as error:
                yield place.path, LeftOut(str(error))
            children = _in_object(_Place(place.path, None, "value"), value)
        waiting += reversed(children)


_EMPTY = {list: "List", tuple: "Tuple", Table: "Dict", Built: "Dict"}


def _size(value: Any) -> int:
    value = value.table if isinstance(value, Built) else value
    if isinstance(value, list | tuple):
        return len(value)
    return len(value.entries) if isinstance(value, Table) else 0


def _pairs(value: Any) -> list[tuple[PathKey, Any]] | None:
    """Keys and values of a dict, a list or a tuple; None for anything else."""
    if isinstance(value, list | tuple):
        return [(PathKey(str(n), is_sequence=True), child) for n, child in enumerate(value)]
    if isinstance(value, Built) and value.name in _DICTS:
        if value.name == ORDERED and value.arguments:
            return None  # a dict that its arguments make
        value = value.table or Table()
    if isinstance(value, Table):
        return [(PathKey(key), child) for key, child in _named(value)]
    return None


def _named(table: Table) -> Iterator[tuple[str, Any]]:
    """The values of a dict by the texts of their keys, and keys that are tensors themselves.

    A key that is no text has its position too where its text is that of another: 1 beside "1", two tensors.
    """
    pairs = table.pairs()
    seen = {key for key, _ in pairs if type(key) is str}
    for position, (key, value) in enumerate(pairs):
        text = _key(key)
        if type(key) is not str:
            text = f"{text} #{position}" if text in seen else text
            seen.add(text)
            if saved_tensor(key) is not None:
                yield f"{text} (key)", key
        yield text, value


def _key(key: Any) -> str:
    """A key of any type as text; numbers as torch makes names of them."""
    if type(key) in (str, int) and len(text := str(key)) <= MAX_NAME_CHARACTERS:
        return text
    if isinstance(key, Name):
        return shorten(key.text)[1:-1]
    if saved_tensor(key) is not None:
        return _ROOT
    if isinstance(key, Built) and {type(part) for part in key.arguments} <= {str, int}:
        # Members of an enum, or bytes, differ in their arguments alone.
        return f"{shorten(key.name)[1:-1]}({', '.join(map(shorten, key.arguments[:3]))})"
    return shorten(key)


def _in_object(place: _Place, value: Any) -> _Found:
    """The parts of a container or an object that may have tensors."""
    if isinstance(value, Built) and not (place.kind == "table" and value.name == ORDERED):
        return _in_built(place, value)
    if place.kind in ("state", "attributes", "module"):
        return _in_state(place, value)
    kind: _Kind = "listed" if place.kind == "table" else "value"
    pairs = _pairs(value) or []
    return [(place.inside(key.key, kind), child) for key, child in pairs if _has_parts(child)]


def _in_built(place: _Place, value: Built) -> _Found:
    parts = (value.arguments, value.table, value.items)
    found = [(place.same("value"), part) for part in parts if part]
    if isinstance(value.state, Table | tuple):
        kind: _Kind = "module" if place.kind == "listed" else "state"
        found.append((place.same(kind), value.state))
    elif _has_parts(value.state):
        found.append((place.inside("state"), value.state))
    return found


def _in_state(place: _Place, value: Any) -> _Found:
    if isinstance(value, tuple) and all(isinstance(part, Table | None) for part in value):
        # Attributes, and those in slots. Another tuple is of a class with a form of its own.
        return [(place.same(place.kind), part) for part in value if part is not None]
    return [
        (place.same("table") if key.key in _TABLES else place.inside(key.key), child)
        for key, child in _pairs(value) or []
        if _has_parts(child)
    ]


def _attributes(place: _Place, value: Any) -> Iterator[tuple[Path, LeftOut]]:
    """The attributes of a tensor that are no tensors."""
    if place.kind == "attributes" and isinstance(value, Table):
        for key, child in _named(value):
            if saved_tensor(child) is None:
                at = replace(place, below=(place.below, key))
                yield at.named(), LeftOut("an attribute of a tensor")


def _has_parts(value: Any) -> bool:
    return isinstance(value, list | tuple | Table | Built | Persistent)
