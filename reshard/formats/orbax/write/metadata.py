"""An item's own metadata: ``_METADATA``, ``_sharding``, ``array_metadatas``, ``_strings.json``.

Written as stock Orbax 0.12 writes them. ``array_metadatas`` is always written: without it PRNG keys are silently
restored as uint32. Orbax looks for ``.zarray`` files (zarr2) or an OCDBT manifest to
tell whether there is data, and warns if it finds neither, as in every plain zarr3 checkpoint, also its own.
``array_metadatas/.zarray``, an array without elements, prevents the warning.

Orbax wants an entry in ``_sharding`` for every jax.Array leaf and fails on the first that has none. It is what stock Orbax gives each
array when it restores without a target. Device ids are written if the mesh has them (a source's mesh, or one given with devices).
Without ids Orbax uses all of ``jax.devices()``, whose number must then equal the size of the mesh; else it raises "Topology
mismatch".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

from reshard.errors import FormatError
from reshard.formats.base import TargetTensor
from reshard.formats.contents import ARRAY_TYPES
from reshard.formats.orbax.write.item_tree import ItemTree, WrittenLeaf
from reshard.layout.axes import Axis
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout

Keys = tuple[str, ...]
_LEAF = "ValueMetadataEntry"
_MAX_DEPTH = 200


def updated_tree(text: str, values: Mapping[Keys, Mapping[str, Any]]) -> str | None:
    """The tree's JSON with each leaf's data from ``values``, or None if the leaves differ."""
    try:
        tree = json.loads(text)
        leaves = dict(_leaves(tree, ()))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if leaves.keys() != values.keys():
        return None
    for keys, leaf in leaves.items():
        leaf["data"] = dict(values[keys])
    return json.dumps(tree)


def _leaves(node: Any, keys: Keys) -> Iterator[tuple[Keys, dict[str, Any]]]:
    if len(keys) > _MAX_DEPTH:
        raise ValueError("the tree is nested too deep")
    if _category(node) == "custom" and node["clazz"] == _LEAF:
        yield keys, node
        return
    for key, child in _children(node):
        yield from _leaves(child, (*keys, key))


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    category = _category(node)
    if category == "namedtuple":
        yield from ((entry["key"], entry["value"]) for entry in node["entries"])
    elif category == "custom":
        yield from ((str(i), child) for i, child in enumerate(node["entries"]))
    elif isinstance(node, list):
        yield from ((str(i), child) for i, child in enumerate(node))
    elif isinstance(node, dict):
        yield from node.items()
    else:
        raise TypeError("neither a container nor a leaf")


def _category(node: Any) -> str | None:
    found = node.get("category") if isinstance(node, dict) else None
    return found if isinstance(found, str) else None


_JAX_ARRAY = "jax.Array"
_NUMPY = "np.ndarray"

_EMPTY_ZARR2 = {
    "chunks": [1], "compressor": None, "dtype": "|u1", "fill_value": None, "filters": None,
    "order": "C", "shape": [0], "zarr_format": 2,
}  # fmt: skip


def metadata_files(tree: ItemTree, *, ocdbt: bool) -> dict[str, bytes]:
    """Every metadata file of the item, by its path in the item's folder."""
    files = {"array_metadatas/process_0": _array_metadatas(tree)}
    if tree.tensors and not ocdbt:
        files["array_metadatas/.zarray"] = json.dumps(_EMPTY_ZARR2).encode()
    if any(_has_sharding(leaf) for leaf, _ in tree.tensors):
        files["_sharding"] = _shardings(tree)
    if strings := string_document(tree):
        files["_strings.json"] = json.dumps(strings).encode()
    files["_METADATA"] = _tree_metadata(tree, ocdbt=ocdbt)
    return files


def _joined(start: str, entries: Iterable[str], end: str) -> bytes:
    """JSON put together entry by entry: objects of a large tree would take ten times the memory."""
    text = BytesIO()
    text.write(start.encode())
    for number, entry in enumerate(entries):
        text.write((", " + entry if number else entry).encode())
    text.write(end.encode())
    return text.getvalue()


def value_metadata(written: WrittenLeaf) -> dict[str, Any]:
    """The entry of the leaf in ``_METADATA``: the source's, updated.

    A numpy array whose target layout splits it becomes a jax.Array, since only those are restored with a sharding. So do
    PRNG keys, which are never anything else.
    """
    recorded = dict(written.leaf.meta.get("value_metadata") or _default(written))
    target = written.target
    if target is None:
        return recorded
    is_split = recorded.get("value_type") == _NUMPY and _is_split(target)
    if is_split or written.leaf.meta.get("ext_metadata"):
        recorded["value_type"] = _JAX_ARRAY
    if recorded.get("value_type") == _JAX_ARRAY or "write_shape" in recorded:
        recorded["write_shape"] = _chunk_shape(target)
    return recorded


