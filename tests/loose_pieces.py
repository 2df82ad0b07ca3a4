"""A checkpoint of loose pieces in raw files, each with an order of axes of its own, and its format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from reshard.formats.base import Chunks, Reader
from reshard.formats.contents import Container, Extent, Item, Leaf, PathKey, RawPiece, StoredTensor
from reshard.formats.format import Format, Mark, PlaceNames
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.orbax.format import ORBAX
from reshard.formats.safe_json import read_json
from reshard.geometry.grid import Box, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

MARK = "pieces.json"


def write_pieces(
    folder: Path,
    name: str,
    values: np.ndarray,
    pieces: Sequence[tuple[Box, tuple[int, ...]]],
    files: int = 2,
) -> None:
    """Writes boxes of ``values``, with the order of their axes, one after the other into ``files`` files."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}-{number}.bin" for number in range(files)]
    listed = []
    for path in paths:
        path.write_bytes(b"\xff" * 5)
    for number, (box, order) in enumerate(pieces):
        path = paths[number % files]
        with path.open("ab") as file:
            listed.append([box.start, box.stop, path.name, file.tell(), order])
            file.write(np.transpose(values[box.slices], order).tobytes())
    mark = folder / MARK
    known = json.loads(mark.read_text()) if mark.exists() else {}
    known[name] = {"dtype": values.dtype.name, "shape": values.shape, "pieces": listed}
    mark.write_text(json.dumps(known))


def hollow_pieces(
    folder: Path, name: str, shape: tuple[int, ...], pieces: Sequence[tuple[Box, tuple[int, ...]]]
) -> None:
    """The same of float32 zeros that take no space, a file for each piece."""
    folder.mkdir()
    listed = []
    for number, (box, order) in enumerate(pieces):
        path = folder / f"{name}-{number}.bin"
        with path.open("wb") as file:
            file.truncate(4 * box.size)
        listed.append([box.start, box.stop, path.name, 0, order])
    known = {name: {"dtype": "float32", "shape": shape, "pieces": listed}}
    (folder / MARK).write_text(json.dumps(known))


class LooseChunks(Chunks):
    """The pieces of each tensor."""

    def __init__(self, laid_out: Mapping[str, GatheredChunks]) -> None:
        self.laid_out = laid_out

    def locate(self, name: str, index: Index) -> Extent | None:
        return self.laid_out[name].locate(index)


def open_pieces(root: Location, index: Location, kind: str) -> Reader:
    """Opens a checkpoint of ``write_pieces``, whose pieces the file ``index`` lists; other files are beside it."""
    laid_out: dict[str, GatheredChunks] = {}
    tensors: dict[str, StoredTensor] = {}
    for name, known in read_json(index).items():
        shape, dtype = tuple(known["shape"]), known["dtype"]
        itemsize = np.dtype(dtype).itemsize
        pieces = [
            RawPiece(Box(tuple(start), tuple(stop)), f"{index.parent}/{file}", offset, tuple(order))
            for start, stop, file, offset, order in known["pieces"]
        ]
        laid_out[name] = gathered_chunks(shape, itemsize, pieces)
        spec = TensorSpec(name, shape, dtype, laid_out[name].grid)
        encoding = laid_out[name].encoding
        tensors[name] = StoredTensor(spec, encoding, bytes(itemsize), may_be_missing=False)
    return Reader(
        uri=str(root),
        format=kind,
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=tensors,
        leaves=tuple(Leaf(name, (PathKey(name),)) for name in tensors),
        chunks=LooseChunks(laid_out),
        metadata_bytes=10_000,
    )


def recognise(names: PlaceNames) -> Mark | None:
    return Mark(leaves=lambda _: 1) if MARK in names.files else None


PIECES = Format(
    about=replace(ORBAX.about, name="pieces", marks=MARK),
    recognise=recognise,
    write=ORBAX.write,
    open=lambda root, _: open_pieces(root, root / MARK, "pieces"),
)
"""A format of tests, which is read; its marks are one file. For ``monkeypatch.setattr("reshard.formats.known_formats.FORMATS", …)``."""
