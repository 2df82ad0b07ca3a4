"""Decides which nodes of a tree are lists after leaves were dropped or renamed.

A node is a list if its children are exactly the positions 0, 1, … n-1 of lists. Any other node is
written as a dict, because stock Orbax rebuilds a list by appending in order: it fails on a gap, on
positions out of order, and on a node whose children are partly positions and partly keys. Current formats record
tuples as lists too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reshard.formats.contents import PathKey

Path = tuple[PathKey, ...]
Prefix = tuple[str, ...]


def is_list(children: Iterable[PathKey]) -> bool:
    """Whether these children make a list: positions 0 to n-1, each at most once.

    >>> is_list([PathKey("1", True), PathKey("0", True)]), is_list([PathKey("0")])
    (True, False)
    """
    steps = set(children)
    positions = {str(i) for i in range(len(steps))}
    return (
        bool(steps)
        and all(step.is_sequence for step in steps)
        and {s.key for s in steps} == positions
    )


def settle_sequences(paths: Iterable[Path]) -> list[Path]:
    """The same paths, in which a node is a list only if its children make one.

    >>> gap = [(PathKey("layers"), PathKey(i, True)) for i in ("0", "2")]
    >>> [path[1].is_sequence for path in settle_sequences(gap)]
    [False, False]
    """
    paths = list(paths)
    lists = frozenset(prefix for prefix, steps in _nodes(paths).items() if is_list(steps))
    return [_settle(path, lists) for path in paths]


def lost_lists(paths: Iterable[Path]) -> dict[Prefix, tuple[PathKey, ...]]:
    """The nodes that have a position among their children but are not lists, with these children."""
    return {
        prefix: tuple(steps)
        for prefix, steps in _nodes(paths).items()
        if any(step.is_sequence for step in steps) and not is_list(steps)
    }


def tree_order(paths: Sequence[Path]) -> list[int]:
    """Indices of the settled paths in the order of their tree: lists by position, dicts as they come."""
    ranks = {prefix: _ranks(steps) for prefix, steps in _nodes(paths).items()}

    def places(index: int) -> list[int]:
        keys = tuple(step.key for step in paths[index])
        return [ranks[keys[:depth]][step] for depth, step in enumerate(paths[index])]

    return sorted(range(len(paths)), key=places)


def _ranks(steps: Mapping[PathKey, None]) -> dict[PathKey, int]:
    if is_list(steps):
        return {step: int(step.key) for step in steps}
    return {step: number for number, step in enumerate(steps)}


def _nodes(paths: Iterable[Path]) -> dict[Prefix, dict[PathKey, None]]:
    """The children of each inner node, in the order in which they are met."""
    children: dict[Prefix, dict[PathKey, None]] = {}
    for path in paths:
        prefix: Prefix = ()
        for step in path:
            children.setdefault(prefix, {})[step] = None
            prefix = (*prefix, step.key)
    return children


def _settle(path: Path, lists: frozenset[Prefix]) -> Path:
    keys = tuple(step.key for step in path)
    return tuple(PathKey(key, keys[:depth] in lists) for depth, key in enumerate(keys))
