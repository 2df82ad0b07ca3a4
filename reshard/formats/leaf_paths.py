"""New paths for renamed leaves; keys that the rename does not change keep their type.

A number that replaces a list position is a position too, so a list whose items are renumbered 0, 1, … n-1 stays a list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.sequences import lost_lists, settle_sequences

MOST_KEYS_SHOWN = 8


class Renamed(Struct, frozen=True):
    """Leaves with their new paths, in the order given.

    Attributes:
        warnings: one sentence for each list that becomes a dict.
    """

    leaves: tuple[Leaf, ...]
    warnings: tuple[str, ...] = ()


def renamed_leaves(
    leaves: Iterable[Leaf], names: Mapping[str, str], items: Sequence[str]
) -> Renamed:
    """The kept leaves, with their new names.

    Args:
        names: new names of the kept leaves, by old name.
        items: the items, one of which a name must begin with; none where names do not include the item.
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
    numbers = [i for i, part in enumerate(new) if _is_number(part)]
    if numbers:
        before = [key for key in old if key.is_sequence or _is_number(key.key)]
        pairs = dict(zip(reversed(numbers), reversed(before), strict=False))
    else:
        pairs = dict(enumerate(old)) if len(old) == len(new) else {}
    return [PathKey(part, i in pairs and pairs[i].is_sequence) for i, part in enumerate(new)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
