"""Writing a whole checkpoint through a file map, its chunks encoded by other people's codecs."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Container, Encoding, Item, Leaf, PathKey
from reshard.formats.file_map import FileMap, finish_files, prepare_files
from reshard.formats.orbax.format import OrbaxForm
from reshard.formats.orbax.write_files import plan_files
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate
from tests.formats.orbax.write.markers import write_markers

ONE_TREE = Container("v0", (Item("", "", True),))
CRC = Encoding(checksum=True)
MESH = DeviceMesh((4, 2), ("data", "model"))


@dataclass(frozen=True)
class Entry:
    """A leaf to write: ``keys`` are dict keys, or ints for positions in a sequence."""

    keys: tuple[str | int, ...]
    value: Any = None
    axes: tuple[Any, ...] | None = None
    chunk: tuple[int, ...] | None = None
    mesh: DeviceMesh = MESH
    encoding: Encoding = CRC
    item: str = ""
    prefix: str = ""
    partition: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def leaf(self) -> Leaf:
        path = tuple(PathKey(str(k), isinstance(k, int)) for k in self.keys)
        name = self.prefix + "/".join(step.key for step in path)
        return Leaf(name, path, self.item, self.value is not None, self.meta)

    @property
    def target(self) -> TargetTensor:
        value = np.asarray(self.value)
        layout = None if self.axes is None else TensorLayout(self.axes, self.mesh)
        grid = Grid.whole(value.shape) if layout is None else layout.grid(value.shape)
        chunk = tuple(max(1, n) for n in (self.chunk or grid.largest))
        storage = Grid.regular(value.shape, chunk)
        spec = TensorSpec(self.leaf.name, value.shape, value.dtype.name, storage, chunk, layout)
        return TargetTensor(spec, self.encoding, self.leaf, self.partition)


def target_of(
    entries: Sequence[Entry],
    container: Container = ONE_TREE,
    copied: Mapping[str, Path] | None = None,
) -> TargetCheckpoint:
    return TargetCheckpoint(
        container,
        {e.leaf.name: e.target for e in entries if e.value is not None},
        [e.leaf for e in entries],
        copied or {},
        OrbaxForm(),
    )


def encode(chunk: np.ndarray, encoding: Encoding) -> bytes:
    from awscrt.checksums import crc32c
    from numcodecs import Blosc
    from zstandard import ZstdCompressor

    data = chunk.tobytes()
    if encoding.compressor == "zstd":
        data = ZstdCompressor(level=encoding.level or 1).compress(data)
    elif encoding.compressor == "gzip":
        data = gzip.compress(data, encoding.level or 6)
    elif encoding.compressor == "blosc":
        params = json.loads(encoding.spec)
        data = bytes(Blosc(params["cname"], 5, params["shuffle"]).encode(chunk))
    return data + crc32c(data).to_bytes(4, "little") if encoding.checksum else data


def write(
    root: Path,
    entries: Sequence[Entry],
    container: Container = ONE_TREE,
    copied: Mapping[str, Path] | None = None,
    *,
    ocdbt: bool = False,
) -> Path:
    """Write below a staging folder, over what is there already, and rename it as the engine does."""
    files = plan_files(target_of(entries, container, copied), OrbaxForm(ocdbt))
    staging = root.with_name(f".{root.name}.staging")
    if root.exists():
        root.rename(staging)
    prepare_files(files, locate(staging))
    digests = {}
    for entry in entries:
        if entry.value is not None:
            write_chunks(files, staging, entry)
            digests[entry.leaf.name] = f"{zlib.crc32(np.asarray(entry.value).tobytes()):016x}"
    write_markers(staging, finish_files(files, locate(staging), digests, ()))
    return staging.rename(root)


def write_chunks(files: FileMap, root: Path, entry: Entry) -> None:
    value, spec = np.asarray(entry.value), entry.target.spec
    for index in spec.storage.indices():
        box = spec.storage.box(index)
        chunk = np.zeros(spec.stored_shape(index), value.dtype)
        chunk[tuple(slice(0, n) for n in box.shape)] = value[box.slices]
        data = encode(chunk, entry.encoding)
        places = files.places(spec.name, index)
        if files.database is not None:
            files.database.put(spec.name, index, memoryview(data))
        for place in places:
            (root / place.file).write_bytes(data)


@pytest.fixture
def making() -> SimpleNamespace:
    """Entry, write, target_of and the usual mesh and containers."""
    return SimpleNamespace(
        Entry=Entry, write=write, target_of=target_of, mesh=MESH, one_tree=ONE_TREE, CRC=CRC
    )
