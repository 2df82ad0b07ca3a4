"""The object graph of TensorFlow: the names of tensors as paths in it, the kept graph of a source, and the graph of a target.

An object's variable has the key ``model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE``. In parts of such keys ``.`` is written ``..``, and
``/`` is ``.S``. A slot of an optimizer is below its variable: ``model/dense/kernel/.OPTIMIZER_SLOT/optimizer/m/…``.
(``tensorflow/python/trackable/trackable_utils.py``)

``tf.train.Checkpoint`` finds the value of each variable in the graph. A target of the same names as its source has the source's graph, so
that paths that share an object, tables and custom savers stay known. It leaves out values that the target does not have: TensorFlow would
look for them. Their objects stay, because others are known by their numbers, but nothing refers to them.

Any other target has a graph of its names: each key of a path is an object, which refers to the next one. Slots of an optimizer are told
where the optimizer is.

::

    graph    1: an object, in the order of their numbers
    object   1: a child, 1: its number, 2: its name; 2: a value; 3: a slot, of an optimizer; others
    value    1: its name; 3: its key
    slot     1: the number of the variable; 2: its name; 3: the number of the object with the slot's value

(``tensorflow/core/protobuf/trackable_object_graph.proto``)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from reshard.errors import CorruptError, PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Carried, PathKey
from reshard.formats.leaf_paths import refuse_long
from reshard.formats.slices.slice_file import leaf_path
from reshard.formats.tensorflow.strings import read_strings
from reshard.formats.tensorflow.table import (
    Value,
    WireError,
    bytes_field,
    fields,
    message,
    number_field,
    whole,
)

if TYPE_CHECKING:
    from reshard.formats.tensorflow.format import TensorflowForm


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


MOST_GRAPH_BYTES = 16 << 20
"""A larger graph is not kept: it is in memory several times. One of 100,000 variables takes some 15 MB."""

HELD_GRAPH = 9
"""The most copies of its bytes that are in memory at once, its objects among them (measured: 3.4, and 8.1 where values are left out)."""

_CHILD, _VALUE, _SLOT = 1, 2, 3
"""Fields of an object."""

_REFERENCES = {_CHILD: 1, _SLOT: 3}
"""The field of each that has the number of an object."""


def kept_graph(carried: Carried, keys: Iterable[str]) -> bytes | str:
    """The graph without values that a target lacks; or a key of the target that the graph does not have, so that it cannot be kept.

    A value may be several tensors, whose keys begin with its own: ``lookup/.ATTRIBUTES/table-keys`` and ``…-values``.

    Args:
        carried: the graph, as the source has it.
        keys: the keys of everything in the target.

    Raises CorruptError for a graph that is damaged.
    """
    held = sorted(key for key in keys if ATTRIBUTE in key)
    data = read_strings(carried, repr(OBJECT_GRAPH)).data
    try:
        objects = [message(value) for number, value in fields(data) if number == 1]
        known = {key for one in objects for key in _keys(one)}
        lacking = next((key for key in held if not _is_of(key, known)), None)
        if lacking is not None:
            return lacking
        lost = {key for key in known if not _is_held(key, held)}
        return _pruned(objects, lost) if lost else data
    except (WireError, UnicodeDecodeError) as error:
        path = carried.parts[0].extent.path
        raise CorruptError(
            f"{path}: the object graph is damaged: {error}; restore the file from a copy"
        ) from None


def _is_of(key: str, known: Set[str]) -> bool:
    """True if a tensor is a value, or one of several that make up a value."""
    shortest = key.index(ATTRIBUTE) + len(ATTRIBUTE)
    return key in known or any(key[:end] in known for end in range(shortest, len(key)))


def _is_held(key: str, held: Sequence[str]) -> bool:
    """True if a tensor of a value is among these, which are sorted."""
    place = bisect_left(held, key)
    return place < len(held) and held[place].startswith(key)


def _pruned(objects: Sequence[bytes], lost: Set[str]) -> bytes:
    """The graph in which nothing refers to objects that led to lost values only: TensorFlow would take theirs for restored."""
    emptied, valued = set[int](), set[int]()
    parents: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(objects):
        for field in fields(one):
            if field[0] == _VALUE:
                (emptied if _key(field[1]) in lost else valued).add(number)
            elif field[0] == _CHILD:
                parents[_refers_to(field)].append(number)
    gone = _leading_to(emptied, parents) - _leading_to(valued, parents)

    def kept(field: tuple[int, Value]) -> bool:
        is_lost = field[0] == _VALUE and _key(field[1]) in lost
        return not is_lost and _refers_to(field) not in gone

    left = (b"".join(_encoded(*field) for field in fields(one) if kept(field)) for one in objects)
    return b"".join(bytes_field(1, one) for one in left)


def _leading_to(ends: Iterable[int], parents: Mapping[int, Sequence[int]]) -> set[int]:
    """The objects of ``ends``, and all from which a path leads to one of them."""
    found, waiting = set(ends), list(ends)
    while waiting:
        new = set(parents.get(waiting.pop(), ())) - found
        found |= new
        waiting.extend(new)
    return found


def _refers_to(field: tuple[int, Value]) -> int:
    """The object to which a child or a slot refers; -1 for another field."""
    number, value = field
    if number not in _REFERENCES:
        return -1
    parts = fields(message(value))
    return sum(whole(part) for part_number, part in parts if part_number == _REFERENCES[number])


def _keys(one: bytes) -> Iterator[str]:
    """The keys of the values of an object."""
    return (_key(value) for number, value in fields(one) if number == _VALUE)


def _key(value: Value) -> str:
    return "".join(message(part).decode() for number, part in fields(message(value)) if number == 3)


def _encoded(number: int, value: Value) -> bytes:
    return bytes_field(number, value) if isinstance(value, bytes) else number_field(number, value)


_ROOT: tuple[str, ...] = ()

_NodePath = tuple[str, ...]
"""Parts of a key, with their escapes."""


def target_keys(target: TargetCheckpoint, form: TensorflowForm) -> dict[str, str]:
    """The key of each leaf, by its name. Raises PlanError for two that are equal."""
    names: dict[str, str] = {}
    for leaf in target.leaves:
        if leaf.tensor or leaf.carried or leaf.text is not None:
            key = leaf.name if form.names == "variables" else key_of(leaf_path(leaf))
            refuse_long(key)
            if key in names:
                raise PlanError(
                    f"{names[key]!r} and {leaf.name!r} would both have the key {key!r} in TensorFlow; rename one of them (rename)"
                )
            names[key] = leaf.name
    return {name: key for key, name in names.items()}


def target_graph(form: TensorflowForm, keys: Collection[str]) -> tuple[bytes, str]:
    """The graph of a target of objects, and a key that the source's graph lacks, so that it is not kept; "" where it is, or there is none.

    Raises CorruptError where the source's is damaged.
    """
    found = None if form.graph is None else kept_graph(form.graph, keys)
    if isinstance(found, bytes):
        return found, ""
    return object_graph(key for key in keys if key.endswith(VALUE)), found or ""


def object_graph(keys: Iterable[str]) -> bytes:
    """The graph of objects with these keys of variables, which end in ``names.VALUE``."""
    graph = _Graph()
    slots: list[tuple[_NodePath, _NodePath, str, str]] = []
    for key in keys:
        name = key.removesuffix(VALUE)
        variable, is_slot, rest = name.partition(f"{SLOT}/")
        if is_slot:
            *optimizer, slot = rest.split("/")
            slots.append((tuple(variable.split("/")), tuple(optimizer), slot, key))
        else:
            graph.variable(graph.node(tuple(name.split("/"))), name, key)
    for variable_path, optimizer_path, slot, key in slots:
        graph.slot(variable_path, optimizer_path, slot, key)
    return graph.encoded()


class _Graph:
    """Objects by their paths; each has a number, the root 0."""

    def __init__(self) -> None:
        self._numbers: dict[_NodePath, int] = {_ROOT: 0}
        self._fields: list[list[bytes]] = [[]]

    def node(self, path: _NodePath) -> int:
        """The number of the object at a path, which is made with those before it."""
        number = self._numbers.get(path)
        if number is None:
            parent = self.node(path[:-1])
            number = self._numbers[path] = self._new()
            child = number_field(1, number) + bytes_field(2, _plain(path[-1]).encode())
            self._fields[parent].append(bytes_field(1, child))
        return number

    def _new(self) -> int:
        self._fields.append([])
        return len(self._fields) - 1

    def variable(self, number: int, name: str, key: str) -> None:
        """Gives an object a value."""
        parts = (b"VARIABLE_VALUE", name.encode(), key.encode())
        attribute = b"".join(bytes_field(place, part) for place, part in enumerate(parts, 1))
        self._fields[number].append(bytes_field(2, attribute))

    def slot(self, variable: _NodePath, optimizer: _NodePath, name: str, key: str) -> None:
        """Gives an optimizer a slot of a variable."""
        number = self._new()
        self.variable(number, key.removesuffix(VALUE), key)
        reference = (
            number_field(1, self.node(variable))
            + bytes_field(2, name.encode())
            + number_field(3, number)
        )
        self._fields[self.node(optimizer)].append(bytes_field(3, reference))

    def encoded(self) -> bytes:
        has_values = bytes_field(5, number_field(1, 1))
        return b"".join(bytes_field(1, b"".join(fields) + has_values) for fields in self._fields)


def _plain(part: str) -> str:
    """A part of a key without its escapes."""
    return part.replace("..", "\0").replace(".S", "/").replace("\0", ".")
