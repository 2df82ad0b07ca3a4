"""DeviceMesh and TensorLayout: named axes, and which of them splits each dimension.

A mesh is abstract: names and sizes, no devices. Which device holds which box depends on the order
of the mesh's axes, row-major, and on the order of the axes that split a dimension::

    mesh (2, 2), axes (x, y), layout ((y, x),) over 8 elements

    device      x y   place y·2 + x   box
    (0, 0)  0   0 0         0         0:2
    (0, 1)  1   0 1         2         4:6
    (1, 0)  2   1 0         1         2:4
    (1, 1)  3   1 1         3         6:8
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import floordiv, mod

from reshard.errors import LayoutError
from reshard.layout.box import Box
from reshard.layout.grid import Grid

Axis = None | str | tuple[str, ...]
"""What splits one dimension: nothing, one mesh axis, or several (the first varies slowest)."""

AxesLike = Iterable[str | Sequence[str] | None]
"""What a layout's axes may be given as."""

AXIS_TYPES = ("Auto", "Explicit", "Manual")
"""jax's axis types, by the names of ``jax.sharding.AxisType``."""

MAX_DEVICES = 1 << 20
"""Largest mesh. Beyond any machine that exists; a larger number is a slip or an attack."""

MAX_AXES = 64
"""Most axes of a mesh: as many as a numpy array of devices may have."""


@dataclass(frozen=True, init=False)
class DeviceMesh:
    """Named axes with sizes; abstract, no device is needed.

    Args:
        shape: size of each axis, at least 1.
        axis_names: one name per size, all different.
        axis_types: one of ``AXIS_TYPES`` per axis, also written as ``"AxisType.Auto"``; None where
            nobody said. Part of the mesh's value, as in jax.

    Raises LayoutError where these contradict each other.

    >>> DeviceMesh((4, 2), ("data", "model")).axis_size("model")
    2
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    axis_types: tuple[str, ...] | None = None

    def __init__(
        self,
        shape: Sequence[int],
        axis_names: Sequence[str],
        *,
        axis_types: Sequence[str] | None = None,
    ) -> None:
        object.__setattr__(self, "shape", _sizes(shape))
        object.__setattr__(self, "axis_names", _names(axis_names, self.shape))
        object.__setattr__(self, "axis_types", _types(axis_types, self.axis_names))

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def axis_size(self, name: str) -> int:
        """Devices along one axis; an unknown name is a LayoutError that lists the known ones."""
        if name not in self.axis_names:
            raise LayoutError(f"mesh axis {name!r} is not in {self}")
        return self.shape[self.axis_names.index(name)]

    def __str__(self) -> str:
        sizes = (f"{n}={s}" for n, s in zip(self.axis_names, self.shape, strict=True))
        return f"the mesh ({', '.join(sizes)})"


@dataclass(frozen=True, init=False)
class TensorLayout:
    """Mesh axes per dimension; dimensions beyond ``axes`` are not split.

    Args:
        axes: per dimension None, the name of a mesh axis, or several names, first varying slowest.
            Lists are taken for tuples, ``()`` for None and ``("x",)`` for ``"x"``, as jax does.
        device_mesh: the mesh that the names belong to, if it is known yet.

    Raises LayoutError for a bare string, an axis used twice and an axis that the mesh lacks.

    >>> TensorLayout((None, "model"), DeviceMesh((8,), ("model",))).grid((4, 16)).parts
    (1, 8)
    """

    axes: tuple[Axis, ...]
    device_mesh: DeviceMesh | None = None

    def __init__(self, axes: AxesLike, device_mesh: DeviceMesh | None = None) -> None:
        object.__setattr__(self, "axes", _axes(axes))
        object.__setattr__(self, "device_mesh", device_mesh)
        used = [name for axis in self.axes for name in axis_names(axis)]
        _check_used_once(self.axes, used)
        if device_mesh is not None:
            _check_known(self.axes, used, device_mesh)

    def parts(self, rank: int, name: str = "") -> tuple[int, ...]:
        """Number of parts along each of ``rank`` dimensions; surplus axes are a LayoutError."""
        mesh = self._mesh(name)
        if len(self.axes) > rank:
            raise self._surplus(f"{name!r} has {rank} dimensions")
        return (*_parts(self.axes, mesh), *[1] * (rank - len(self.axes)))

    def shard_shape(self, shape: Sequence[int], name: str = "") -> tuple[int, ...]:
        """Shape of what each device holds; an indivisible dimension is a LayoutError naming ``name``."""
        rank = len(shape)
        if len(self.axes) > rank:
            raise self._surplus(f"{name!r} has {rank} dimensions (shape {list(shape)})")
        parts = self.parts(rank, name)
        if any(map(mod, shape, parts)):
            dim = next(d for d, rest in enumerate(map(mod, shape, parts)) if rest)
            raise _indivisible(name, shape, dim, self)
        return tuple(map(floordiv, shape, parts))

    def grid(self, shape: Sequence[int], name: str = "") -> Grid:
        """The boxes that the devices hold; an indivisible dimension is a LayoutError naming ``name``."""
        return Grid.regular(shape, self.shard_shape(shape, name))

    def _surplus(self, tensor: str) -> LayoutError:
        return LayoutError(
            f"{tensor}, but its layout {show_axes(self.axes)} has more axes than dimensions: "
            f"{len(self.axes)}; remove the surplus ones"
        )

    def _mesh(self, name: str) -> DeviceMesh:
        if self.device_mesh is None:
            raise LayoutError(
                f"the layout {show_axes(self.axes)} of {name!r} has no mesh, so its shards are unknown; "
                f"give it one"
            )
        return self.device_mesh


@lru_cache(maxsize=1024)
def _parts(axes: tuple[Axis, ...], mesh: DeviceMesh) -> tuple[int, ...]:
    """Number of parts along each dimension; a tree's tensors have few different axes."""
    return tuple(math.prod(map(mesh.axis_size, axis_names(axis))) for axis in axes)


