"""``_sharding``: the mesh axes that split each array, as its saver had it.

A JSON object from urlsafe-base64 of the param name to *text* that is JSON again
(``_src/metadata/sharding.py`` of Orbax 0.12)::

    {"sharding_type": "NamedSharding", "shape": [4, 2], "axis_names": ["data", "model"],
     "axis_types": ["AxisType.Auto", "AxisType.Auto"], "partition_spec": [["data", "model"], null],
     "device_mesh": {"mesh": [[{"id": 0}, {"id": 1}], ...]}}
    {"sharding_type": "SingleDeviceSharding", "device_str": "cpu:3"}

Orbax 0.4.1 wrote the param name itself as the key. ``device_mesh`` is optional. A ``SingleDeviceSharding`` is not a layout; its
text is kept, and written again if the array stays on its device. Orbax restores no other kinds, so they are left out.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, LayoutError, shorten
from reshard.formats.json.json_cursor import JsonCursor
from reshard.formats.json.safe_json import expect, expect_sizes, json_value
from reshard.formats.slices.file_digests import MetadataFiles
from reshard.layout.axes import Axis
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout

SHARDING = "_sharding"

MAX_DEVICES = 1 << 20
"""Beyond any machine that exists; a larger mesh is damage or an attack."""

_NAMED = "NamedSharding"
_SINGLE = "SingleDeviceSharding"


class OneDevice(Struct, frozen=True):
    """An array on one device; ``text`` is its entry, which names the device."""

    text: str


Sharding = TensorLayout | OneDevice


def read_shardings(files: MetadataFiles, names: Container[str] = ()) -> Mapping[str, Sharding]:
    """The sharding of each array that has one, by param name; empty if there is no ``_sharding``.

    ``names`` are the param names of the item, which old versions wrote as they are.

    Equal shardings and meshes are one object, so 100,000 arrays on one mesh cost little memory.
    """
    data = files.read(SHARDING)
    if data is None:
        return {}
    cursor = JsonCursor(data, files.where(SHARDING))
    known: dict[str, Sharding | None] = {}
    meshes: dict[DeviceMesh, DeviceMesh] = {}
    shardings: dict[str, Sharding] = {}
    for key in cursor.members():
        name = _param_name(key, names, cursor.where)
        text = expect(cursor.value(), str, f"the sharding of {name!r}", cursor.where)
        if text not in known:
            known[text] = _shared(parse_sharding(text, name, cursor.where), meshes)
        if (sharding := known[text]) is not None:
            shardings[name] = sharding
    cursor.finish()
    return shardings


def _shared(sharding: Sharding | None, meshes: dict[DeviceMesh, DeviceMesh]) -> Sharding | None:
    if not isinstance(sharding, TensorLayout) or sharding.device_mesh is None:
        return sharding
    mesh = meshes.setdefault(sharding.device_mesh, sharding.device_mesh)
    return sharding if mesh is sharding.device_mesh else TensorLayout(sharding.axes, mesh)


def _param_name(key: str, names: Container[str], where: str) -> str:
    name = _decoded(key)
    if key in names and name not in names:
        return key
    if name is None:
        raise CorruptError(
            f"{where}: the key {shorten(key)} should be the base64 of an array's name, but is not"
        )
    return name


def _decoded(key: str) -> str | None:
    try:
        return base64.b64decode(key, altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None


def parse_sharding(text: str, name: str, where: str) -> Sharding | None:
    """The sharding in one entry's text; None for another kind of sharding, for which Orbax 0.4.1 wrote an empty text.

    Raises CorruptError naming the array if the entry contradicts itself.
    """
    if not text:
        return None
    what = f"the sharding of {name!r}"
    place = f"{where}, {what}"
    fields = expect(json_value(text.encode("utf-8", "surrogatepass"), place), dict, what, where)
    if fields.get("sharding_type") == _SINGLE and isinstance(fields.get("device_str"), str):
        return OneDevice(text)
    if fields.get("sharding_type") != _NAMED:
        return None
    spec = expect(fields.get("partition_spec"), list, "partition_spec", place)
    try:
        mesh = _mesh(fields, place)
        axes = tuple(_axis(entry, place) for entry in spec)
        _check_axes(axes, mesh, place)
        layout = TensorLayout(axes, mesh)
    except LayoutError as error:
        raise CorruptError(f"{place} makes no sense: {error}") from error
    return layout


def _mesh(fields: Mapping[str, Any], place: str) -> DeviceMesh:
    shape = expect_sizes(fields.get("shape"), "the mesh's shape", place, smallest=1)
    names = expect(fields.get("axis_names"), list, "axis_names", place)
    axis_names = tuple(expect(n, str, "an axis name", place) for n in names)
    if len(axis_names) != len(shape) or len(set(axis_names)) != len(axis_names):
        raise CorruptError(
            f"{place}: the mesh's shape {list(shape)} needs {len(shape)} different axis names, but "
            f"they are {shorten(names)}"
        )
    if math.prod(shape) > MAX_DEVICES:
        raise CorruptError(
            f"{place}: a mesh of {shorten(list(shape))} has more than {MAX_DEVICES:,} devices"
        )
    types, devices = fields.get("axis_types"), fields.get("device_mesh")
    kinds = None
    if types is not None:
        kinds = tuple(
            expect(t, str, "an axis type", place).removeprefix("AxisType.")
            for t in expect(types, list, "axis_types", place)
        )
    ids = None if devices is None else tuple(_device_ids(devices, shape, place))
    return DeviceMesh(shape, axis_names, axis_types=kinds, device_ids=ids)


def _device_ids(devices: Any, shape: tuple[int, ...], place: str) -> Iterator[int]:
    """The ids, row-major. Orbax on TPUs once recorded coordinates too, which are ignored."""
    nested = [expect(devices, dict, "device_mesh", place).get("mesh")]
    for size in shape:
        nested = [part for parts in nested for part in _parts(parts, size, place)]
    for device in nested:
        yield expect(expect(device, dict, "a device", place).get("id"), int, "a device's id", place)


def _parts(parts: Any, size: int, place: str) -> list[Any]:
    found = expect(parts, list, "device_mesh", place)
    if len(found) != size:
        raise CorruptError(
            f"{place}: device_mesh should have the mesh's shape, but has {len(found)} entries where "
            f"an axis has {size}"
        )
    return found


def _axis(entry: Any, place: str) -> Axis:
    if entry is None or isinstance(entry, str):
        return entry
    names = expect(entry, list, "an entry of partition_spec", place)
    return tuple(expect(n, str, "an axis in partition_spec", place) for n in names) or None


def _check_axes(axes: Sequence[Axis], mesh: DeviceMesh, place: str) -> None:
    used = [n for axis in axes if axis for n in ((axis,) if isinstance(axis, str) else axis)]
    for name in used:
        if name not in mesh.axis_names or used.count(name) > 1:
            raise CorruptError(
                f"{place}: partition_spec should use each of the mesh's axes "
                f"({', '.join(mesh.axis_names)}) at most once, but uses {shorten(used)}"
            )
