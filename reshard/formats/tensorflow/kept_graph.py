"""The object graph of a source, for a target of the same names: paths that share an object, tables and custom savers stay known.

The graph leaves out values that the target does not have: TensorFlow would look for them. Their objects stay, because others
are known by their numbers, but nothing refers to them. A target with another name has a graph of its names (``write_graph.py``).

::

    graph    1: an object, in the order of their numbers
    object   1: a child, 1: its number, 2: its name; 2: a value; 3: a slot, of an optimizer; others
    value    1: its name; 3: its key
    slot     1: the number of the variable; 2: its name; 3: the number of the object with the slot's value

(``tensorflow/core/protobuf/trackable_object_graph.proto``)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from reshard.errors import CorruptError
from reshard.formats.contents import Carried
from reshard.formats.tensorflow.names import ATTRIBUTE, OBJECT_GRAPH
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
