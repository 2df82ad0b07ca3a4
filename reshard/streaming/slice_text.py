"""Parses slices such as ``0:128,:`` into boxes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reshard.errors import LayoutError
from reshard.geometry.box import Box

_ENTRY = re.compile(r"\s*(\d{1,19})?\s*:\s*(\d{1,19})?\s*", re.ASCII)
_EXAMPLE = "'0:128,:'"
_SHOWN = 80


def box_of(name: str, shape: Sequence[int], given: Box | str | None) -> Box:
    """The box of a tensor of ``shape`` that a slice means; None and ``""`` mean the whole tensor.

    Text has ``start:stop`` for each dimension, and either number may be left out; missing dimensions are
    whole. Raises LayoutError, naming the tensor, for anything else and for a box outside of the tensor.

    >>> box_of("w", (256, 64), "0:128")
    Box(start=(0, 0), stop=(128, 64))
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return Box.full(shape)
    box = _parsed(name, shape, given) if isinstance(given, str) else given
    if not isinstance(box, Box):
        raise LayoutError(
            f"the slice of {name!r} is {given!r}; expected text such as {_EXAMPLE}, or a Box"
        )
    if box.rank != len(shape) or any(
        not 0 <= a <= b <= n for a, b, n in zip(box.start, box.stop, shape, strict=True)
    ):
        raise LayoutError(
            f"the slice {box} reaches outside of {name!r}, which has the shape {list(shape)}; choose a slice inside it"
        )
    return box


def _parsed(name: str, shape: Sequence[int], text: str) -> Box:
    entries = text.split(",")
    if len(entries) > len(shape):
        raise LayoutError(
            f"the slice {text[:_SHOWN]!r} has {len(entries)} dimensions, but {name!r} has the shape {list(shape)}; "
            f"give at most one start:stop for each, as in {_EXAMPLE}"
        )
    pairs = [_pair(name, entry, size) for entry, size in zip(entries, shape, strict=False)]
    pairs += [(0, size) for size in shape[len(pairs) :]]
    return Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def _pair(name: str, entry: str, size: int) -> tuple[int, int]:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise LayoutError(
            f"the slice of {name!r} has {entry[:_SHOWN]!r} where start:stop was expected, as in {_EXAMPLE}; one row is "
            "5:6, and there are no steps and no negative numbers"
        )
    return int(found[1] or 0), size if found[2] is None else int(found[2])
