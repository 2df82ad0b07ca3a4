"""slices.json: the boxes of all shards in their full tensors, and the digests of tensors and files.

It is a JSON file beside an item's ``_METADATA``::

    {"format": "reshard.slices", "version": 1,
     "meshes": {"m0": {"axes": ["model"], "shape": [8], "axis_types": ["Auto"],
                       "device_ids": [0, 1, 2, 3, 4, 5, 6, 7]}},
     "tensors": {"params/kernel": {"path": ["params", "kernel"], "dtype": "bfloat16",
                                   "shape": [2048, 8192], "mesh": "m0", "axes": [null, "model"],
                                   "parts": [1, 8], "crc64nvme": "8f3c..."}},
     "files": {"_METADATA": "0123...", "params.kernel/zarr.json": "89ab..."},
     "data_files": {"manifest.ocdbt": "cdef...", "d/7a1b...": "0246..."},
     "conversion": "89ab...",
     "made": {"source": "cdef...", "tensors": 1, "select": ["^params/"], "drop": [], "rename": [],
              "cast": [["kernel$", "bfloat16"]],
              "origins": {"params/kernel": {"name": "params/kernel", "dtype": "float32"}},
              "leaves": {"params/note": "params/note"}},
     "metadata": {"header": {"modelspec.title": "a"}, "index": {"total_parameters": "16777216"}},
     "crc64nvme": "4567..."}

``positions`` are the numbers, from 0, of those keys of ``path`` that are positions of lists; only formats whose own metadata
has no tree record them. A mesh has ``axis_types`` and ``device_ids``, row-major, if they are known. ``parts`` has the number of equal parts
per dimension, ``cuts`` the edges of unequal parts, and ``slices`` loose boxes as [start, stop] per dimension.
``conversion`` identifies the conversion and the source, so that the same conversion is not done twice. ``made``, in
the slices.json at the top of a checkpoint, describes that conversion for ``verify``: ``source`` is the digest of
the source's tree (SHA-256, 32 hex digits, of a line ``"name" [shape] dtype is_key`` for each tensor, sorted by
name), ``tensors`` the number of tensors, ``select``, ``drop``, ``rename`` and ``cast`` the rules as written, and
``origins`` the source tensor of each tensor whose name or dtype changed (``dtype`` only after a cast, ``saturate``
only if it saturated). ``leaves`` has the name in the source of each leaf that is not a tensor; older files lack it. ``by``, in place of
origins, is the content of the map that made the tensors, with the given sizes and its direction; only a file with it has
version 2, which earlier programs refuse. ``metadata``, in the top file too, has the texts beside the tensors that the checkpoint's own
files have no place for (``KeptMetadata``); earlier programs pass over it. Names are the keys below the item joined with ``/``; lines are
sorted by name, so that equal checkpoints give equal files. The last member is the CRC-64/NVME of every byte before its sixteen digits.

``files`` and ``data_files`` have the CRC-64/NVME of files by their path below the folder. Readers take metadata from
``files``. ``data_files``, the files of an OCDBT database, contain tensors too, so only ``verify`` reads them whole.
With ``data_files`` the record is complete: every file of the folder is in one of the two, except this file, chunks in
plain files (the tensors' digests and the chunks' own CRC32C cover them), and folders with a slices.json of their own. A
checkpoint of several items has one more at its top, without tensors, for the markers, the items that are not trees, and
the slices.json of the items. In it, ``item_names`` is true if names of tensors begin with their item (``model/w``), so
that a part of a checkpoint of several items keeps its names. Without ``data_files``, as in older versions of this file,
``files`` are metadata files of the item, perhaps not all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from io import BytesIO
from typing import Any

from msgspec import Struct, field

from reshard.errors import CorruptError, FormatError, LayoutError
from reshard.formats.base import Made, Origin, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.slices.kept_metadata import NO_METADATA, KeptMetadata
from reshard.geometry.grid import Box, Cuts, Grid
from reshard.layout.device_mesh import DeviceMesh, mesh_document
from reshard.layout.tensor_layout import TensorLayout

FILE_NAME = "slices.json"

PARTIAL_NAME = f".{FILE_NAME}.reshard-partial"
"""A slices.json that is still being written."""

FORMAT = "reshard.slices"
VERSION = 2
"""Written only for a checkpoint that a map made: earlier programs would take its tensors for renamed ones."""

_TAIL = b'"}\n'


class SliceEntry(Struct, frozen=True):
    """The entry of one tensor in slices.json; one of ``parts``, ``cuts`` and ``slices`` is set.

    Attributes:
        path: the tensor's keys below the item.
        positions: the numbers of its keys that are positions of lists, if recorded.
        layout: mesh and axes, or None if none was recorded.
        parts: equal parts per dimension.
        cuts: per dimension the edges from 0 to its size, for unequal parts.
        slices: loose boxes, for parts that are not a grid.
        partition: its split beyond mesh axes (``{"strategy": ...}``).
        digest: CRC-64/NVME of the row-major bytes, 16 hex digits.
    """

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    layout: TensorLayout | None = None
    parts: tuple[int, ...] | None = None
    cuts: tuple[Cuts, ...] | None = None
    slices: tuple[Box, ...] | None = None
    partition: Mapping[str, Any] | None = None
    memory_kind: str | None = None
    digest: str | None = None
    positions: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def grid(self) -> Grid | None:
        """The slices as a grid, or None if they are loose boxes."""
        if self.slices is not None:
            return None
        if self.cuts is not None:
            return Grid(self.shape, self.cuts)
        parts = self.parts or (1,) * len(self.shape)
        chunk = [n // max(1, p) for n, p in zip(self.shape, parts, strict=True)]
        return Grid.regular(self.shape, chunk)

    @property
    def boxes(self) -> Iterable[Box]:
        """Every slice, in row-major order if they form a grid."""
        grid = self.grid
        return self.slices or () if grid is None else map(grid.box, grid.indices())


class SliceFile(Struct, frozen=True):
    """A slices.json: tensors by name, and digests of files by their path below its folder.

    Attributes:
        files: the files from which readers take metadata.
        data_files: files of databases; None if the record is not complete.
        conversion: identifies the conversion and the source; "" for a checkpoint that was not converted.
        item_names: True if names of the checkpoint's tensors begin with their item, also for a single item.
        made: the source and rules of the conversion; None for a checkpoint that was not converted.
        metadata: the texts beside the tensors that the checkpoint's own files have no place for.
    """

    tensors: Mapping[str, SliceEntry]
    files: Mapping[str, str] = field(default_factory=dict)
    data_files: Mapping[str, str] | None = None
    conversion: str = ""
    item_names: bool = False
    made: Made | None = None
    metadata: KeptMetadata = NO_METADATA

    @property
    def every_file(self) -> dict[str, str]:
        """Digests of all files, by path."""
        return {**self.files, **(self.data_files or {})}


def split_of(grid: Grid) -> dict[str, tuple[Any, ...]]:
    """``{"parts": ...}`` if the grid's parts are equal, else ``{"cuts": ...}``.

    >>> split_of(Grid.regular((4, 6), (4, 2)))
    {'parts': (1, 3)}
    >>> split_of(Grid.regular((5,), (3,)))
    {'cuts': ((0, 3, 5),)}
    """
    return {"parts": grid.parts} if all(map(_is_even, grid.cuts)) else {"cuts": grid.cuts}


def _is_even(cuts: Cuts) -> bool:
    return len(cuts) <= 2 or len({b - a for a, b in itertools.pairwise(cuts)}) == 1


def digest_of(data: bytes) -> str:
    """CRC-64/NVME of bytes, 16 lower-case hex digits."""
    from awscrt.checksums import crc64nvme

    return f"{crc64nvme(data):016x}"


def render_slices(file: SliceFile) -> bytes:
    """The bytes of the file: sorted, one line per tensor, with its own digest at the end."""
    meshes: dict[DeviceMesh, str] = {}
    entries = [file.tensors[name] for name in sorted(file.tensors)]
    # Line by line: objects for the entries of 100,000 tensors would take ten times the memory.
    tensors = BytesIO()
    _write_lines(tensors, ((entry.name, _entry_json(entry, meshes)) for entry in entries))
    body = BytesIO()
    version = VERSION if file.made is not None and file.made.by is not None else VERSION - 1
    body.write(f'{{"format": "{FORMAT}", "version": {version},\n"meshes": {{'.encode())
    _write_lines(body, ((name, mesh_document(mesh)) for mesh, name in meshes.items()))
    body.write(b'},\n"tensors": {')
    body.write(tensors.getbuffer())
    body.write(b'},\n"files": {')
    _write_lines(body, sorted(file.files.items()))
    if file.data_files is not None:
        body.write(b'},\n"data_files": {')
        _write_lines(body, sorted(file.data_files.items()))
    body.write(b"},\n")
    if file.item_names:
        body.write(b'"item_names": true,\n')
    if file.conversion:
        body.write(f'"conversion": {json.dumps(file.conversion)},\n'.encode())
    if file.made is not None:
        _write_made(body, file.made)
    if file.metadata.parts:
        body.write(f'"metadata": {json.dumps(file.metadata.parts)},\n'.encode())
    body.write(b'"crc64nvme": "')
    body.write(digest_of(body.getvalue()).encode() + _TAIL)
    return body.getvalue()


def _write_made(body: BytesIO, made: Made) -> None:
    changes = made.changes
    members = {
        "source": made.source,
        "tensors": made.tensors,
        **{kind: list(getattr(changes, kind)) for kind in changes.__struct_fields__},
        **({} if made.by is None else {"by": made.by}),
        **({"computed": made.computed} if made.computed else {}),
    }
    body.write(f'"made": {json.dumps(members).removesuffix("}")},\n"origins": {{'.encode())
    _write_lines(body, ((n, _origin_json(made.origins[n])) for n in sorted(made.origins)))
    if made.leaves is not None:
        body.write(b'},\n"leaves": {')
        _write_lines(body, sorted(made.leaves.items()))
    body.write(b"}},\n")


def _origin_json(origin: Origin) -> dict[str, str | bool]:
    dtype = {"dtype": origin.dtype} if origin.dtype else {}
    return {"name": origin.name} | dtype | ({"saturate": True} if origin.saturate else {})


def _write_lines(text: BytesIO, members: Iterable[tuple[str, Any]]) -> None:
    between = "\n"
    for name, value in members:
        text.write(f"{between}{json.dumps(name)}: {json.dumps(value)}".encode())
        between = ",\n"
    if between != "\n":
        text.write(b"\n")


def _entry_json(entry: SliceEntry, meshes: dict[DeviceMesh, str]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "path": list(entry.path),
        "dtype": entry.dtype,
        "shape": list(entry.shape),
    }
    if entry.layout is not None and entry.layout.device_mesh is not None:
        document["mesh"] = meshes.setdefault(entry.layout.device_mesh.recorded, f"m{len(meshes)}")
        document["axes"] = [list(a) if isinstance(a, tuple) else a for a in entry.layout.axes]
    optional = {
        "positions": list(entry.positions) or None,
        "parts": entry.parts,
        "cuts": entry.cuts,
        "slices": entry.slices and [list(zip(b.start, b.stop, strict=True)) for b in entry.slices],
        "partition": entry.partition and dict(sorted(entry.partition.items())),
        "memory_kind": entry.memory_kind,
        "crc64nvme": entry.digest,
    }
    return document | {key: value for key, value in optional.items() if value is not None}


def target_entry(
    path: tuple[str, ...],
    target: TargetTensor,
    digest: str | None,
    *,
    memory_kind: str | None = None,
    positions: tuple[int, ...] = (),
) -> SliceEntry:
    """The entry of ``target``; ``path``: its keys; ``positions``: the numbers of those that are positions of lists."""
    spec = target.spec
    is_meshed = spec.layout is not None and spec.layout.device_mesh is not None
    return SliceEntry(
        path=path,
        dtype=spec.dtype,
        shape=spec.shape,
        layout=spec.layout if is_meshed else None,
        **split_of_shards(target),
        partition=dict(target.partition) if target.partition else None,
        memory_kind=memory_kind,
        digest=digest,
        positions=positions,
    )


NOTHING = SliceFile({})
"""The record of a checkpoint that has none, or whose record is not wanted."""


def target_record(
    target: TargetCheckpoint,
    digests: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    missing: str | None = None,
) -> bytes:
    """The record of a target without items; ``missing`` stands for digests that are not known."""
    entries = (
        tensor_entry(tensor, digests.get(name, missing)) for name, tensor in target.tensors.items()
    )
    return render_slices(
        SliceFile(
            {entry.name: entry for entry in entries},
            files or {},
            conversion=target.conversion,
            made=target.made,
            metadata=target.metadata,
        )
    )


def tensor_entry(tensor: TargetTensor, digest: str | None) -> SliceEntry:
    """The entry of a tensor of a checkpoint that has no items, with the path of its leaf."""
    path = leaf_path(tensor.leaf)
    positions = tuple(number for number, step in enumerate(path) if step.is_sequence)
    return target_entry(tuple(step.key for step in path), tensor, digest, positions=positions)


def leaf_path(leaf: Leaf) -> tuple[PathKey, ...]:
    """The keys of a leaf; joined with slashes they are its name. In a checkpoint without items, the name of its item is one of them."""
    joined = "/".join(step.key for step in leaf.path)
    if joined == leaf.name:
        return leaf.path
    item, _, inner = leaf.name.partition("/")
    return (PathKey(item), *leaf.path) if joined == inner else (PathKey(leaf.name),)


def recorded_path(entry: SliceEntry) -> tuple[PathKey, ...]:
    """The keys of a leaf as they were recorded, positions of lists among them."""
    positions = frozenset(entry.positions)
    return tuple(PathKey(key, number in positions) for number, key in enumerate(entry.path))


def split_of_shards(target: TargetTensor) -> dict[str, Any]:
    """The slices of the shards as they are recorded.

    Raises LayoutError where the tensor has fewer rows than its partition has shards.
    """
    shards = target.shards
    return {"slices": shards} if isinstance(shards, tuple) else split_of(shards)


def recorded(read: Callable[[], SliceFile | None], record: RecordUse) -> SliceFile:
    """The record that ``read`` finds; empty if it is absent, ignored, or damaged and not to be checked."""
    if record == "ignored":
        return NOTHING
    try:
        return read() or NOTHING
    except FormatError:
        if record == "checked":
            raise
        return NOTHING


def fitting_entry(
    known: SliceFile, name: str, dtype: str, shape: tuple[int, ...]
) -> SliceEntry | None:
    """The entry of a tensor, if it describes the one that is stored."""
    entry = known.tensors.get(name)
    fits = entry is not None and (entry.dtype, tuple(entry.shape)) == (dtype, shape)
    return entry if fits else None


def check_record_fits(
    record: SliceFile,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
    path: str,
    unlisted: Collection[str] = (),
) -> None:
    """Raises CorruptError where the record does not describe the tensors of the checkpoint at ``path``.

    Args:
        stored: dtype and shape of each tensor.
        unlisted: names of tensors that may be stored without being recorded.
    """
    remedy = "; restore it from a copy, or remove the record if the files were changed on purpose"
    for name, entry in record.tensors.items():
        if name not in stored:
            raise CorruptError(f"{path}: {name!r} is recorded, but no file holds it{remedy}")
        dtype, shape = stored[name]
        if (entry.dtype, tuple(entry.shape)) != (dtype, shape):
            raise CorruptError(
                f"{path}: {name!r} is recorded as {entry.dtype} of shape {list(entry.shape)}, but stored is {dtype} of "
                f"shape {list(shape)}{remedy}"
            )
        _check_layout(entry, path)
    unknown = next((n for n in stored if n not in record.tensors and n not in unlisted), None)
    if unknown is not None:
        raise CorruptError(f"{path}: {unknown!r} is stored, but not recorded{remedy}")


def _check_layout(entry: SliceEntry, path: str) -> None:
    try:
        if entry.layout is not None:
            entry.layout.grid(entry.shape, entry.name)
    except LayoutError as error:
        raise CorruptError(
            f"{path}: the layout recorded for {entry.name!r} contradicts its shape: {error}"
        ) from error
