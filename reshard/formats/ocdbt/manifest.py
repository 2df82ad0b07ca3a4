"""The manifest of an OCDBT database, which locates the root of its newest tree.

It is a block (``ocdbt_block``) with the magic 0x0cdb3a2a in the file ``manifest.ocdbt``, and the body
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html, manifest format)::

    UUID (16 bytes), kind, bytes of an inline value, bytes of a node, arity (1 byte),
    compression (0 none, 1 zstd, followed by 4 bytes of its level)
    table of data files, number of versions, and of each version
    generation, height, data file, offset, length, keys, bytes of the tree, bytes of values
    and 8 bytes of time; then nodes of older versions

A database of the kind 1 keeps its versions in numbered files, which Orbax does not write. Those are left to
TensorStore; for all others it is not imported, which saves a tenth of a second.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.codecs.tensorstore import tensorstore
from reshard.formats.contents import Extent
from reshard.formats.foreign import START_BYTES, refuse_stand_in
from reshard.formats.json.safe_json import expect, read_bytes
from reshard.formats.limits import MAX_MANIFEST_BYTES
from reshard.formats.ocdbt.block import Body, IndexBlock, data_files
from reshard.storage.location import Location

MANIFEST = "manifest.ocdbt"

MAX_VERSIONS = 1 << 16
"""Versions in a manifest itself; beyond 16, TensorStore moves older ones into nodes."""

_MAGIC = 0x0CDB3A2A
_UUID_BYTES = 16
_LEVEL_BYTES = 4
_SINGLE, _NUMBERED = 0, 1


class Root(Struct, frozen=True):
    """The location of a tree's root.

    Attributes:
        base, path: of its file, below the database; paths in the node are relative to ``base``.
        keys: the number of keys in the tree.
    """

    base: str
    path: str
    offset: int
    length: int
    keys: int


def read_root(database: Location) -> Root | None:
    """The root of the newest version; None for an empty database.

    Raises CorruptError or FormatError for a manifest that cannot be decoded.
    """
    where = str(database / MANIFEST)
    data = read_bytes(database / MANIFEST, MAX_MANIFEST_BYTES)
    refuse_stand_in(data[:START_BYTES], where)
    extent = Extent(where, 0, len(data), data)
    block = IndexBlock(extent, _MAGIC, "manifest of a database", where)
    try:
        kind = _kind(block.body)
        root = _newest(block.body, where) if kind == _SINGLE else None
        block.check()
    finally:
        block.close()
    return _dumped_root(database, where) if kind == _NUMBERED else root


def _kind(body: Body) -> int:
    """Reads the fields before the table of data files; returns the kind of the manifest."""
    body.take(_UUID_BYTES)
    kind = body.number()
    body.column(2)
    body.take(1)
    if body.number():
        body.take(_LEVEL_BYTES)
    if kind not in (_SINGLE, _NUMBERED):
        body.refuse(f"its kind is {kind} (0 and 1 are known)")
    return kind


def _newest(body: Body, where: str) -> Root | None:
    files = data_files(body, "")
    count = body.number()
    if not 0 < count <= MAX_VERSIONS:
        if not count:
            raise FormatError(f"{where} names no version of its database; expected at least one")
        body.refuse(f"it has {count} versions")
    body.column(2 * count)  # generations and heights
    numbers = body.column(count)
    offsets, lengths = body.column_or_missing(count), body.column_or_missing(count)
    keys = body.column(count)
    if offsets[-1] < 0 and lengths[-1] < 0:
        return None
    if offsets[-1] < 0 or lengths[-1] < 0 or numbers[-1] >= len(files):
        body.refuse("its newest version has no place")
    file = files[int(numbers[-1])]
    return Root(file.base, file.path, int(offsets[-1]), int(lengths[-1]), int(keys[-1]))


def _dumped_root(database: Location, where: str) -> Root | None:
    """Parses TensorStore's text: ``btreenode:<base path>:<relative path>:<offset>:<length>``."""
    manifest = expect(_dumped_manifest(database, where), dict, "the manifest", where)
    versions = expect(manifest.get("versions"), list, "versions", where)
    if not versions:
        raise FormatError(f"{where} names no version of its database; expected at least one")
    root = expect(versions[-1].get("root"), dict, "the root", where)
    if "location" not in root:
        return None
    keys = expect(root.get("statistics", {}).get("num_keys", 0), int, "num_keys", where)
    _, base, relative, offset, length = expect(
        root["location"], str, "the root's location", where
    ).split(":")
    return Root(unquote(base), unquote(base + relative), int(offset), int(length), keys)


def _dumped_manifest(database: Location, where: str) -> Any:
    """The manifest as TensorStore dumps it, from copies in memory: by itself it would wait for a pipe, and read files of any size."""
    ts = tensorstore(f"read {where}")
    copies = ts.KvStore.open({"driver": "memory"}, context=ts.Context()).result()
    names = [entry.name for entry in database.entries() if entry.name.startswith("manifest")]
    nbytes = 0
    for name in names:
        data = read_bytes(database / name, MAX_MANIFEST_BYTES)
        nbytes += len(data)
        if nbytes > MAX_MANIFEST_BYTES:
            raise FormatError(
                f"{where} and the numbered ones beside it have more than the {MAX_MANIFEST_BYTES:,} bytes that are read; "
                "let Orbax write the checkpoint anew"
            )
        copies.write(name, data).result()
    try:
        return ts.ocdbt.dump(copies).result()
    except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
        raise CorruptError(
            f"{where} cannot be decoded: {str(error).splitlines()[0]}; restore the folder from a copy"
        ) from error
