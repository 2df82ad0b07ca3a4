"""An item's own metadata: ``_METADATA``, ``_sharding``, ``array_metadatas``, ``_strings.json``.

Written as stock Orbax 0.12 writes them. ``array_metadatas`` is always written: without it PRNG keys are silently
restored as uint32. Orbax looks for ``.zarray`` files (zarr2) or an OCDBT manifest to
tell whether there is data, and warns if it finds neither, as in every plain zarr3 checkpoint, also its own.
``array_metadatas/.zarray``, an array without elements, prevents the warning.

Orbax wants an entry in ``_sharding`` for every jax.Array leaf and fails on the first that has none. It is what stock Orbax gives each
array when it restores without a target. Device ids are written if the mesh has them (a source's mesh, or one given with devices).
Without ids Orbax uses all of ``jax.devices()``, whose number must then equal the size of the mesh; else it raises "Topology
mismatch".

The last step of writing: each tree's metadata, its slice metadata, and the markers last of all.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

from msgspec.structs import replace

from reshard.errors import FormatError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import ARRAY_TYPES, Container, Item, Style
from reshard.formats.marks import CHECKPOINT_METADATA, V1_MARKER
from reshard.formats.ocdbt.index import find_databases
from reshard.formats.orbax.reader import is_data_file
from reshard.formats.orbax.write_items import (
    V1_HANDLERS,
    ItemTree,
    WrittenLeaf,
    copied_folders,
    item_directory,
)
from reshard.formats.slices.file_digests import digests_of_files, files_below
from reshard.formats.slices.slice_file import (
    FILE_NAME,
    SliceEntry,
    SliceFile,
    digest_of,
    render_slices,
    split_of_shards,
    target_entry,
)
from reshard.layout.axes import Axis
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.storage.commit_markers import COMMIT_MARKER, COMMITTED
from reshard.storage.location import Location

_TIMES = ("init_timestamp_nsecs", "commit_timestamp_nsecs")

_TREE_HANDLER: dict[Style, str] = {
    "v0": "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler",
    "v1": "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler",
}


def finish_checkpoint(
    root: Location,
    target: TargetCheckpoint,
    trees: Sequence[ItemTree],
    digests: Mapping[str, str],
    *,
    arrays: Mapping[str, Mapping[str, bytes]],
    ocdbt: bool,
) -> dict[str, bytes]:
    """Write everything that is not tensor bytes, but the markers, which are returned by their paths.

    Args:
        digests: CRC-64/NVME of each tensor, by name, 16 hex digits.
        arrays: each item's array metadata in files, by item name and path in the item.
    """
    markers = _markers(target, trees)
    slices_of: dict[str, bytes] = {}
    for tree in trees:
        files = metadata_files(tree, ocdbt=ocdbt)
        for name, data in files.items():
            _write(root, tree.below(name), data)
        own = {n.removeprefix(tree.below("")): d for n, d in markers.items() if _is_of(n, tree)}
        known = {**arrays.get(tree.item.name, {}), **files, **own}
        slices = slice_file(tree, digests, known, _database_digests(root / tree.directory))
        slices = replace(slices, conversion=target.conversion)
        if not tree.directory:
            slices = replace(slices, made=target.made, metadata=target.metadata)
        slices_of[tree.below(FILE_NAME)] = render_slices(slices)
    if FILE_NAME not in slices_of:
        slices_of[FILE_NAME] = _container_slices(root, target, trees, markers, slices_of)
    for name, data in slices_of.items():
        _write(root, name, data)
    return markers


def _is_of(name: str, tree: ItemTree) -> bool:
    return not tree.directory or name.startswith(tree.below(""))


def _database_digests(folder: Location) -> dict[str, str]:
    """The digest of each file of the databases in an item's folder; none if chunks are plain files."""
    if not find_databases(folder):
        return {}
    return digests_of_files(folder, (n for n in files_below(folder) if is_data_file(n)))


def _container_slices(
    root: Location,
    target: TargetCheckpoint,
    trees: Sequence[ItemTree],
    markers: Mapping[str, bytes],
    slices_of: Mapping[str, bytes],
) -> bytes:
    """The record of a checkpoint of several items; it covers everything outside of its trees."""
    own = {n: d for n, d in markers.items() if not any(_is_of(n, tree) for tree in trees)}
    files = {name: digest_of(data) for name, data in {**own, **slices_of}.items()}
    for folder in copied_folders(target):
        names = (f"{folder}/{name}" for name in files_below(root / folder))
        files |= digests_of_files(root, names)
    item_names = bool(target.container.naming_items)
    return render_slices(
        SliceFile({}, files, {}, item_names=item_names, made=target.made, metadata=target.metadata)
    )


