"""The paths of leaves in a tree: of a live one, as jax flattens it, and new ones for renamed leaves, whose other keys keep their type.

A number that replaces a list position is a position too, so a list whose items are renumbered 0, 1, … n-1 stays a list.

A node is a list if its children are exactly the positions 0, 1, … n-1 of lists, whatever was dropped or renamed. Any other node is
written as a dict, because stock Orbax rebuilds a list by appending in order: it fails on a gap, on positions out of order, and on
a node whose children are partly positions and partly keys. Current formats record tuples as lists too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, PlanError, TreeError, shorten
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.limits import MAX_NAME_CHARACTERS, MAX_PATH_KEYS

MOST_KEYS_SHOWN = 8


class Renamed(Struct, frozen=True):
    """Leaves with their new paths, in the order given.

    Attributes:
        warnings: one sentence for each list that becomes a dict.
    """

    leaves: tuple[Leaf, ...]
    warnings: tuple[str, ...] = ()


def refuse_long(name: str) -> None:
    """Raises PlanError for a name of a target that would be written, and not read again."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise PlanError(
            f"the name {shorten(name)} has {len(name):,} characters; at most {MAX_NAME_CHARACTERS:,} are written; rename it (rename)"
        )


def renamed_leaves(
    leaves: Iterable[Leaf], names: Mapping[str, str], items: Sequence[str]
) -> Renamed:
    """The kept leaves, with their new names.

    Args:
        names: new names of the kept leaves, by old name.
        items: the items; a name must begin with one of them; none where names do not include the item.
    """
    leaves = list(leaves)
    moved = [renamed(leaf, names[leaf.name], items) for leaf in leaves if leaf.name in names]
    if len(moved) == len(leaves) and all(a is b for a, b in zip(leaves, moved, strict=True)):
        return Renamed(tuple(leaves))
    by_item: dict[str, list[int]] = defaultdict(list)
    for number, leaf in enumerate(moved):
        by_item[leaf.item].append(number)
    warnings: list[str] = []
    for numbers in by_item.values():
        of_item = [moved[i] for i in numbers]
        warnings += _list_warnings(of_item)
        for i, leaf in zip(numbers, _settled(of_item), strict=True):
            moved[i] = leaf
    return Renamed(tuple(moved), tuple(warnings))


def _settled(leaves: Sequence[Leaf]) -> Iterator[Leaf]:
    """The leaves of an item. Where a list lost elements, its positions become keys of a dict."""
    paths = settle_sequences(leaf.path for leaf in leaves)
    for leaf, path in zip(leaves, paths, strict=True):
        yield leaf if path == leaf.path else replace(leaf, path=path)


def _list_warnings(leaves: Sequence[Leaf]) -> Iterator[str]:
    lost = lost_lists(leaf.path for leaf in leaves)
    for leaf in leaves:
        keys = tuple(step.key for step in leaf.path)
        for depth in range(len(keys)):
            children = lost.pop(keys[:depth], None)
            if children is not None:
                below = sum(len(key) + 1 for key in keys[depth:])
                yield _list_warning(leaf.name[:-below], children)


def _list_warning(name: str, children: Sequence[PathKey]) -> str:
    keys = [step.key for step in children]
    shown = ", ".join(keys[:MOST_KEYS_SHOWN]) + (", …" if len(keys) > MOST_KEYS_SHOWN else "")
    what = f"the list {name!r}" if name else "the list that is the whole tree"
    strangers = [step.key for step in children if not step.is_sequence]
    if strangers:
        why = f"{strangers[0]!r} was no position of a list"
    else:
        why = f"to stay a list, it needs {_positions(len(keys))}"
    return f"{what} becomes a dict with the {'key' if len(keys) == 1 else 'keys'} {shown}; {why}"


def _positions(count: int) -> str:
    return "the position 0" if count == 1 else f"the positions 0 to {count - 1}"


def renamed(leaf: Leaf, name: str, items: Sequence[str]) -> Leaf:
    """``leaf`` under another name, which must begin with one of ``items``, unless there are none.

    Keys at both ends of the path with the same text are kept, so that a list stays a list and a key with a slash in
    it stays one key; the new text between them is split at slashes. A new key is a position (``is_sequence``) if it
    replaces a position.
    """
    if name == leaf.name:
        return leaf
    item, inner = _item_of(leaf, name, items)
    return Leaf(name, _path(leaf.path, inner), item, leaf.tensor, leaf.meta)