def _has_sharding(written: WrittenLeaf) -> bool:
    """True for a jax.Array, and for an array in a layout whose handler, a program's own, reads the same files."""
    kind, target = value_metadata(written).get("value_type"), written.target
    is_laid_out = target is not None and target.spec.layout is not None
    return kind == _JAX_ARRAY or (is_laid_out and kind not in ARRAY_TYPES)


def _default(written: WrittenLeaf) -> dict[str, Any]:
    if written.target is not None:
        kind = _NUMPY if written.target.spec.layout is None else _JAX_ARRAY
        return {"value_type": kind, "skip_deserialize": False}
    if "string" in written.leaf.meta:
        return {"value_type": "string", "skip_deserialize": False}
    return {"value_type": "None", "skip_deserialize": True}


def _is_split(target: TargetTensor) -> bool:
    return target.spec.layout is not None and any(a is not None for a in target.spec.layout.axes)


def _chunk_shape(target: TargetTensor) -> list[int]:
    return [max(1, n) for n in target.spec.chunk_shape or ()]


def _tree_metadata(tree: ItemTree, *, ocdbt: bool) -> bytes:
    document = {
        "use_ocdbt": ocdbt,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": tree.item.meta.get("custom_metadata"),
    }
    if rich := _rich_tree(tree):
        document["value_metadata_tree"] = rich
    rest = json.dumps(document).removeprefix("{")
    return _joined('{"tree_metadata": {', map(_tree_entry, tree.leaves), "}, " + rest)


def _tree_entry(leaf: WrittenLeaf) -> str:
    entry = {"key_metadata": _keys(leaf), "value_metadata": value_metadata(leaf)}
    return f"{json.dumps(str(leaf.keys))}: {json.dumps(entry)}"


def _rich_tree(tree: ItemTree) -> str | None:
    recorded = tree.item.meta.get("value_metadata_tree")
    if not recorded:
        return None
    values = {leaf.keys: value_metadata(leaf) for leaf in tree.leaves}
    return updated_tree(recorded if isinstance(recorded, str) else json.dumps(recorded), values)


def _keys(leaf: WrittenLeaf) -> list[dict[str, Any]]:
    return [{"key": step.key, "key_type": 1 if step.is_sequence else 2} for step in leaf.path]


def _array_metadatas(tree: ItemTree) -> bytes:
    entries = (
        json.dumps({"array_metadata": _array_metadata(leaf, target)})
        for leaf, target in tree.tensors
        if _has_sharding(leaf)
    )
    return _joined('{"array_metadatas": [', entries, "]}")


def _array_metadata(leaf: WrittenLeaf, target: TargetTensor) -> dict[str, Any]:
    return {
        "param_name": leaf.param,
        "write_shape": _chunk_shape(target),
        "chunk_shape": _chunk_shape(target),
        "ext_metadata": leaf.leaf.meta.get("ext_metadata"),
    }


def _shardings(tree: ItemTree) -> bytes:
    entries = (
        f"{json.dumps(sharding_key(leaf.param))}: {json.dumps(_sharding(leaf, target))}"
        for leaf, target in tree.tensors
        if _has_sharding(leaf)
    )
    return _joined("{", entries, "}")


def _sharding(leaf: WrittenLeaf, target: TargetTensor) -> str:
    is_key = bool(leaf.leaf.meta.get("ext_metadata"))
    recorded: str | None = leaf.leaf.meta.get("sharding")
    return recorded or sharding_value(target.spec.layout, len(target.spec.shape) - is_key)


def string_document(tree: ItemTree) -> dict[str, Any]:
    """The strings, nested if a name has slashes: Orbax uses the name as a JSON pointer."""
    document: dict[str, Any] = {}
    for leaf in tree.leaves:
        if "string" in leaf.leaf.meta and leaf.target is None:
            _insert(document, leaf)
    return document


def _insert(document: dict[str, Any], leaf: WrittenLeaf) -> None:
    *parents, last = [p.replace("~1", "/").replace("~0", "~") for p in leaf.param.split("/")]
    node: Any = document
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last in node:
        raise FormatError(
            f"the string {leaf.leaf.name!r} cannot be written: its name is inside another "
            f"string's name, and Orbax keeps strings by path; rename it"
        )
    node[last] = leaf.leaf.meta["string"]


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