def check_tree(tree: ItemTree) -> None:
    """Raises the errors that ``finish_checkpoint`` would raise for this tree after its data is written."""
    string_document(tree)
    for _, tensor in tree.tensors:
        split_of_shards(tensor)


def slice_file(
    tree: ItemTree,
    digests: Mapping[str, str],
    files: Mapping[str, bytes],
    data_files: Mapping[str, str] | None = None,
) -> SliceFile:
    """The item's slice metadata, with a digest of each metadata file.

    Args:
        data_files: digests of the databases' files; None if not every file is recorded.
    """
    entries = [
        slice_entry(leaf, tensor, digests.get(leaf.leaf.name)) for leaf, tensor in tree.tensors
    ]
    metadata = {name: digest_of(data) for name, data in files.items()}
    return SliceFile({e.name: e for e in entries}, metadata, data_files)


def slice_entry(leaf: WrittenLeaf, target: TargetTensor, digest: str | None) -> SliceEntry:
    """The entry of a tensor in slices.json."""
    return target_entry(leaf.keys, target, digest, memory_kind=leaf.leaf.meta.get("memory_kind"))


def _markers(target: TargetCheckpoint, trees: Sequence[ItemTree]) -> dict[str, bytes]:
    """The marker files that make readers accept the checkpoint, by path below it, in the order of writing."""
    container = target.container
    present = {tree.item.name for tree in trees} | target.copied.keys()
    items = [item for item in container.items if item.name in present]
    markers: dict[str, bytes] = {}
    for tree in trees if container.style != "v1" else ():
        if tree.directory:
            markers[tree.below(COMMIT_MARKER)] = COMMITTED
    markers[CHECKPOINT_METADATA] = _checkpoint_metadata(container, items)
    if container.style == "v1":
        markers[V1_MARKER] = b""
    return markers | {COMMIT_MARKER: COMMITTED}


def _write(root: Location, name: str, data: bytes) -> None:
    path = root / name
    if "/" in name:
        path.parent.make_folder()
    path.write(data)


def _checkpoint_metadata(container: Container, items: Iterable[Item]) -> bytes:
    """``_CHECKPOINT_METADATA``: the source's, with the handlers of the items that were written.

    Time stamps are the source's, or null if it has none, so that converting twice gives equal files. A tree that was
    never saved before gets the time of now.
    """
    now = time.time_ns()
    document = {
        "item_handlers": _item_handlers(container, items),
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": now,
        "commit_timestamp_nsecs": now,
        "custom_metadata": {},
    }
    times = {k: v for k, v in container.meta.items() if k in _TIMES}
    recorded = {k: v for k, v in container.meta.items() if k != "item_handlers" and v is not None}
    recorded |= times
    return json.dumps(document | recorded).encode()


def _item_handlers(container: Container, items: Iterable[Item]) -> str | dict[str, str]:
    """One handler for a checkpoint that is one tree, else a handler by item folder."""
    found = {
        item_directory(container, item): _handler(container.style or "v0", item) for item in items
    }
    return found[""] if "" in found else {k: v for k, v in found.items() if v}


def _handler(style: Style, item: Item) -> str:
    """The item's recorded handler; the default if a tree's handler is of the other style."""
    fits = item.handler.startswith(V1_HANDLERS) == (style == "v1")
    if item.handler and (fits or not item.is_tree):
        return item.handler
    return _TREE_HANDLER[style] if item.is_tree else ""


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
    recorded = dict(written.leaf.meta.get("value_metadata") or _default_values(written))
    target = written.target
    if target is None:
        return recorded
    layout = target.spec.layout
    is_split = layout is not None and any(axis is not None for axis in layout.axes)
    if (is_split and recorded.get("value_type") == _NUMPY) or written.leaf.meta.get("ext_metadata"):
        recorded["value_type"] = _JAX_ARRAY
    if recorded.get("value_type") == _JAX_ARRAY or "write_shape" in recorded:
        recorded["write_shape"] = _chunk_shape(target)
    return recorded


def _has_sharding(written: WrittenLeaf) -> bool:
    """True for a jax.Array, and for an array in a layout whose handler, a program's own, reads the same files."""
    kind, target = value_metadata(written).get("value_type"), written.target
    is_laid_out = target is not None and target.spec.layout is not None
    return kind == _JAX_ARRAY or (is_laid_out and kind not in ARRAY_TYPES)


def _default_values(written: WrittenLeaf) -> dict[str, Any]:
    if written.target is not None:
        kind = _NUMPY if written.target.spec.layout is None else _JAX_ARRAY
        return {"value_type": kind, "skip_deserialize": False}
    if "string" in written.leaf.meta:
        return {"value_type": "string", "skip_deserialize": False}
    return {"value_type": "None", "skip_deserialize": True}


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
        "axis_types": [
            f"AxisType.{kind}" for kind in mesh.axis_types or ("Auto",) * len(mesh.axis_names)
        ],
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
