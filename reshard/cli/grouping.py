"""Groups tensors that differ only in numbers in their names, for one row in a table.

``layers/0/kernel`` to ``layers/11/kernel`` of equal geometry become ``layers/{0…11}/kernel``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

_NUMBER = re.compile(r"(\d+)", re.ASCII)


class TensorGroup(Struct, Generic[T], frozen=True):
    """Members that are alike; ``name`` stands for all of their names."""

    name: str
    members: tuple[T, ...]

    @property
    def first(self) -> T:
        return self.members[0]

    @property
    def count(self) -> int:
        return len(self.members)


def grouped(
    items: Iterable[T], name_of: Callable[[T], str], alike: Callable[[T], Hashable]
) -> list[TensorGroup[T]]:
    """Groups in the order of their first members."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        key = (_NUMBER.sub("0", name_of(item)), alike(item))
        found.setdefault(key, []).append(item)
    return [TensorGroup(common_name(list(map(name_of, m))), tuple(m)) for m in found.values()]


def single(items: Iterable[T], name_of: Callable[[T], str]) -> list[TensorGroup[T]]:
    """A group for each item."""
    return [TensorGroup(name_of(item), (item,)) for item in items]


def common_name(names: Sequence[str]) -> str:
    """One name for names that differ in numbers only.

    >>> common_name(["a/0/w", "a/1/w", "a/2/w"])
    'a/{0…2}/w'
    """
    if len(names) == 1:
        return names[0]
    split = list(map(_NUMBER.split, names))
    return "".join(map(_common_piece, zip(*split, strict=True)))


def _common_piece(pieces: tuple[str, ...]) -> str:
    unlike = sorted(set(pieces), key=_numeric_order)
    if len(unlike) == 1:
        return unlike[0]
    return f"{{{unlike[0]}{'…' if len(unlike) > 2 else ','}{unlike[-1]}}}"


def _numeric_order(digits: str) -> tuple[int, str, str]:
    """Sorts digits by value without converting them to numbers, however many digits there are."""
    significant = digits.lstrip("0")
    return len(significant), significant, digits
