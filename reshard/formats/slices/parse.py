"""Parses slices.json, which may be hostile: every field is checked before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.errors import FormatError, LayoutError
from reshard.formats.base import Made, Origin
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.kept_metadata import NO_METADATA, KeptMetadata, within_limits
from reshard.formats.slices.checked_json import MAX_ELEMENTS, CheckedJson
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

MAX_FILE_BYTES = 1 << 30
"""A larger file is refused unread: a million tensors take a quarter of it."""

_TAIL = re.compile(rb'"([0-9a-f]{16})"\}\n?\Z')
_TREE_DIGEST = re.compile(r"[0-9a-f]{32}")
_MAX_RANK = 64
_KEPT = ("header", "index", "custom")
_MAX_PARTS = 1 << 20
"""Most devices of a mesh, or parts of a tensor; a file with more is refused."""


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


def _are_axes(names: Sequence[str]) -> bool:
    """True if a mesh may have axes of these names."""
    return 0 < len(names) <= MAX_AXES and len(set(names)) == len(names) and "" not in names


def _repeats_one(axes: Sequence[Axis]) -> bool:
    """True if a mesh axis splits a tensor twice."""
    used = [n for a in axes if a is not None for n in ((a,) if isinstance(a, str) else a)]
    return len(set(used)) != len(used)


class _Parser(CheckedJson):
    """Reads one slices.json."""

    def file(self, data: bytes) -> SliceFile:
        document = self.json(data)
        if document.get("format") != FORMAT:
            self.fail(f"expected format {FORMAT!r}, found {str(document.get('format'))[:60]!r}")
        self.version(document.get("version"), data)
        self.own_digest(data)
        meshes = {k: self.mesh(k, v) for k, v in self.mapping(document, "meshes").items()}
        tensors = {
            name: self.entry(name, value, meshes)
            for name, value in self.mapping(document, "tensors").items()
        }
        data_files = self.files(document, "data_files") if "data_files" in document else None
        conversion = self.optional(document, "conversion", str, "the file") or ""
        item_names = self.optional(document, "item_names", bool, "the file") or False
        files = self.files(document, "files")
        made = self.made(document["made"]) if "made" in document else None
        metadata = self.metadata(document["metadata"]) if "metadata" in document else NO_METADATA
        return SliceFile(tensors, files, data_files, conversion, item_names, made, metadata)

    def metadata(self, value: object) -> KeptMetadata:
        if not isinstance(value, dict):
            self.fail("metadata is not an object")
        header, index, custom = (self.mapping(value, p) if p in value else {} for p in _KEPT)
        if not all(isinstance(t, str) for part in (header, index, custom) for t in part.values()):
            self.fail("metadata has a member that is no text")
        kept = within_limits(KeptMetadata(header, index, custom))
        try:  # a target would parse them again
            for key, text in (*kept.index.items(), *kept.custom.items()):
                json_value(text.encode(), repr(key[:80]))
        except FormatError as error:
            self.fail(f"metadata has a text that is not JSON ({error})")
        return kept

    def made(self, value: object) -> Made:
        if not isinstance(value, dict):
            self.fail("made is not an object")
        (tensors,) = self.numbers([value.get("tensors")], "number of tensors made")
        source = value.get("source")
        if not isinstance(source, str) or not _TREE_DIGEST.fullmatch(source):
            self.fail(f"made has the source {str(source)[:40]!r} where 32 hex digits were expected")
        changes = Changes(
            self.texts(value.get("select"), "select rules of made"),
            self.texts(value.get("drop"), "drop rules of made"),
            self.pairs(value.get("rename"), "rename rules of made"),
            self.pairs(value.get("cast"), "cast rules of made"),
        )
        origins = {n: self.origin(n, o) for n, o in self.mapping(value, "origins").items()}
        leaves = self.leaves(value)
        by = value.get("by")
        if by is not None and not isinstance(by, dict):
            self.fail("made has a map that is not an object")
        return Made(source, tensors, changes, origins, leaves, by)

    def leaves(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """The name in the source of each leaf that is no tensor; None in an older record."""
        if "leaves" not in value:
            return None
        leaves = self.mapping(value, "leaves")
        if not all(isinstance(name, str) for name in leaves.values()):
            self.fail("made has other leaves whose name in the source is no text")
        return leaves

    def origin(self, name: str, value: object) -> Origin:
        where = f"the origin of {name!r}"
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            self.fail(f"{where} names no tensor")
        dtype = value.get("dtype")
        if dtype is not None and not is_known(dtype):
            self.fail(f"{where} has the unknown dtype {str(dtype)[:40]!r}")
        saturate = value.get("saturate", False)
        if not isinstance(saturate, bool):
            self.fail(f"the saturate of {where} is neither true nor false")
        return Origin(value["name"], dtype, saturate)

    def files(self, document: Mapping[str, Any], key: str) -> dict[str, str]:
        files = self.mapping(document, key)
        for name, digest in files.items():
            self.digest(digest, f"file {name!r}")
            if "\0" in name or any(step in ("", ".", "..") for step in name.split("/")):
                self.fail(f"the file {name[:80]!r} would be outside of its folder")
        return files

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

    def mesh(self, name: str, value: object) -> DeviceMesh:
        where = f"mesh {name!r}"
        if not isinstance(value, dict):
            self.fail(f"{where} is not an object")
        axes = self.texts(value.get("axes"), f"axes of {where}")
        shape = self.numbers(value.get("shape"), f"shape of {where}", least=1)
        if len(axes) != len(shape) or not _are_axes(axes):
            self.fail(f"{where} has axes {list(axes)[:8]} and shape {list(shape)[:8]}")
        if math.prod(shape) > _MAX_PARTS:
            self.fail(f"{where} has {math.prod(shape)} devices")
        types = value.get("axis_types")
        types = None if types is None else self.texts(types, f"axis types of {where}")
        if types is not None and len(types) != len(axes):
            self.fail(f"{where} has {len(axes)} axes but {len(types)} axis types")
        ids = value.get("device_ids")
        ids = None if ids is None else self.numbers(ids, f"device ids of {where}")
        try:
            return DeviceMesh(shape, axes, axis_types=types, device_ids=ids)
        except LayoutError as error:
            self.fail(f"{where}: {error}")

    def entry(self, name: str, value: object, meshes: Mapping[str, DeviceMesh]) -> SliceEntry:
        where = f"tensor {name!r}"
        if not isinstance(value, dict):
            self.fail(f"{where} is not an object")
        path = self.texts(value.get("path"), f"path of {where}")
        if "/".join(path) != name:
            self.fail(f"{where} has the path {list(path)[:8]}, which does not join to its name")
        dtype = value.get("dtype")
        if not is_known(dtype):
            self.fail(f"{where} has the unknown dtype {str(dtype)[:40]!r}")
        shape = self.numbers(value.get("shape"), f"shape of {where}")
        if len(shape) > _MAX_RANK or math.prod(shape) > MAX_ELEMENTS:
            self.fail(f"{where} has an absurd shape {list(shape)[:8]}")
        layout = self.layout(value, where, shape, meshes)
        return SliceEntry(
            path=path,
            dtype=str(dtype),
            shape=shape,
            layout=layout,
            **self.split(value, where, shape, layout),
            partition=self.optional(value, "partition", dict, where),
            memory_kind=self.optional(value, "memory_kind", str, where),
            digest=self.digest(value["crc64nvme"], where) if "crc64nvme" in value else None,
            positions=self.positions(value, where, len(path)),
        )

    def positions(self, value: Mapping[str, Any], where: str, keys: int) -> tuple[int, ...]:
        if "positions" not in value:
            return ()
        found = self.numbers(value["positions"], f"positions of {where}")
        if len(set(found)) < len(found) or any(number >= keys for number in found):
            self.fail(f"{where} has {keys} keys, but the positions {list(found)[:8]}")
        return found

    def layout(
        self,
        value: Mapping[str, Any],
        where: str,
        shape: tuple[int, ...],
        meshes: Mapping[str, DeviceMesh],
    ) -> TensorLayout | None:
        if "mesh" not in value and "axes" not in value:
            return None
        key = value.get("mesh")
        mesh = meshes.get(key) if isinstance(key, str) else None
        if mesh is None:
            self.fail(f"{where} is on the mesh {str(key)[:40]!r}, which the file does not have")
        axes = value.get("axes")
        if not isinstance(axes, list) or len(axes) > len(shape):
            self.fail(f"{where} has {len(shape)} dimensions, but axes {str(axes)[:80]}")
        named = tuple(self.axis(axis, where, mesh) for axis in axes)
        if _repeats_one(named):
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

    def split(
        self,
        value: Mapping[str, Any],
        where: str,
        shape: tuple[int, ...],
        layout: TensorLayout | None,
    ) -> dict[str, Any]:
        kinds = [kind for kind in ("parts", "cuts", "slices") if kind in value]
        if len(kinds) != 1:
            self.fail(f"{where} needs one of parts, cuts and slices, but has {kinds}")
        found: dict[str, Any] = {kinds[0]: getattr(self, kinds[0])(value[kinds[0]], where, shape)}
        if "partition" not in value:
            self.agrees(found, where, shape, layout)
        return found

    def agrees(
        self, found: Mapping[str, Any], where: str, shape: tuple[int, ...], layout: object
    ) -> None:
        if not isinstance(layout, TensorLayout) or "parts" not in found:
            return  # Cuts and loose boxes can express more than mesh axes.
        axes = (*layout.axes, *(None for _ in shape[len(layout.axes) :]))
        parts = tuple(0 if n == 0 else _ways(a, layout) for n, a in zip(shape, axes, strict=True))
        if parts != found["parts"]:
            self.fail(f"{where} has parts {list(found['parts'])}, but its axes give {list(parts)}")

    def parts(self, value: object, where: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        parts = self.numbers(value, f"parts of {where}")
        fits = len(parts) == len(shape) and all(
            p == 0 if n == 0 else p > 0 and n % p == 0 for n, p in zip(shape, parts, strict=True)
        )
        if not fits or math.prod(parts) > _MAX_PARTS:
            self.fail(f"{where} of shape {list(shape)} cannot have equal parts {list(parts)[:8]}")
        return parts

    def cuts(self, value: object, where: str, shape: tuple[int, ...]) -> tuple[Cuts, ...]:
        if not isinstance(value, list):
            self.fail(f"cuts of {where} are not a list")
        cuts = tuple(self.numbers(c, f"cuts of {where}") for c in value)
        try:
            return Grid(shape, cuts).cuts
        except (LayoutError, ValueError) as error:
            self.fail(f"{where}: {error}")

    def slices(self, value: object, where: str, shape: tuple[int, ...]) -> tuple[Box, ...]:
        if not isinstance(value, list):
            self.fail(f"slices of {where} are not a list")
        return tuple(self.box(box, where, shape) for box in value)

    def box(self, value: object, where: str, shape: tuple[int, ...]) -> Box:
        if not isinstance(value, list) or len(value) != len(shape):
            self.fail(f"a slice of {where} is not a list of {len(shape)} [start, stop] pairs")
        pairs = [self.numbers(pair, f"a slice of {where}") for pair in value]
        for size, pair in zip(shape, pairs, strict=True):
            if len(pair) != 2 or not pair[0] <= pair[1] <= size:
                self.fail(f"a slice of {where} is {pair}, outside its dimension of {size}")
        return Box(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))


def _ways(axis: Axis, layout: TensorLayout) -> int:
    names = () if axis is None else (axis,) if isinstance(axis, str) else axis
    mesh = layout.device_mesh
    return 1 if mesh is None else math.prod(mesh.axis_size(n) for n in names)
