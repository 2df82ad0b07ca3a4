"""Converts meshes, layouts and layout maps to and from ``keras.distribution`` of Keras 3 on jax.

Versions of Keras match regular expressions differently, so a layout map is converted as a whole: Keras gets a
subclass of its LayoutMap (ModelParallel requires the type) that looks names up as this project does. Keras is
imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from reshard.errors import LayoutError, MissingPackageError
from reshard.layout.axes import axis_names
from reshard.layout.device_mesh import DeviceMesh, on_all_devices
from reshard.layout.layout_map import LayoutMap, Match
from reshard.layout.tensor_layout import TensorLayout


def mesh_to_keras(mesh: DeviceMesh) -> Any:
    """A ``keras.distribution.DeviceMesh`` of the same devices; of all devices if the mesh has none."""
    if {"Explicit", "Manual"} & set(mesh.axis_types or ()):
        raise LayoutError(
            f"{mesh} has axes of the types {list(mesh.axis_types or ())}, but those of Keras are Auto; "
            f"make it without axis_types"
        )
    placed = mesh if mesh.devices is not None else on_all_devices(mesh)
    return _distribution().DeviceMesh(mesh.shape, list(mesh.axis_names), placed.devices)


def mesh_from_keras(mesh: Any) -> DeviceMesh:
    """The same shape, axis names and devices."""
    _check(mesh, "DeviceMesh")
    return DeviceMesh(mesh.shape, mesh.axis_names, mesh.devices)


def layout_to_keras(layout: TensorLayout) -> Any:
    """A ``keras.distribution.TensorLayout`` of the same axes, over the same mesh if there is one."""
    mesh = layout.device_mesh
    return _to_keras(layout, None if mesh is None else mesh_to_keras(mesh))


def layout_from_keras(layout: Any) -> TensorLayout:
    """The same axes, over the same mesh if there is one."""
    _check(layout, "TensorLayout")
    mesh = layout.device_mesh
    return TensorLayout(layout.axes, None if mesh is None else mesh_from_keras(mesh))


def map_to_keras(layouts: LayoutMap) -> Any:
    """A ``keras.distribution.LayoutMap`` that finds the same layouts as a copy of ``layouts``."""
    bridged: Any = _bridged_map()(layouts.copy())
    return bridged


def map_from_keras(layouts: Any) -> LayoutMap:
    """The same keys, layouts and mesh, looked up as the installed Keras does."""
    _check(layouts, "LayoutMap")
    if isinstance(layouts, _bridged_map()):
        ours: LayoutMap = layouts.to_reshard()
        return ours
    mesh = layouts.device_mesh
    found = LayoutMap(None if mesh is None else mesh_from_keras(mesh), match=keras_match())
    for key in layouts:
        found[key] = layout_from_keras(layouts[key])
    return found


def keras_match() -> Match:
    """The matching function of the installed Keras' LayoutMap: ``search`` before 3.14, then ``fullmatch``."""
    probe = _distribution().LayoutMap(None)
    probe["b"] = (None,)
    if probe["ab"] is not None:
        return "search"
    return "fullmatch" if probe["bc"] is None else "match"


def _to_keras(layout: TensorLayout, mesh: Any) -> Any:
    nested = any(len(axis_names(axis)) > 1 for axis in layout.axes)
    kind = _nested_layout() if nested else _distribution().TensorLayout
    return kind(layout.axes, mesh)


@cache
def _nested_layout() -> Any:
    class NestedTensorLayout(_distribution().TensorLayout):  # type: ignore[misc]  # the class is found at run time
        """A layout that splits a dimension by several mesh axes, which Keras' own check refuses."""

        def _validate_axes(self) -> None:
            if self.device_mesh is not None:
                TensorLayout(self.axes, mesh_from_keras(self.device_mesh))

    return NestedTensorLayout


class _OwnLookUp:
    """A base class before Keras' LayoutMap; it implements everything that a dict does."""

    def __init__(self, layouts: LayoutMap) -> None:
        mesh = layouts.device_mesh
        theirs = None if mesh is None else mesh_to_keras(mesh)
        super().__init__(theirs)  # type: ignore[call-arg]  # of keras.distribution.LayoutMap
        self._ours = layouts
        self._meshes = {mesh: theirs}
        self._made: dict[TensorLayout, Any] = {}

    def to_reshard(self) -> LayoutMap:
        return self._ours.copy()

    def __getitem__(self, name: str) -> Any:
        found = self._ours[name]
        return None if found is None else self._in_keras(found)

    def get(self, name: str, default: Any = None) -> Any:
        found = self[name]
        return default if found is None else found

    def __setitem__(self, key: str, layout: Any) -> None:
        self._ours[key] = layout

    def __delitem__(self, key: str) -> None:
        del self._ours[key]

    def pop(self, key: str, *default: Any) -> Any:
        found = self._ours.pop(key, *default)
        return self._in_keras(found) if isinstance(found, TensorLayout) else found

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self._ours:
            self[key] = default
        return self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._ours

    def __iter__(self) -> Iterator[str]:
        return iter(self._ours)

    def __len__(self) -> int:
        return len(self._ours)

    def __repr__(self) -> str:
        return f"<keras.distribution.LayoutMap of {self._ours!r}>"

    def _in_keras(self, layout: TensorLayout) -> Any:
        """One Keras layout and one Keras mesh for all equal layouts and meshes of reshard."""
        mesh = layout.device_mesh
        if mesh not in self._meshes:
            self._meshes[mesh] = mesh and mesh_to_keras(mesh)
        if layout not in self._made:
            self._made[layout] = _to_keras(layout, self._meshes[mesh])
        return self._made[layout]


@cache
def _bridged_map() -> type[Any]:
    return type("BridgedLayoutMap", (_OwnLookUp, _distribution().LayoutMap), {})


def _check(found: object, kind: str) -> None:
    if not isinstance(found, getattr(_distribution(), kind)):
        raise LayoutError(
            f"expected a keras.distribution.{kind}, found a {type(found).__name__}: {found!r:.80}"
        )


def _distribution() -> Any:
    try:
        import keras
    except ImportError as error:
        raise MissingPackageError(
            f"this needs Keras 3 on jax, which cannot be imported: {error}; install it with "
            f"'pip install keras', and set KERAS_BACKEND=jax before it is first imported"
        ) from error
    if keras.backend.backend() != "jax":
        raise MissingPackageError(
            f"this needs Keras on jax, but its backend is {keras.backend.backend()}; set "
            f"KERAS_BACKEND=jax before it is first imported"
        )
    return keras.distribution
