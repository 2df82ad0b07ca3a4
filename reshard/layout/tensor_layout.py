"""TensorLayout: the mesh axes that split each dimension of a tensor.

The box of a device depends on the order of the mesh's axes, row-major, and on the order of the axes that split a
dimension::

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
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from functools import lru_cache
from operator import floordiv, mod
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError
from reshard.geometry.grid import Box, Grid
from reshard.layout.axes import AxesLike, Axis, axis_names, normal_axes, show_axes
from reshard.layout.device_mesh import DeviceMesh, MeshLike, as_mesh, same_axes

if TYPE_CHECKING:
    from jax.sharding import NamedSharding, PartitionSpec


@dataclass(init=False)
class TensorLayout:
    """Mesh axes per dimension; dimensions beyond ``axes`` are not split.

    A layout cannot be changed, except that ``device_mesh`` can be set once if it is None.

    Args:
        axes: per dimension None, the name of a mesh axis, or several names, first varying slowest.
            Lists mean tuples, ``()`` means None and ``("x",)`` means ``"x"``, as in jax.
        device_mesh: the mesh of these axes; None if it is not known yet.

    Raises LayoutError for a bare string, an axis used twice and an axis that the mesh lacks.

    >>> TensorLayout((None, "model"), DeviceMesh((8,), ("model",))).grid((4, 16)).parts
    (1, 8)
    """

    axes: tuple[Axis, ...]
    device_mesh: DeviceMesh | None = None

    def __init__(self, axes: AxesLike, device_mesh: MeshLike | None = None) -> None:
        object.__setattr__(self, "axes", normal_axes(axes))
        used = [name for axis in self.axes for name in axis_names(axis)]
        _check_used_once(self.axes, used)
        mesh = None if device_mesh is None else as_mesh(device_mesh)
        object.__setattr__(self, "device_mesh", mesh)
        if mesh is not None:
            _check_known(self.axes, used, mesh)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets ``device_mesh`` if there is none yet; else raises the errors of ``with_mesh``."""
        if name != "device_mesh":
            raise FrozenInstanceError(
                f"cannot assign to field {name!r} of a layout; make a new one"
            )
        object.__setattr__(self, name, self.with_mesh(value).device_mesh)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r} of a layout")

    def __hash__(self) -> int:
        """The hash of the axes alone, so that a layout in a dict or set is still found after its mesh is set."""
        return hash(self.axes)

    def with_mesh(self, device_mesh: MeshLike) -> TensorLayout:
        """The same axes over ``device_mesh``.

        A layout over an abstract mesh can be placed on the devices of a mesh with the same axes. If the layout already
        has any other mesh, it is a LayoutError.
        """
        device_mesh = as_mesh(device_mesh)
        old = self.device_mesh
        placed = old is not None and old.devices is None and same_axes(old, device_mesh)
        if old is not None and old != device_mesh and not placed:
            raise LayoutError(
                f"cannot override the device mesh value of the layout {show_axes(self.axes)}: it has "
                f"{_describe(old)}, not {_describe(device_mesh)}; make a new layout of "
                f"its axes"
            )
        return TensorLayout(self.axes, device_mesh)

    @property
    def abstract(self) -> TensorLayout:
        """The same layout over its mesh without devices or their ids."""
        return self._over(self.device_mesh and self.device_mesh.abstract)

    @property
    def recorded(self) -> TensorLayout:
        """The same layout over its mesh as a checkpoint records it: see ``DeviceMesh.recorded``."""
        return self._over(self.device_mesh and self.device_mesh.recorded)

    def _over(self, mesh: DeviceMesh | None) -> TensorLayout:
        return self if mesh is self.device_mesh else TensorLayout(self.axes, mesh)

    @property
    def backend_layout(self) -> NamedSharding:
        """The ``jax.sharding.NamedSharding`` over ``device_mesh.backend_mesh``; needs a mesh."""
        from reshard.layout.bridges.jax_sharding import layout_to_sharding

        return layout_to_sharding(self)

    @classmethod
    def from_jax(
        cls, sharding: NamedSharding | PartitionSpec, device_mesh: DeviceMesh | None = None
    ) -> TensorLayout:
        """The layout of a NamedSharding, or of a PartitionSpec over ``device_mesh``, if there is one.

        ``backend_layout`` converts back. Raises LayoutError for other kinds of sharding, unconstrained dimensions
        and unreduced axes, which a layout cannot express.
        """
        from reshard.layout.bridges.jax_sharding import layout_from_sharding

        return layout_from_sharding(sharding, device_mesh)

    def to_keras(self) -> Any:
        """A ``keras.distribution.TensorLayout`` of the same axes and mesh."""
        from reshard.layout.bridges.keras_distribution import layout_to_keras

        return layout_to_keras(self)

    @classmethod
    def from_keras(cls, layout: Any) -> TensorLayout:
        """The same axes and mesh as a ``keras.distribution.TensorLayout``."""
        from reshard.layout.bridges.keras_distribution import layout_from_keras

        return layout_from_keras(layout)

    def parts(self, rank: int, name: str = "") -> tuple[int, ...]:
        """Number of parts along each of ``rank`` dimensions; surplus axes are a LayoutError."""
        mesh = self._mesh(name)
        if len(self.axes) > rank:
            raise self._surplus(f"{name!r} has {rank} dimensions")
        return (*_parts(self.axes, mesh.axis_names, mesh.shape), *[1] * (rank - len(self.axes)))

    def shard_shape(self, shape: Sequence[int], name: str = "") -> tuple[int, ...]:
        """Shape of each device's shard; LayoutError, naming ``name``, for a dimension that does not divide."""
        rank = len(shape)
        if len(self.axes) > rank:
            raise self._surplus(f"{name!r} has {rank} dimensions (shape {list(shape)})")
        parts = self.parts(rank, name)
        if any(map(mod, shape, parts)):
            dim = next(d for d, rest in enumerate(map(mod, shape, parts)) if rest)
            raise _indivisible(name, shape, dim, self)
        return tuple(map(floordiv, shape, parts))

    def grid(self, shape: Sequence[int], name: str = "") -> Grid:
        """The boxes of the devices; an indivisible dimension is a LayoutError naming ``name``."""
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
def _parts(
    axes: tuple[Axis, ...], names: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Number of parts along each dimension; cached, since a tree's tensors have few different axes."""
    size = dict(zip(names, sizes, strict=True))
    return tuple(math.prod(size[name] for name in axis_names(axis)) for axis in axes)


def device_boxes(layout: TensorLayout, shape: Sequence[int], name: str = "") -> list[Box]:
    """The box of each device, devices in the mesh's row-major order.

    Replicas have equal boxes. Raises LayoutError if ``TensorLayout.grid`` does.

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


def _describe(mesh: DeviceMesh) -> str:
    types = f" of the axis types {', '.join(mesh.axis_types)}" if mesh.axis_types else ""
    return f"{mesh}{types}{'' if mesh.devices is None else ' with devices'}"


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
