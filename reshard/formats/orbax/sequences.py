"""Which steps of the paths are positions in a sequence, once leaves were dropped or renamed.

Stock Orbax rebuilds a list by appending in order and fails on a gap, and it fails on a node whose
children are partly positions and partly keys. Such a node is written as a dict: its children keep
their numbers, as keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from reshard.formats.base import PathKey

Path = tuple[PathKey, ...]
Prefix = tuple[str, ...]


def settle_sequences(paths: Iterable[Path]) -> list[Path]:
    """The same paths, each node a sequence only where its children are exactly 0, 1, ... n-1.

    >>> gap = [(PathKey("layers"), PathKey(i, True)) for i in ("0", "2")]
    >>> [path[1].is_sequence for path in settle_sequences(gap)]
    [False, False]
    """
    paths = list(paths)
    sequences = _sequence_nodes(paths)
    return [_settle(path, sequences) for path in paths]


def _sequence_nodes(paths: list[Path]) -> frozenset[Prefix]:
    children: dict[Prefix, set[PathKey]] = {}
    for path in paths:
        prefix: Prefix = ()
        for step in path:
            children.setdefault(prefix, set()).add(step)
            prefix = (*prefix, step.key)
    return frozenset(prefix for prefix, steps in children.items() if _is_sequence(steps))


def _is_sequence(steps: set[PathKey]) -> bool:
    positions = {str(i) for i in range(len(steps))}
    return all(step.is_sequence for step in steps) and {s.key for s in steps} == positions


def _settle(path: Path, sequences: frozenset[Prefix]) -> Path:
    keys = tuple(step.key for step in path)
    return tuple(PathKey(key, keys[:depth] in sequences) for depth, key in enumerate(keys))