def device_boxes(layout: TensorLayout, shape: Sequence[int], name: str = "") -> list[Box]:
    """The box that each device holds, devices in the mesh's row-major order.

    Replicas hold equal boxes. Raises LayoutError where ``TensorLayout.grid`` does.

    >>> mesh = DeviceMesh((2, 2), ("x", "y"))
    >>> [str(box) for box in device_boxes(TensorLayout([("y", "x")], mesh), (8,))]
    ['[0:2]', '[4:6]', '[2:4]', '[6:8]']
    """
    mesh = layout._mesh(name)
    shard = layout.shard_shape(shape, name)
    coordinates = itertools.product(*map(range, mesh.shape))
    return [Box.full(shard).shift(_origin(layout, mesh, shard, c)) for c in coordinates]


def _origin(
    layout: TensorLayout, mesh: DeviceMesh, shard: tuple[int, ...], coordinate: tuple[int, ...]
) -> tuple[int, ...]:
    at = dict(zip(mesh.axis_names, coordinate, strict=True))
    places = [_place(mesh, at, axis) for axis in layout.axes]
    return tuple(p * n for p, n in itertools.zip_longest(places, shard, fillvalue=0))


def _place(mesh: DeviceMesh, at: dict[str, int], axis: Axis) -> int:
    place = 0
    for name in axis_names(axis):
        place = place * mesh.axis_size(name) + at[name]
    return place


def parse_mesh(text: str) -> DeviceMesh:
    """The mesh that ``--mesh`` names, such as ``data=4,model=2``.

    >>> parse_mesh("data=4,model=2").shape
    (4, 2)
    """
    pairs = [part.partition("=") for part in text.split(",")]
    for name, _, size in pairs:
        if not name.strip() or not (size.strip().isascii() and size.strip().isdigit()):
            raise LayoutError(
                f"mesh {text!r}: expected NAME=SIZE,NAME=SIZE such as data=4,model=2, "
                f"found {name + _ + size!r}"
            )
    names = tuple(name.strip() for name, _, _ in pairs)
    # Sizes of many digits are cut short: they exceed the largest mesh anyhow.
    return DeviceMesh(tuple(int(size.strip()[:20]) for _, _, size in pairs), names)


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise LayoutError(
            f"a mesh's shape must be a sequence of whole numbers, one per axis, not {shape!r}"
        ) from None
    if not sizes:
        raise LayoutError("a mesh's shape cannot be empty; name at least one axis, such as (1,)")
    if min(sizes) < 1:
        raise LayoutError(f"each size of a mesh must be at least 1, but the shape is {list(sizes)}")
    if len(sizes) > MAX_AXES or math.prod(sizes) > MAX_DEVICES:
        raise LayoutError(
            f"a mesh may have at most {MAX_AXES} axes and {MAX_DEVICES} devices, but the shape is "
            f"{list(sizes[:8])}{' …' if len(sizes) > 8 else ''}"
        )
    return sizes


