"""A checkpoint of loose pieces in raw files, each with an order of axes of its own, and its Reader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from reshard.formats import registry
from reshard.formats.base import Record
from reshard.formats.contents import Container, Extent, Item, Leaf, PathKey, StoredTensor
from reshard.formats.json.safe_json import read_json
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.raw_pieces import RawPiece
from reshard.geometry.box import Box
from reshard.geometry.grid import Index
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


class LooseReader:
    """An open checkpoint of ``write_pieces``."""

    format = "pieces"
    metadata_bytes = 10_000
    conversion = ""
    made = None
    warnings = ()

    def __init__(self, folder: Location, _record: Record = "checked", _uri: str = "") -> None:
        self.uri = str(folder)
        self.container = Container(None, (Item("", "", is_tree=True),))
        self.laid_out: dict[str, GatheredChunks] = {}
        self.tensors: Mapping[str, StoredTensor] = {}
        self.leaves: Sequence[Leaf] = ()
        index = self.index(folder)
        for name, known in read_json(index).items():
            self._add(name, known["dtype"], tuple(known["shape"]), known["pieces"], index.parent)

    def index(self, folder: Location) -> Location:
        """The file that lists the pieces; the other files are beside it."""
        return folder / MARK

    def _add(
        self, name: str, dtype: str, shape: tuple[int, ...], listed: list, folder: Location
    ) -> None:
        itemsize = np.dtype(dtype).itemsize
        pieces = [
            RawPiece(Box(tuple(start), tuple(stop)), f"{folder}/{file}", offset, tuple(order))
            for start, stop, file, offset, order in listed
        ]
        laid_out = self.laid_out[name] = gathered_chunks(shape, itemsize, pieces)
        spec = TensorSpec(name, shape, dtype, laid_out.grid)
        stored = StoredTensor(spec, laid_out.encoding, bytes(itemsize), may_be_missing=False)
        self.tensors = {**self.tensors, name: stored}
        self.leaves = (*self.leaves, Leaf(name, (PathKey(name),)))

    def locate(self, name: str, index: Index) -> Extent | None:
        return self.laid_out[name].locate(index)

    def copies(self, _: str) -> tuple[()]:
        return ()


PIECES = replace(
    registry.FORMATS[0],
    name="pieces",
    marks=MARK,
    matches=lambda folder: (folder / MARK).is_file(),
    open=LooseReader,
    count_leaves=lambda _: 1,
    lacking_chunks=lambda *_: {},
    with_missing=lambda reader, _: reader,
)
"""For ``monkeypatch.setattr("reshard.formats.registry.FORMATS", …)``."""
