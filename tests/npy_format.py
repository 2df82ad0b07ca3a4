"""A format of tests, which is read and written: a folder of ``.npy`` files, one for each tensor, in C or Fortran order.

``checksums.json`` beside them has the CRC32C of each file's data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import closing
from functools import partial
from io import BytesIO
from math import prod
from typing import ClassVar
from urllib.parse import quote, unquote

import numpy as np
from msgspec.structs import replace
from numpy.lib import format as npy

from reshard.checksums.crc import CRC32C, crc_of_parts
from reshard.errors import CorruptError, FormatError, PlanError
from reshard.formats.base import Chunks, Form, Reader
from reshard.formats.chunking import contiguous_grid
from reshard.formats.contents import Container, Item, Leaf, PathKey, RawPiece, StoredTensor
from reshard.formats.file_map import FileMap, Place, SharedFile
from reshard.formats.format import About, Format, Mark
from reshard.formats.loose_pieces import gathered_chunks
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import SliceFile, render_slices, target_entry
from reshard.geometry.dtypes import DTYPES
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec

MOST_BYTES_OF_A_HEADER = 10_000
MOST_BYTES_OF_A_CHUNK = 64 << 20


def recognise(names):
    count = sum(name.endswith(".npy") for name in names.files)
    return Mark(leaves=lambda _: count, is_ours=is_ours) if count else None


def open_npy(root, how):
    known = None if how.record == "ignored" else read_slices(root)
    known = known or SliceFile({})
    chunks, tensors = {}, {}
    for file in npy_files(root):
        name = unquote(file.name.removesuffix(".npy"))
        dtype, held = read_header(file)
        entry = known.tensors.get(name)
        layout = entry and entry.layout
        spec = TensorSpec(name, held.grid.shape, dtype, held.grid, layout=layout)
        digest, fill = entry and entry.digest, bytes(spec.itemsize)
        chunks[name] = held
        tensors[name] = StoredTensor(spec, held.encoding, fill, False, digest)
    return Reader(
        uri=how.uri or str(root),
        format="npy",
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=tensors,
        leaves=tuple(Leaf(name, (PathKey(name),)) for name in tensors),
        chunks=NpyChunks(chunks),
        metadata_bytes=2000 * len(tensors),
        conversion=known.conversion,
        made=known.made,
    )


class NpyForm(Form, frozen=True):
    format: ClassVar[str] = "npy"

    def arrange(self, given):
        spec, whole = given.tensor.spec, Grid.whole(given.tensor.spec.shape)
        if spec.dtype not in np.sctypeDict:
            raise PlanError(
                f"{spec.name!r} is {spec.dtype}, which .npy files do not have; cast or drop it"
            )
        chunks = contiguous_grid(whole, spec.itemsize, MOST_BYTES_OF_A_CHUNK)
        return replace(given.tensor, spec=replace(spec, storage=chunks), packed=whole)

    def plan(self, target):
        files = {quote(name, safe=" ") + ".npy": name for name in target.tensors}
        headers = {name: header(t.spec) for name, t in target.tensors.items()}

        def places(name, index):
            offset = len(headers[name]) + offset_of(target.tensors[name].spec, index)
            return (Place(quote(name, safe=" ") + ".npy", offset),)

        def shared_file(file):
            head, tensor = headers[files[file]], target.tensors[files[file]]
            return SharedFile(head, len(head) + tensor.spec.nbytes)

        finish = partial(write_records, target, files)
        return FileMap(places=places, shared=files, shared_file=shared_file, finish=finish)


class NpyChunks(Chunks):
    def __init__(self, chunks):
        self._chunks = chunks

    def locate(self, name, index):
        return self._chunks[name].locate(index)


def npy_files(folder):
    return [folder / entry.name for entry in folder.entries() if entry.name.endswith(".npy")]


def is_ours(folder):
    return all(entry.name.endswith((".npy", ".json")) for entry in folder.entries())


def read_header(file):
    """The dtype of a file, and its chunks. The file is a stranger's: every field is checked."""
    found = file.status()
    with closing(file.open(found.version)) as opened:
        start = BytesIO(opened.read(0, min(found.nbytes, MOST_BYTES_OF_A_HEADER)))
    try:
        if npy.read_magic(start) != (1, 0):
            raise ValueError("expected version 1.0 of the format")
        shape, is_fortran, dtype = npy.read_array_header_1_0(start, MOST_BYTES_OF_A_HEADER)
    except ValueError as error:
        raise CorruptError(f"{file} is no .npy file: {error}; restore it from a copy") from error
    size, offset = found.nbytes, start.tell()
    if dtype.name not in DTYPES or not dtype.isnative:
        raise FormatError(f"{file} has the dtype {dtype}, which is not supported; leave it out")
    if size != offset + prod(shape) * dtype.itemsize:
        raise CorruptError(
            f"{file} has {size} bytes, not those of its shape; restore it from a copy"
        )
    order = tuple(reversed(range(len(shape)))) if is_fortran else ()
    piece = RawPiece(Box.full(shape), str(file), offset, order, found.version)
    return dtype.name, gathered_chunks(shape, dtype.itemsize, [piece])


def header(spec):
    text = BytesIO()
    descr = np.dtype(spec.dtype).str
    npy.write_array_header_1_0(text, {"descr": descr, "fortran_order": False, "shape": spec.shape})
    return text.getvalue()


def offset_of(spec, index):
    element = 0
    for at, size in zip(spec.storage.box(index).start, spec.shape, strict=True):
        element = element * size + at
    return element * spec.itemsize


def write_records(target, files, root, digests, checksums):
    parts, tensors = defaultdict(list), target.tensors
    for chunk in checksums:
        offset = offset_of(tensors[chunk.name].spec, chunk.index)
        parts[chunk.name].append((offset, chunk.nbytes, chunk.crc32c))
    crcs = {
        file: crc_of_parts(CRC32C, parts[name], tensors[name].spec.nbytes)
        for file, name in files.items()
    }
    (root / "checksums.json").write(json.dumps(crcs).encode())
    entries = {
        name: target_entry((name,), tensor, digests.get(name)) for name, tensor in tensors.items()
    }
    record = SliceFile(entries, conversion=target.conversion, made=target.made)
    (root / "slices.json").write(render_slices(record))
    return {}


NPY = Format(
    about=About(name="npy", title="npy", marks="npy (*.npy)", leaf_bytes=4000, tensors_only=True),
    recognise=recognise,
    open=open_npy,
    write=lambda _, __: NpyForm(),
)