def _names(names: Sequence[str], shape: tuple[int, ...]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(n, str) and n for n in names):
        raise LayoutError(
            f"a mesh's axis names must be a sequence of non-empty strings, not {names!r}"
        )
    if not names:
        raise LayoutError("a mesh's axis names cannot be empty; name one axis per size")
    if len(names) != len(shape):
        raise LayoutError(
            f"a mesh's shape and axis names should have same size, but shape {list(shape)} has "
            f"{len(shape)} and names {list(names)} have {len(names)}"
        )
    if len(set(names)) != len(names):
        raise LayoutError(f"a mesh's axis names must differ, but are {list(names)}")
    return tuple(names)


def _types(types: Sequence[str] | None, names: tuple[str, ...]) -> tuple[str, ...] | None:
    if types is None:
        return None
    known = {t.lower(): t for t in AXIS_TYPES}
    found = [known.get(str(t).lower().removeprefix("axistype.")) for t in types]
    if isinstance(types, str) or None in found or len(found) != len(names):
        raise LayoutError(
            f"a mesh's axis types must be one of {', '.join(AXIS_TYPES)} for each of its "
            f"{len(names)} axes {list(names)}, not {types!r}"
        )
    return tuple(t for t in found if t is not None)


def _axes(axes: AxesLike) -> tuple[Axis, ...]:
    if isinstance(axes, str):
        raise LayoutError(
            f"a layout's axes must be a sequence with one entry per dimension, not the string "
            f"{axes!r}; write ({axes!r},)"
        )
    try:
        return tuple(map(partial(_axis, axes), axes))
    except TypeError:
        raise LayoutError(
            f"a layout's axes must be a sequence with one entry per dimension, not {axes!r}"
        ) from None


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


def show_axes(axes: Sequence[Axis]) -> str:
    """Axes as a layout file writes them.

    >>> show_axes((("data", "model"), None))
    '[[data, model], null]'
    """
    return f"[{', '.join(map(_show_axis, axes))}]"


def _show_axis(axis: Axis) -> str:
    if isinstance(axis, tuple):
        return f"[{', '.join(axis)}]"
    return "null" if axis is None else axis


def _check_used_once(axes: tuple[Axis, ...], used: list[str]) -> None:
    twice = [name for name in dict.fromkeys(used) if used.count(name) > 1]
    if twice:
        raise LayoutError(
            f"mesh axis {twice[0]!r} is used twice in the layout {show_axes(axes)}; each mesh axis can "
            f"split one dimension"
        )


def _check_known(axes: tuple[Axis, ...], used: list[str], mesh: DeviceMesh) -> None:
    unknown = [name for name in used if name not in mesh.axis_names]
    if unknown:
        raise LayoutError(
            f"invalid axis names for layout {show_axes(axes)}: {', '.join(map(repr, unknown))} not in {mesh}"
        )


def _indivisible(name: str, shape: Sequence[int], dim: int, layout: TensorLayout) -> LayoutError:
    mesh = layout._mesh(name)
    sizes = [f"{axis!r} of size {mesh.axis_size(axis)}" for axis in axis_names(layout.axes[dim])]
    parts = layout.parts(len(shape), name)[dim]
    return LayoutError(
        f"{name!r} of shape {list(shape)}: dimension {dim} of size {shape[dim]} does not divide into "
        f"{parts} parts (mesh axis {' × '.join(sizes)}); leave that dimension unsplit (null) or split "
        f"it by axes whose sizes multiply to a divisor of {shape[dim]}"
    )
