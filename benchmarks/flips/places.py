"""Where the bytes of a checkpoint belong: classes of positions, each a list of ranges of files."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.marks import SAFETENSORS_ENDING, is_weights
from reshard.formats.registry import open_reader
from reshard.geometry.grid import Index

TRAILER_BYTES = 4

_BY_NAME = {
    "slices.json": "slices.json",
    "_METADATA": "_METADATA",
    "_sharding": "_sharding",
    "_strings.json": "_strings.json",
    "_CHECKPOINT_METADATA": "_CHECKPOINT_METADATA",
    "commit_success.txt": "commit marker",
    "manifest.ocdbt": "OCDBT manifest",
}


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of one file, by its path below the checkpoint; "." for a checkpoint that is one file."""

    file: str
    start: int
    stop: int


def places(root: Path) -> dict[str, list[Range]]:
    """Every byte of every file of the checkpoint, by class of position."""
    reader = open_reader(str(root))
    if reader.format not in ("orbax", "safetensors"):
        raise TypeError(f"{root} is of the format {reader.format}, which this does not know")
    found: dict[str, list[Range]] = defaultdict(list)
    taken: dict[str, list[Range]] = defaultdict(list)
    for kind, place in _chunks(root, reader):
        found[kind].append(place)
        taken[place.file].append(place)
    trees = tuple(f"{i.directory}/" for i in reader.container.items if not i.is_tree)
    for path in sorted(p for p in (root, *root.rglob("*")) if p.is_file()):
        name = str(path.relative_to(root))
        kind = "safetensors header" if name == "." else _kind(name, trees)
        for start, stop in _gaps(path.stat().st_size, taken[name]):
            found[kind].append(Range(name, start, stop))
    return {kind: ranges for kind, ranges in sorted(found.items()) if ranges}


def _kind(name: str, opaque: tuple[str, ...]) -> str:
    last = name.rpartition("/")[2]
    if is_weights(last):
        return "safetensors header" if last.endswith(SAFETENSORS_ENDING) else "safetensors index"
    if name.startswith(opaque) and opaque:
        return "item that is no tree"
    if "array_metadatas/" in name:
        return "array_metadatas"
    if "zarr" in last:
        return "zarr metadata"
    if name.startswith("d/") or "/d/" in name:
        return "OCDBT nodes"  # and what no tree refers to any more
    return _BY_NAME.get(last, "zarr3 shard index")


def _gaps(size: int, taken: list[Range]) -> Iterator[tuple[int, int]]:
    at = 0
    for place in sorted(taken, key=lambda p: p.start):
        if at < place.start:
            yield at, place.start
        at = max(at, place.stop)
    if at < size:
        yield at, size


def _chunks(root: Path, reader: Reader) -> Iterator[tuple[str, Range]]:
    for name, tensor in reader.tensors.items():
        for _, *copies in reader.copies(name):
            for extent in copies:
                file = str(Path(extent.path).relative_to(root.absolute()))
                yield "copy of a slice", Range(file, extent.offset, extent.offset + extent.length)
        for index in tensor.spec.storage.indices():
            extent = reader.locate(name, index)
            if extent is None or extent.inline is not None:
                continue
            file = str(Path(extent.path).relative_to(root.absolute()))
            start, stop = extent.offset, extent.offset + extent.length
            if tensor.encoding.checksum:
                stop -= TRAILER_BYTES
                yield "chunk trailer", Range(file, stop, stop + TRAILER_BYTES)
            yield from _data(tensor, index, file, start, stop)


def _data(
    tensor: StoredTensor, index: Index, file: str, start: int, stop: int
) -> Iterator[tuple[str, Range]]:
    kind = tensor.encoding.compressor
    if kind != "none":
        yield f"chunk data, {kind}", Range(file, start, stop)
        return
    spec = tensor.spec
    stored, inside = spec.stored_shape(index), spec.storage.box(index).shape
    is_data = np.zeros(stored, bool)
    is_data[tuple(slice(0, n) for n in inside)] = True
    flat, size = is_data.reshape(-1), (stop - start) // max(1, math.prod(stored))
    edges = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), len(flat)]
    for a, b in itertools.pairwise(edges):
        if a < b:
            what = "chunk data, raw" if flat[a] else "chunk padding"
            yield what, Range(file, start + a * size, start + b * size)


def draw(ranges: list[Range], random: Random) -> tuple[str, int, int]:
    """A random bit: file, byte and bit; every byte of the ranges is as likely."""
    at = random.randrange(sum(r.stop - r.start for r in ranges))
    for place in ranges:
        if at < place.stop - place.start:
            return place.file, place.start + at, random.randrange(8)
        at -= place.stop - place.start
    raise AssertionError("a position beyond all ranges")
