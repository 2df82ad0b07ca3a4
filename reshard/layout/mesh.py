"""Meshes, axes and layouts, to be imported from one place."""

from __future__ import annotations

from reshard.layout.axes import AxesLike, Axis, axis_names, known_axes, show_axes, used_axes
from reshard.layout.device_mesh import (
    AXIS_TYPES,
    MAX_AXES,
    MAX_DEVICES,
    DeviceMesh,
    parse_mesh,
)
from reshard.layout.tensor_layout import TensorLayout, device_boxes

__all__ = [
    "AXIS_TYPES",
    "MAX_AXES",
    "MAX_DEVICES",
    "AxesLike",
    "Axis",
    "DeviceMesh",
    "TensorLayout",
    "axis_names",
    "device_boxes",
    "known_axes",
    "parse_mesh",
    "show_axes",
    "used_axes",
]
