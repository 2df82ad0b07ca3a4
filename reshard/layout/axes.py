"""The axes of a layout: the mesh axes that split each dimension of a tensor."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from reshard.errors import LayoutError

Axis = None | str | tuple[str, ...]
"""The mesh axes that split one dimension: None, one name, or several (the first varies slowest)."""

AxesLike = Iterable[str | Sequence[str] | None]
"""The types in which a layout's axes may be given."""


def normal_axes(axes: AxesLike) -> tuple[Axis, ...]:
    """Normalised axes: tuples for lists, None for ``()`` and ``"x"`` for ``("x",)``."""
    if isinstance(axes, str):
        raise LayoutError(
            f"a layout's axes must be a sequence with one entry per dimension, not the string "
            f"{axes!r}; write ({axes!r},)"
        )
    entries = in_order(axes)
    if entries is None:
        raise LayoutError(
            f"a layout's axes must be a sequence with one entry per dimension, not {axes!r}"
        )
    return tuple(map(partial(_axis, axes), entries))


def in_order(given: object) -> tuple[Any, ...] | None:
    """The entries of an ordered collection; None for a set, a dict, a string and anything that cannot be iterated."""
    if isinstance(given, Set | Mapping | str | bytes):
        return None
    try:
        return tuple(given)  # type: ignore[arg-type]  # anything that is iterable
    except TypeError:
        return None


def _axis(axes: object, axis: str | Sequence[str] | None) -> Axis:
    if axis is None or isinstance(axis, str):
        return axis
    if not isinstance(axis, tuple | list) or not all(isinstance(n, str) for n in axis):
        raise LayoutError(
            f"each entry of a layout's axes must be None, the name of a mesh axis or several names, "
            f"not {axis!r} (in {axes!r})"
        )
    return tuple(axis) if len(axis) > 1 else axis[0] if axis else None


def axis_names(axis: Axis) -> tuple[str, ...]:
    """The mesh axes that split one dimension, first varying slowest."""
    return () if axis is None else (axis,) if isinstance(axis, str) else axis


def used_axes(axes: Sequence[Axis]) -> tuple[str, ...]:
    """Every mesh axis that splits a dimension, in order."""
    return tuple(name for axis in axes for name in axis_names(axis))


def known_axes(axes: Sequence[Axis], names: Collection[str]) -> tuple[Axis, ...]:
    """The axes without those mesh axes that are not in ``names``.

    >>> known_axes((("data", "model"), "data"), ["model"])
    ('model', None)
    """
    return normal_axes(tuple(n for n in axis_names(axis) if n in names) for axis in axes)


def show_axes(axes: Sequence[Axis]) -> str:
    """Axes as a layout file writes them; other axes have another text.

    >>> show_axes((("data", "model"), None))
    '[[data, model], null]'
    """
    return f"[{', '.join(map(_show_axis, axes))}]"


def _show_axis(axis: Axis) -> str:
    if isinstance(axis, tuple):
        return f"[{', '.join(map(show_name, axis))}]"
    return "null" if axis is None else show_name(axis)


_BARE = re.compile(r"(?!null$)[\w.-]+")


def show_name(name: str) -> str:
    """The name of an axis; in quotes if it could be read as several names, or none.

    >>> show_name("data"), show_name("data, model")
    ('data', "'data, model'")
    """
    return name if _BARE.fullmatch(name) else repr(name)
