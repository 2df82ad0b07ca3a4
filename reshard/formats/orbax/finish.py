"""The last step of writing: each tree's metadata, its slice metadata, and the markers last of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.orbax.container_metadata import (
    CHECKPOINT_METADATA,
    COMMIT_MARKER,
    COMMITTED,
    V1_MARKER,
    checkpoint_metadata,
)
from reshard.formats.orbax.files import make_folder, write_file
from reshard.formats.orbax.item_tree import ItemTree, WrittenLeaf
from reshard.formats.orbax.write_metadata import metadata_files, string_document
from reshard.formats.slices import (
    FILE_NAME,
    SliceEntry,
    SliceFile,
    digest_of,
    render_slices,
    split_of,
)
from reshard.layout.grid import Grid
from reshard.layout.partitioners import div_cuts


def finish_checkpoint(
    root: Path,
    target: TargetCheckpoint,
    trees: Sequence[ItemTree],
    digests: Mapping[str, str],
    *,
    arrays: Mapping[str, Mapping[str, bytes]],
    ocdbt: bool,
) -> None:
    """Write everything that is not tensor bytes.

    Args:
        digests: CRC-64/NVME of each tensor, by name, 16 hex digits.
        arrays: each item's array metadata that lies in files, by item name and path in the item.
    """
    for tree in trees:
        files = metadata_files(tree, ocdbt=ocdbt)
        for name, data in files.items():
            _write(root, tree.below(name), data)
        known = {**arrays.get(tree.item.name, {}), **files}
        slices = replace(slice_file(tree, digests, known), conversion=target.conversion)
        _write(root, tree.below(FILE_NAME), render_slices(slices))
    _write_markers(root, target, trees)


def check_tree(tree: ItemTree) -> None:
    """Raise now what ``finish_checkpoint`` would raise of this tree once its data is written."""
    string_document(tree)
    for _, tensor in tree.tensors:
        if tensor.slices is None:
            _slices(tensor)


def slice_file(tree: ItemTree, digests: Mapping[str, str], files: Mapping[str, bytes]) -> SliceFile:
    """The item's slice metadata, with a digest of each metadata file."""
    entries = [
        slice_entry(leaf, tensor, digests.get(leaf.leaf.name)) for leaf, tensor in tree.tensors
    ]
    return SliceFile({e.name: e for e in entries}, {n: digest_of(d) for n, d in files.items()})


def slice_entry(leaf: WrittenLeaf, target: TargetTensor, digest: str | None) -> SliceEntry:
    """What slices.json says of a tensor."""
    spec = target.spec
    meshed = spec.layout is not None and spec.layout.device_mesh is not None
    return SliceEntry(
        path=leaf.keys,
        dtype=spec.dtype,
        shape=spec.shape,
        layout=spec.layout if meshed else None,
        **_split(target),
        partition=dict(target.partition) if target.partition else None,
        memory_kind=leaf.leaf.meta.get("memory_kind"),
        digest=digest,
    )


def _split(target: TargetTensor) -> dict[str, tuple[Any, ...]]:
    if isinstance(target.slices, tuple):
        return {"slices": target.slices}
    return split_of(_slices(target) if target.slices is None else target.slices)


def _slices(target: TargetTensor) -> Grid:
    """Who needs what: 'div' parts where the tensor is partitioned by count, else the layout's."""
    spec, partition = target.spec, target.partition or {}
    if "axis" not in partition or "shards" not in partition:
        return spec.slices
    axis, shards = partition["axis"], partition["shards"]
    counts = [shards if dim == axis else 1 for dim in range(len(spec.shape))]
    return Grid(spec.shape, tuple(map(div_cuts, spec.shape, counts)))


def _write_markers(root: Path, target: TargetCheckpoint, trees: Sequence[ItemTree]) -> None:
    container = target.container
    present = {tree.item.name for tree in trees} | target.copied.keys()
    items = [item for item in container.items if item.name in present]
    for tree in trees if container.style == "v0" else ():
        if tree.directory:
            _write(root, tree.below(COMMIT_MARKER), COMMITTED)
    _write(root, CHECKPOINT_METADATA, checkpoint_metadata(container, items))
    if container.style == "v1":
        _write(root, V1_MARKER, b"")
    _write(root, COMMIT_MARKER, COMMITTED)


def _write(root: Path, name: str, data: bytes) -> None:
    path = root / name
    if "/" in name:
        make_folder(str(path.parent))
    write_file(str(path), data)
