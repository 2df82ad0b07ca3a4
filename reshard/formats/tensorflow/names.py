"""Names of tensors: the paths of TensorFlow's object graph, and of TensorFlow 1 the names of its variables.

An object's variable has the key ``model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE``. In parts of such keys ``.`` is written ``..``, and
``/`` is ``.S``. A slot of an optimizer is below its variable: ``model/dense/kernel/.OPTIMIZER_SLOT/optimizer/m/…``.
(``tensorflow/python/trackable/trackable_utils.py``)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from reshard.formats.contents import PathKey

_ATTRIBUTES = ".ATTRIBUTES"
ATTRIBUTE = f"/{_ATTRIBUTES}/"
VALUE = f"{ATTRIBUTE}VARIABLE_VALUE"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key of a message with the objects that were saved and their references."""

SLOT = "/.OPTIMIZER_SLOT"
"""Behind the path of a variable; the path of the optimizer and the slot's name follow."""

_NameParts = tuple[str, ...]

_ESCAPES = {"..": ".", ".S": "/"}
_ESCAPE = re.compile(r"\.[.S]")


def paths_of(keys: Iterable[str]) -> dict[str, tuple[PathKey, ...]]:
    """The path of each key; joined with slashes it is the tensor's name, and no two names are equal.

    A key keeps its escapes where without them two tensors had one name. A path is not split behind the name of a tensor.

    >>> found = paths_of(["a/b..c/.ATTRIBUTES/VARIABLE_VALUE", "dense/kernel", "dense/kernel/Adam"])
    >>> [[key.key for key in path] for path in found.values()]
    [['a', 'b.c'], ['dense', 'kernel'], ['dense', 'kernel/Adam']]
    """
    raw = {key: tuple(key.removesuffix(VALUE).split("/")) for key in keys}
    plain = {
        key: tuple(map(_unescaped, parts)) if ATTRIBUTE in key else parts
        for key, parts in raw.items()
    }
    found = _distinct(_distinct(plain, raw), {key: (key,) for key in raw})
    known, shared = frozenset(found.values()), dict[str, PathKey]()

    def path(parts: _NameParts) -> Iterator[PathKey]:
        """Names have beginnings in common, which are in memory once."""
        return (shared.setdefault(part, PathKey(part)) for part in _joined(parts, known))

    return {key: tuple(path(parts)) for key, parts in found.items()}


def key_of(path: Iterable[PathKey]) -> str:
    """The key of the variable of an object at a path; ``paths_of`` gives the path.

    >>> key_of([PathKey("a"), PathKey("b.c")])
    'a/b..c/.ATTRIBUTES/VARIABLE_VALUE'
    """
    keys = [step.key for step in path]
    if _ATTRIBUTES in keys:  # another attribute than the value, such as a layer's configuration
        return "/".join(key if key == _ATTRIBUTES else _escaped(key) for key in keys)
    return "/".join(map(_escaped, keys)) + VALUE


def _escaped(key: str) -> str:
    name, slot, rest = key.partition(SLOT)  # below a variable, which is no folder: one key
    if slot and not rest:
        return _escaped(name) + slot
    return key.replace(".", "..").replace("/", ".S")


def _distinct(
    found: Mapping[str, _NameParts], other: Mapping[str, _NameParts]
) -> dict[str, _NameParts]:
    """The paths, but the other ones for those whose names are equal."""
    counted = Counter("/".join(parts) for parts in found.values())
    return {
        key: parts if counted["/".join(parts)] == 1 else other[key] for key, parts in found.items()
    }


def _unescaped(part: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], part)


def _joined(parts: _NameParts, known: frozenset[_NameParts]) -> Iterator[str]:
    start = 0
    for end in range(1, len(parts) + 1):
        if end == len(parts) or parts[:end] not in known:
            yield "/".join(parts[start:end])
            start = end
