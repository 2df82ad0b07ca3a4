"""``_sharding``: the sharding that stock Orbax gives each array when it restores without a target.

Orbax wants an entry for every jax.Array leaf and fails on the first that has none. Device ids are written if the mesh
has them (a source's mesh, or one given with devices). Without ids Orbax uses all of ``jax.devices()``, whose number
must then equal the size of the mesh; else it raises "Topology mismatch".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from reshard.layout.axes import Axis
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout

_ONE_DEVICE = {
    "sharding_type": "NamedSharding",
    "shape": [1],
    "axis_names": ["device"],
    "axis_types": ["AxisType.Auto"],
    "partition_spec": [],
    "device_mesh": {"mesh": [{"id": 0}]},
}
"""For arrays without a known layout: whole, on device 0. A SingleDeviceSharding would need the name of a
device that the restoring process has, which differs between CPU, GPU and TPU; the id does not."""


def sharding_key(param: str) -> str:
    """The entry's key: a JSON pointer cannot express every name, so Orbax encodes it as base64."""
    return base64.urlsafe_b64encode(param.encode()).decode()


def sharding_value(layout: TensorLayout | None, rank: int) -> str:
    """The entry's value, JSON in a string.

    Args:
        rank: dimensions of the array; for PRNG keys those of the keys, whose data has one more.
    """
    if layout is None or layout.device_mesh is None:
        return json.dumps(_ONE_DEVICE)
    axes = list(layout.axes)
    while len(axes) > rank and axes[-1] is None:
        axes.pop()
    return _render(tuple(axes), layout.device_mesh.recorded)


@lru_cache(maxsize=256)
def _render(axes: tuple[Axis, ...], mesh: DeviceMesh) -> str:
    document: dict[str, Any] = {
        "sharding_type": "NamedSharding",
        "shape": list(mesh.shape),
        "axis_names": list(mesh.axis_names),
        "axis_types": _axis_types(mesh),
        "partition_spec": [list(a) if isinstance(a, tuple) else a for a in axes],
    }
    if mesh.device_ids is not None:
        devices = [{"id": number} for number in mesh.device_ids]
        document["device_mesh"] = {"mesh": _nested(devices, mesh.shape)}
    return json.dumps(document)


def _nested(devices: list[Any], shape: Sequence[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        devices = [devices[at : at + size] for at in range(0, len(devices), size)]
    return devices


def _axis_types(mesh: DeviceMesh) -> list[str]:
    return [f"AxisType.{kind}" for kind in mesh.axis_types or ("Auto",) * len(mesh.axis_names)]
