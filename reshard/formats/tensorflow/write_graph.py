"""The object graph of a target, in which ``tf.train.Checkpoint`` finds the value of each variable.

It is that of a source of the same names (``kept_graph.py``). Else it is made of the names: each key of a path is an object, which refers to the
next one. Slots of an optimizer are told where the optimizer is. (``tensorflow/core/protobuf/trackable_object_graph.proto``)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.leaf_paths import refuse_long
from reshard.formats.slices.slice_file import leaf_path
from reshard.formats.tensorflow.format import TensorflowForm
from reshard.formats.tensorflow.kept_graph import kept_graph
from reshard.formats.tensorflow.names import SLOT, VALUE, key_of
from reshard.formats.tensorflow.table import bytes_field, number_field

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