def _item_of(leaf: Leaf, name: str, items: Sequence[str]) -> tuple[str, str]:
    if not items:
        return leaf.item, name
    item, _, inner = name.partition("/")
    if item not in items or not inner:
        raise FormatError(
            f"{leaf.name!r} would be renamed to {name!r}, but in this checkpoint a name begins with its item, "
            f"which must be one of: {', '.join(items)}; to convert one item without its name, give the item's "
            "own folder as the source"
        )
    return item, inner


def _path(path: tuple[PathKey, ...], inner: str) -> tuple[PathKey, ...]:
    if not path:
        return tuple([PathKey(part) for part in inner.split("/")])  # may be of 300,000 new tensors
    tail: list[PathKey] = []
    for key in reversed(path):
        if inner == key.key:
            return (key, *reversed(tail))
        if not inner.endswith("/" + key.key):
            break
        tail.append(key)
        inner = inner[: -len(key.key) - 1]
    head: list[PathKey] = []
    for key in path[: len(path) - len(tail)]:
        if not inner.startswith(key.key + "/"):
            break
        head.append(key)
        inner = inner[len(key.key) + 1 :]
    old = path[len(head) : len(path) - len(tail)]
    return (*head, *_between(old, inner.split("/")), *reversed(tail))


def _between(old: Sequence[PathKey], new: Sequence[str]) -> list[PathKey]:
    """New keys for ``old`` ones: numbers replace numbers, starting with the last.

    Without numbers, keys replace each other one by one if there are equally many.
    """
    if not old:
        return [PathKey(part) for part in new]
    numbers = [i for i, part in enumerate(new) if _is_number(part)]
    if numbers:
        before = [key for key in old if key.is_sequence or _is_number(key.key)]
        pairs = dict(zip(reversed(numbers), reversed(before), strict=False))
    else:
        pairs = dict(enumerate(old)) if len(old) == len(new) else {}
    return [PathKey(part, i in pairs and pairs[i].is_sequence) for i, part in enumerate(new)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


Path = tuple[PathKey, ...]
Prefix = tuple[str, ...]


def is_list(children: Iterable[PathKey]) -> bool:
    """True if these children make a list: positions 0 to n-1, each at most once.

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


def children(node: Any) -> list[Any]:
    """The children of a node, one level down; a ShardedVariable counts as a leaf."""
    import jax

    from reshard.variables.sharded.variable import ShardedVariable

    if isinstance(node, ShardedVariable):
        return []
    opened = jax.tree_util.default_registry.flatten_one_level(node)
    return [] if opened is None else list(opened[0])


def refuse_circles(tree: Any, what: str) -> None:
    """Raises TreeError for a tree that contains itself or nests too deep; ``what`` is its name in messages.

    jax would follow a cycle until the interpreter's stack overflows, which ends the process.
    """
    above: list[Any] = []
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        del above[depth:]
        found = children(node)
        if not found:
            continue
        if depth >= MAX_PATH_KEYS or any(node is other for other in above):
            raise TreeError(
                f"the {what} contains itself, or nests more than {MAX_PATH_KEYS} levels deep (a "
                f"{type(node).__name__} in a {type(above[-1]).__name__}); expected a tree without circles"
            )
        above.append(node)
        waiting.extend((child, depth + 1) for child in found)


def named_leaves(tree: Any, what: str, is_leaf: Any = None) -> tuple[dict[str, Any], Any]:
    """Leaves by name, and the tree's structure; ``what`` is the tree's name in messages."""
    import jax

    from reshard.variables.sharded.variable import ShardedVariable

    def whole(node: Any) -> bool:
        return isinstance(node, ShardedVariable) or (is_leaf is not None and is_leaf(node))

    try:
        refuse_circles(tree, what)
        found, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=whole)
    except TreeError:
        raise
    except (ValueError, TypeError) as error:
        raise TreeError(
            f"the {what} is not a tree that jax can walk: {str(error).strip()}; use dicts with keys of one type, "
            "lists, tuples and registered classes"
        ) from error
    named: dict[str, Any] = {}
    for path, leaf in found:
        name = "/".join(map(_key_text, path))
        if name in named:
            raise TreeError(
                f"two leaves of the {what} are named {name!r}; rename one, since only one can be in a checkpoint"
            )
        named[name] = leaf
    return named, structure


def _key_text(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
