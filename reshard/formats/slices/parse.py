"""Parses slices.json, which may be hostile: every field is checked before it is used."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from reshard.errors import CorruptError, FormatError, LayoutError
from reshard.formats.base import Made, Origin
from reshard.formats.foreign import refuse_stand_in
from reshard.formats.limits import MAX_SLICE_VALUES
from reshard.formats.safe_json import (
    checked_text,
    json_value,
    read_bytes,
    refuse_many_values,
)
from reshard.formats.slices.kept_metadata import NO_METADATA, KeptMetadata, within_limits
from reshard.formats.slices.slice_file import (
    FILE_NAME,
    FORMAT,
    VERSION,
    SliceEntry,
    SliceFile,
    digest_of,
)
from reshard.geometry.dtypes import is_known
from reshard.geometry.grid import Box, Cuts, Grid
from reshard.layout.axes import Axis
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import MAX_AXES, DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.storage.location import Location
from reshard.strict import WrongPartError, says, strict

MAX_FILE_BYTES = 1 << 30
"""A larger file is refused unread: a million tensors take a quarter of it."""

T = TypeVar("T")

_TAIL = re.compile(rb'"([0-9a-f]{16})"\}\n?\Z')
_MAX_RANK = 64
_MAX_ELEMENTS = 1 << 62
"""The largest number that a file may have."""

_RULES = Changes.__struct_fields__
_MAX_PARTS = 1 << 20
"""Most devices of a mesh, or parts of a tensor; a file with more is refused."""

# Descriptions are the texts of errors: "expected the FIELD of RECORD to be …", or all of the text where it names a part itself.
_OBJECT = "expected {key!r} to be an object, found {kind}"
_DIGEST = "{where} has {shown} where 16 hex digits were expected"
_SOURCE = "{where} has the source {shown} where 32 hex digits were expected"
_TENSORS = "expected the number of tensors {where} to be whole numbers from 0, found [{found:.80}]"
_WRONG_KIND = "{where} has a {key} of the wrong kind: {found:.60}"
_HEX = r"^[0-9a-f]{16}\Z"

_Object = Annotated[dict[str, Any], says(_OBJECT)]
_Number = Annotated[int, Meta(ge=0, le=_MAX_ELEMENTS)]
_Numbers = Annotated[tuple[_Number, ...], says("whole numbers from 0")]
_Size = Annotated[int, Meta(ge=1, le=_MAX_ELEMENTS)]
_Sizes = Annotated[tuple[_Size, ...], says("whole numbers from 1")]
_Names = Annotated[tuple[str, ...], says("a list of strings")]
_Pairs = Annotated[tuple[tuple[str, str], ...], says("a list of pairs")]
_FileDigest = Annotated[str, says(_DIGEST.replace("{where}", "file {key!r}"), pattern=_HEX)]
_Digests = Annotated[dict[str, _FileDigest], says(_OBJECT)]
_Text = Annotated[str, says("{where} has a member that is no text")]
_Texts = Annotated[dict[str, _Text], says(_OBJECT)]
_Name = Annotated[str, says("{where} has other leaves whose name in the source is no text")]
_NO_BOX = "a slice of {where} is not a list of [start, stop] pairs"
_Box = Annotated[tuple[tuple[_Number, _Number], ...], says(_NO_BOX)]
_Boxes = Annotated[tuple[_Box, ...], says("slices of {where} are not a list")]
_Cuts = Annotated[tuple[_Numbers, ...], says("cuts of {where} are not a list")]


class _Metadata(Struct):
    header: _Texts = {}
    index: _Texts = {}
    custom: _Texts = {}


class _Made(Struct):
    tensors: Annotated[int, says(_TENSORS, ge=0, le=_MAX_ELEMENTS)]
    source: Annotated[str, says(_SOURCE, pattern=r"^[0-9a-f]{32}\Z")]
    select: _Names
    drop: _Names
    rename: _Pairs
    cast: _Pairs
    origins: _Object
    leaves: Annotated[dict[str, _Name], says(_OBJECT)] | UnsetType = UNSET
    by: Annotated[dict[str, Any] | None, says("{where} has a map that is not an object")] = None
    computed: Annotated[dict[str, Any], says("{where} has options that are no object")] = {}


class _Origin(Struct):
    name: Annotated[str, says("{where} names no tensor")]
    dtype: Any = None
    saturate: Annotated[bool, says("the saturate of {where} is neither true nor false")] = False


class _Mesh(Struct):
    axes: _Names
    shape: _Sizes
    axis_types: _Names | None = None
    device_ids: _Numbers | None = None


class _Entry(Struct):
    path: _Names
    shape: _Numbers
    dtype: Any = None
    mesh: Any = UNSET
    axes: Any = None
    parts: _Numbers | UnsetType = UNSET
    cuts: _Cuts | UnsetType = UNSET
    slices: _Boxes | UnsetType = UNSET
    partition: Annotated[dict[str, Any] | None, says(_WRONG_KIND)] | UnsetType = UNSET
    memory_kind: Annotated[str | None, says(_WRONG_KIND)] = None
    crc64nvme: Annotated[str, says(_DIGEST, pattern=_HEX)] = ""
    positions: _Numbers = ()


class _Document(Struct):
    meshes: _Object
    tensors: _Object
    files: _Digests
    data_files: _Digests | UnsetType = UNSET
    conversion: Annotated[str | None, says(_WRONG_KIND)] = None
    item_names: Annotated[bool | None, says(_WRONG_KIND)] = None
    made: Any = UNSET
    metadata: Any = UNSET


def read_slices(folder: Location) -> SliceFile | None:
    """The slices.json in a folder, or None if there is none.

    Raises CorruptError if its bytes contradict its digest or make no sense, FormatError if a newer version wrote it,
    StorageError if it cannot be read.
    """
    return read_slice_file(folder / FILE_NAME)


def read_slice_file(file: Location) -> SliceFile | None:
    """The same of a file with the content of a slices.json, whatever its name."""
    found = file.status("slice metadata")
    if found is None:
        return None
    if found.nbytes > MAX_FILE_BYTES:
        raise FormatError(
            f"{file} is {found.nbytes:,} bytes, more than the {MAX_FILE_BYTES:,} that are "
            f"read; remove it to work without slice metadata"
        )
    return parse_slices(read_bytes(file, MAX_FILE_BYTES), str(file))


def parse_slices(data: bytes, path: str) -> SliceFile:
    """The parsed file; CorruptError names ``path`` and the wrong field."""
    return _Parser(path).file(data)


class _Parser:
    """Reads one slices.json; ``path`` is the name that errors give it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, what: str) -> NoReturn:
        raise CorruptError(
            f"slice metadata {self.path} is damaged: {what}; restore the file, or remove it to work "
            f"without slice metadata and digests"
        )

    def read(self, value: object, kind: type[T], where: str) -> T:
        """A record of the file; ``where`` is its name in errors."""
        try:
            return strict(value, kind)
        except WrongPartError as wrong:
            if not wrong.steps:
                self.fail(f"{where} is not an object")
            key, part = next(k for k in reversed(wrong.steps) if isinstance(k, str)), wrong.part
            text, field = wrong.expected, f"{key} rules" if key in _RULES else key.replace("_", " ")
            if "{" not in text:
                text = f"expected the {field} of {{where}} to be {text}, found {{found:.80}}"
            shown, name = repr(str(part)[:40]), type(part).__name__
            self.fail(text.format(where=where, key=key, found=str(part), shown=shown, kind=name))

    def json(self, data: bytes) -> dict[str, Any]:
        text = self.text(data)
        try:
            document = json.loads(text, object_pairs_hook=self.unique, parse_constant=self.constant)
        except ValueError as error:
            refuse_stand_in(data, self.path)
            self.fail(f"it is not JSON ({str(error)[:120]})")
        if not isinstance(document, dict):
            self.fail(f"expected a JSON object, found {type(document).__name__}")
        return document

    def text(self, data: bytes) -> str:
        try:
            refuse_many_values(data, FILE_NAME, MAX_SLICE_VALUES)
            return checked_text(data, FILE_NAME)
        except FormatError as error:
            self.fail(f"it is not JSON ({error})")

    def unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            self.fail("an object has the same member twice")
        return members

    def constant(self, text: str) -> NoReturn:
        self.fail(f"it is not JSON (found {text})")

    def file(self, data: bytes) -> SliceFile:
        document = self.json(data)
        if document.get("format") != FORMAT:
            self.fail(f"expected format {FORMAT!r}, found {str(document.get('format'))[:60]!r}")
        self.version(document.get("version"), data)
        self.own_digest(data)
        found = self.read(document, _Document, "the file")
        meshes = {name: self.mesh(f"mesh {name!r}", mesh) for name, mesh in found.meshes.items()}
        tensors = {
            name: self.entry(name, f"tensor {name!r}", value, meshes)
            for name, value in found.tensors.items()
        }
        data_files = None if found.data_files is UNSET else found.data_files
        for name in (*found.files, *(data_files or ())):
            # against a path that leaves the folder
            if "\0" in name or any(step in ("", ".", "..") for step in name.split("/")):
                self.fail(f"the file {name[:80]!r} would be outside of its folder")
        return SliceFile(
            tensors,
            found.files,
            data_files,
            found.conversion or "",
            found.item_names or False,
            None if found.made is UNSET else self.made(found.made),
            NO_METADATA if found.metadata is UNSET else self.metadata(found.metadata),
        )

    def metadata(self, value: object) -> KeptMetadata:
        texts = self.read(value, _Metadata, "metadata")
        kept = within_limits(KeptMetadata(texts.header, texts.index, texts.custom))
        try:  # a target would parse them again
            for key, text in (*kept.index.items(), *kept.custom.items()):
                json_value(text.encode(), repr(key[:80]))
        except FormatError as error:
            self.fail(f"metadata has a text that is not JSON ({error})")
        return kept

    def made(self, value: object) -> Made:
        found = self.read(value, _Made, "made")
        changes = Changes(found.select, found.drop, found.rename, found.cast)
        origins = {
            name: self.origin(f"the origin of {name!r}", o) for name, o in found.origins.items()
        }
        leaves = None if found.leaves is UNSET else found.leaves  # an older record has none
        return Made(found.source, found.tensors, changes, origins, leaves, found.by, found.computed)

    def origin(self, where: str, value: object) -> Origin:
        found = self.read(value, _Origin, where)
        if found.dtype is not None and not is_known(found.dtype):
            self.fail(f"{where} has the unknown dtype {str(found.dtype)[:40]!r}")
        return Origin(found.name, found.dtype, found.saturate)

    def version(self, version: object, data: bytes) -> None:
        if type(version) is int and version > VERSION:
            if _TAIL.search(data):
                self.own_digest(data)  # a flipped bit in the number is not a newer version
            raise FormatError(
                f"slice metadata {self.path} has version {version}, but this program reads versions "
                f"up to {VERSION}; use a newer reshard, or remove the file to work without it"
            )
        if type(version) is not int or version < 1:
            self.fail(f"expected a version from 1 to {VERSION}, found {str(version)[:60]!r}")

    def own_digest(self, data: bytes) -> None:
        tail = _TAIL.search(data)
        if tail is None:
            self.fail("its own digest (the last member) is missing")
        found = digest_of(data[: tail.start(1)])
        if found != tail[1].decode():
            self.fail(f"its digest is {found}, but it records {tail[1].decode()} of itself")

    def mesh(self, where: str, value: object) -> DeviceMesh:
        mesh = self.read(value, _Mesh, where)
        axes, shape, types = mesh.axes, mesh.shape, mesh.axis_types
        if len(axes) != len(shape) or not (
            0 < len(axes) <= MAX_AXES and len(set(axes)) == len(axes) and ("" not in axes)
        ):
            self.fail(f"{where} has axes {list(axes)[:8]} and shape {list(shape)[:8]}")
        if math.prod(shape) > _MAX_PARTS:
            self.fail(f"{where} has {math.prod(shape)} devices")
        if types is not None and len(types) != len(axes):
            self.fail(f"{where} has {len(axes)} axes but {len(types)} axis types")
        try:
            return DeviceMesh(shape, axes, axis_types=types, device_ids=mesh.device_ids)
        except LayoutError as error:
            self.fail(f"{where}: {error}")

    def entry(
        self, name: str, where: str, value: object, meshes: Mapping[str, DeviceMesh]
    ) -> SliceEntry:
        entry = self.read(value, _Entry, where)
        path, shape, positions = entry.path, entry.shape, entry.positions
        if "/".join(path) != name:
            self.fail(f"{where} has the path {list(path)[:8]}, which does not join to its name")
        if not is_known(entry.dtype):
            self.fail(f"{where} has the unknown dtype {str(entry.dtype)[:40]!r}")
        if len(shape) > _MAX_RANK or math.prod(shape) > _MAX_ELEMENTS:
            self.fail(f"{where} has an absurd shape {list(shape)[:8]}")
        if len(set(positions)) < len(positions) or any(n >= len(path) for n in positions):
            self.fail(f"{where} has {len(path)} keys, but the positions {list(positions)[:8]}")
        layout = self.layout(entry, where, meshes)
        return SliceEntry(
            path=path,
            dtype=entry.dtype,
            shape=shape,
            layout=layout,
            **self.split(entry, where, layout),
            partition=None if entry.partition is UNSET else entry.partition,
            memory_kind=entry.memory_kind,
            digest=entry.crc64nvme or None,
            positions=positions,
        )

    def layout(
        self, entry: _Entry, where: str, meshes: Mapping[str, DeviceMesh]
    ) -> TensorLayout | None:
        key, axes = entry.mesh, entry.axes
        if key is UNSET and axes is None:
            return None
        mesh = meshes.get(key) if isinstance(key, str) else None
        if mesh is None:
            self.fail(
                f"{where} is on the mesh {str(key or None)[:40]!r}, which the file does not have"
            )
        if not isinstance(axes, list) or len(axes) > len(entry.shape):
            self.fail(f"{where} has {len(entry.shape)} dimensions, but axes {str(axes)[:80]}")
        named = tuple(self.axis(axis, where, mesh) for axis in axes)
        used = [n for a in named if a is not None for n in ((a,) if isinstance(a, str) else a)]
        if len(set(used)) != len(used):
            self.fail(f"{where} uses a mesh axis twice: {axes}")
        try:
            return TensorLayout(named, mesh)
        except LayoutError as error:
            self.fail(f"{where}: {error}")

    def axis(self, axis: object, where: str, mesh: DeviceMesh) -> Axis:
        names = axis if isinstance(axis, list) else [] if axis is None else [axis]
        if not all(isinstance(n, str) and n in mesh.axis_names for n in names):
            self.fail(
                f"{where} names the axis {str(axis)[:60]}, but its mesh has {mesh.axis_names}"
            )
        return tuple(axis) if isinstance(axis, list) else axis if isinstance(axis, str) else None

    def split(self, entry: _Entry, where: str, layout: TensorLayout | None) -> dict[str, Any]:
        """The one of parts, cuts and slices that an entry has, as it is."""
        every = {"parts": entry.parts, "cuts": entry.cuts, "slices": entry.slices}
        kinds = [kind for kind, split in every.items() if split is not UNSET]
        if len(kinds) != 1:
            self.fail(f"{where} needs one of parts, cuts and slices, but has {kinds}")
        if entry.parts is not UNSET:
            self.check_parts(entry.parts, where, entry.shape)
            if entry.partition is UNSET and layout is not None:
                self.agrees(entry.parts, where, entry.shape, layout)
            return {"parts": entry.parts}
        if entry.cuts is not UNSET:
            return {"cuts": self.cuts(entry.cuts, where, entry.shape)}
        boxes = () if entry.slices is UNSET else entry.slices
        return {"slices": tuple(self.box(box, where, entry.shape) for box in boxes)}

    def agrees(
        self, found: tuple[int, ...], where: str, shape: tuple[int, ...], layout: TensorLayout
    ) -> None:
        """Refuses parts that the axes do not give; cuts and loose boxes can express more than mesh axes."""
        axes = (*layout.axes, *(None for _ in shape[len(layout.axes) :]))
        parts = tuple(0 if n == 0 else _ways(a, layout) for n, a in zip(shape, axes, strict=True))
        if parts != found:
            self.fail(f"{where} has parts {list(found)}, but its axes give {list(parts)}")

    def check_parts(self, parts: tuple[int, ...], where: str, shape: tuple[int, ...]) -> None:
        fits = len(parts) == len(shape) and all(
            p == 0 if n == 0 else p > 0 and n % p == 0 for n, p in zip(shape, parts, strict=True)
        )
        if not fits or math.prod(parts) > _MAX_PARTS:
            self.fail(f"{where} of shape {list(shape)} cannot have equal parts {list(parts)[:8]}")

    def cuts(
        self, cuts: tuple[tuple[int, ...], ...], where: str, shape: tuple[int, ...]
    ) -> tuple[Cuts, ...]:
        try:
            return Grid(shape, cuts).cuts
        except (LayoutError, ValueError) as error:
            self.fail(f"{where}: {error}")

    def box(self, pairs: tuple[tuple[int, int], ...], where: str, shape: tuple[int, ...]) -> Box:
        if len(pairs) != len(shape):
            self.fail(f"a slice of {where} is not a list of {len(shape)} [start, stop] pairs")
        for size, pair in zip(shape, pairs, strict=True):
            if not pair[0] <= pair[1] <= size:
                self.fail(f"a slice of {where} is {pair}, outside its dimension of {size}")
        return Box(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))


def _ways(axis: Axis, layout: TensorLayout) -> int:
    names = () if axis is None else (axis,) if isinstance(axis, str) else axis
    mesh = layout.device_mesh
    return 1 if mesh is None else math.prod(mesh.axis_size(n) for n in names)
