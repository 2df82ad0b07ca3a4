"""The leaves of a target as entries of a state dict of torch: tensors, and values that are items of their own.

The name of an entry is its keys joined with dots. A list or a tuple without tensors and dicts in it is one value, and so one entry
(``torch/distributed/checkpoint/_traverse.py``). Where the source does not tell tuples from lists, the options that torch's optimizers keep
as tuples are known by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.leaf_paths import refuse_long, settle_sequences
from reshard.formats.slices.slice_file import leaf_path
from reshard.formats.torch.leaves import TUPLES_KEY
from reshard.geometry.dtypes import NUMBER_DTYPES

TUPLES = frozenset({"betas", "eps", "etas", "step_sizes"})
"""Options of torch's optimizers that are tuples: of Adam and its kin, Adafactor and Rprop (``torch/optim``)."""

_EMPTY: Mapping[str, Any] = {"None": None, "Dict": {}, "List": [], "Tuple": (), "NamedTuple": ()}

Keys = tuple[PathKey, ...]


class StateEntry(Struct, frozen=True):
    """An entry of a state dict.

    Attributes:
        path: its keys; numbers are positions of lists.
        tensor: the tensor's name in the target; None for another value.
        carried: the leaf of a value that is not read.
        values: the leaves of another value, each with its positions in it: one without any, or those of a list.
    """

    name: str
    path: tuple[str | int, ...]
    tensor: str | None = None
    carried: Leaf | None = None
    values: tuple[tuple[tuple[int, ...], Leaf], ...] = ()


def state_entries(target: TargetCheckpoint, numbers: frozenset[str]) -> list[StateEntry]:
    """The entries of a target, in the order of its tree; ``numbers``: its tensors that are Python numbers.

    Raises PlanError for two leaves that would be one entry, and for a name that is too long to be read.
    """
    # The leaf that is the whole tree has no key: it is the entry of the name '', which torch takes like any other.
    paths = settle_sequences([leaf_path(leaf) or (PathKey(""),) for leaf in target.leaves])
    found: dict[str, StateEntry] = {}
    firsts: dict[str, str] = {}
    for entry, first in _entries(target, paths, numbers):
        refuse_long(entry.name)
        if entry.name in found:
            raise PlanError(
                f"{firsts[entry.name]!r} and {first!r} would both be {entry.name!r} in torch, which joins keys with dots; rename one of them "
                "(rename)"
            )
        found[entry.name], firsts[entry.name] = entry, first
    return list(found.values())


def python_numbers(target: TargetCheckpoint) -> frozenset[str]:
    """The names of the tensors that are Python numbers in a state dict."""
    return frozenset(
        name
        for name, tensor in target.tensors.items()
        if tensor.leaf.value_type == "scalar"
        and tensor.spec.dtype in NUMBER_DTYPES
        and not tensor.spec.shape
    )


def entry_value(entry: StateEntry, numbers: Mapping[str, Any]) -> Any:
    """The value of an entry that is no tensor; ``numbers``: those of the target, by name."""
    values = [
        (at, leaf, numbers[leaf.name] if leaf.tensor else _plain(leaf)) for at, leaf in entry.values
    ]
    # A flattened optimizer has the option at the end of one key: "param_groups.0.weight.betas".
    return _nested(values, is_tuple=str(entry.path[-1]).rpartition(".")[2] in TUPLES)


def _nested(values: list[tuple[tuple[int, ...], Leaf, Any]], *, is_tuple: bool = False) -> Any:
    """The list or the tuple with these values at their positions; ``is_tuple`` where the source does not tell."""
    at, leaf, only = values[0]
    if not at:
        return only
    below: dict[int, list[tuple[tuple[int, ...], Leaf, Any]]] = defaultdict(list)
    for (first, *rest), one, value in values:
        below[first].append((tuple(rest), one, value))
    found = [_nested(below[position]) for position in sorted(below)]
    told = leaf.meta.get(TUPLES_KEY)
    return tuple(found) if (is_tuple if told is None else len(at) in told) else found


def _entries(
    target: TargetCheckpoint, paths: list[Keys], numbers: frozenset[str]
) -> Iterator[tuple[StateEntry, str]]:
    """Each entry, with the name of its first leaf."""
    split = _split_lists(target, paths, numbers)
    values: dict[Keys, list[tuple[tuple[int, ...], Leaf]]] = {}
    whole: dict[Keys, Leaf] = {}
    for leaf, path in zip(target.leaves, paths, strict=True):
        if leaf.carried or (leaf.tensor and leaf.name not in numbers):
            values[path], whole[path] = [], leaf
            continue
        above = next((path[:n] for n in _list_depths(path) if path[:n] not in split), path)
        positions = tuple(int(step.key) for step in path[len(above) :])
        values.setdefault(above, []).append((positions, leaf))
    for path, found in values.items():
        one = whole.get(path)
        if one is not None:
            of_entry = {"carried": one} if one.carried else {"tensor": one.name}
            yield _entry(path, **of_entry), one.name
        else:
            yield _entry(path, values=tuple(found)), found[0][1].name


def _entry(path: Keys, **of_entry: Any) -> StateEntry:
    keys = tuple(int(step.key) if step.is_sequence else step.key for step in path)
    return StateEntry(".".join(step.key for step in path), keys, **of_entry)


def _list_depths(path: Keys) -> Iterator[int]:
    """The depths, in keys, of the lists that a path leads through, from the outermost on."""
    return (depth for depth in range(1, len(path)) if path[depth].is_sequence)


def _split_lists(
    target: TargetCheckpoint, paths: list[Keys], numbers: frozenset[str]
) -> frozenset[Keys]:
    """The lists that are no single value, since a tensor, a dict or a value that is not read is in them."""
    found = set()
    for leaf, path in zip(target.leaves, paths, strict=True):
        is_split = (leaf.tensor and leaf.name not in numbers) or leaf.value_type == "Dict"
        is_split = is_split or leaf.carried is not None
        for depth in _list_depths(path):
            if is_split or not all(step.is_sequence for step in path[depth:]):
                found.add(path[:depth])
    return frozenset(found)


def _plain(leaf: Leaf) -> Any:
    """Text, None or an empty container; nothing else is left (``format.refuse_others``)."""
    return _EMPTY[leaf.value_type] if leaf.text is None else leaf.text
