"""The datasets of an HDF5 file: names, dtypes and places.

Keras writes bfloat16 as opaque elements of two bytes with an attribute ``dtype`` (``H5IOStore`` of its saving library). Here
other types that numpy lacks, such as float8, are written in the same way, except that the attribute is a text of fixed length.

Read are contiguous datasets, in place, which are all that Keras writes, and those in chunks (``keras/chunks.py``). Everything else is refused
by name, and no link is followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.keras.chunks import REPACK, ChunkTable, read_chunk_table
from reshard.formats.limits import (
    MAX_ALL_NAMES_CHARACTERS,
    MAX_CHUNKS,
    MAX_LEAVES,
    MAX_NAME_CHARACTERS,
    MAX_PATH_KEYS,
    MAX_RANK,
    MAX_TENSOR_BYTES,
)
from reshard.geometry.dtypes import STORED_DTYPES, storage_bytes

if TYPE_CHECKING:
    import h5py
    from h5py.h5d import DatasetID
    from h5py.h5g import GroupID
    from h5py.h5t import TypeID


ATTRIBUTE = "dtype"
"""The attribute, a text, that names the type of a dataset's opaque elements."""

BFLOAT16 = "bfloat16"

_MOST_TEXT = 100
"""Bytes of the text of the attribute."""

OPAQUE = frozenset({
    "int2", "int4", "bfloat16", "float4_e2m1fn", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
})  # fmt: skip
"""Types that are stored as opaque elements."""

PLAIN = tuple(dtype for dtype in STORED_DTYPES if dtype not in OPAQUE)
"""Types that HDF5 has, little-endian; bool is an enumeration and complex numbers are compounds, as in h5py."""


@lru_cache(maxsize=1)
def _plain_types() -> dict[str, TypeID]:
    from h5py import h5t

    return {dtype: h5t.py_create(np.dtype(dtype).newbyteorder("<")) for dtype in PLAIN}


def hdf5_type(dtype: str) -> TypeID:
    """The type in HDF5 of a dtype that can be stored."""
    from h5py import h5t

    if dtype not in OPAQUE:
        return _plain_types()[dtype]
    return h5t.create(h5t.OPAQUE, storage_bytes(dtype))


def attribute_of(dtype: str) -> str | np.bytes_:
    """The attribute of a dataset of opaque elements: Keras compares it with a text of variable length."""
    return dtype if dtype == BFLOAT16 else np.bytes_(dtype)


def stored_dtype(dataset: DatasetID, where: str) -> str:
    """The dtype of an open dataset; ``where`` names it in errors.

    Raises FormatError for elements that are no numbers, are big-endian, or are of a type that is not known.
    """
    from h5py import h5t

    found = dataset.get_type()
    if found.get_class() == h5t.OPAQUE:
        return _opaque_dtype(dataset, found, where)
    for dtype, known in _plain_types().items():
        if found.equal(known):
            return dtype
    if _is_big_endian(found):
        raise FormatError(f"{where} is big-endian, which is not read; {_AGAIN}")
    raise FormatError(f"{where} holds {_kind(found)}, and only numbers are read; {_AGAIN}")


_AGAIN = "load the file with Keras or h5py and save its arrays again"


def _opaque_dtype(dataset: DatasetID, found: TypeID, where: str) -> str:
    nbytes = found.get_size()
    dtype = _attribute(dataset)
    if dtype in OPAQUE and storage_bytes(dtype) == nbytes:
        return dtype
    named = (
        f"the attribute {ATTRIBUTE!r} {dtype[:40]!r}" if dtype else f"no attribute {ATTRIBUTE!r}"
    )
    raise FormatError(
        f"{where} has opaque elements, of {nbytes} bytes and with {named}, which does not say what they are; {_AGAIN}"
    )


def _attribute(dataset: DatasetID) -> str:
    """The text of the attribute; "" without one. A text of variable length, as Keras writes it, means bfloat16: it writes no other.

    Such a text is in a heap, and HDF5 2.0 never returns from reading one that is damaged.
    """
    from h5py import h5a, h5s, h5t

    if not h5a.exists(dataset, ATTRIBUTE.encode()):
        return ""
    found = h5a.open(dataset, ATTRIBUTE.encode())
    kind = found.get_type()
    if kind.get_class() != h5t.STRING:
        return ""
    if kind.is_variable_str():
        return BFLOAT16
    if found.get_space().get_simple_extent_type() != h5s.SCALAR or kind.get_size() > _MOST_TEXT:
        return ""
    text = np.zeros((), f"S{kind.get_size()}")
    found.read(text, mtype=kind)
    return bytes(text[()]).decode(errors="replace")


def _is_big_endian(found: TypeID) -> bool:
    from h5py import h5t

    if found.get_class() == h5t.COMPOUND and found.get_nmembers():
        return _is_big_endian(found.get_member_type(0))
    if found.get_class() == h5t.ENUM:
        return _is_big_endian(found.get_super())
    is_number = found.get_class() in (h5t.INTEGER, h5t.FLOAT, h5t.BITFIELD)
    return bool(is_number and found.get_order() == h5t.ORDER_BE)


def _kind(found: TypeID) -> str:
    """The kind of the elements, in words."""
    from h5py import h5t

    kinds = {
        h5t.INTEGER: f"integers of {found.get_size()} bytes in an unusual form",
        h5t.FLOAT: f"floats of {found.get_size()} bytes in an unusual form",
        h5t.STRING: "strings",
        h5t.VLEN: "elements of different length",
        h5t.REFERENCE: "references",
        h5t.COMPOUND: "records",
        h5t.ENUM: "an enumeration",
        h5t.ARRAY: "arrays as elements",
        h5t.BITFIELD: "bit fields",
        h5t.TIME: "times",
    }
    return kinds.get(found.get_class(), "elements of an unknown type")


class Dataset(Struct, frozen=True):
    """A dataset.

    Attributes:
        name: its path in the file, such as ``"layers/dense/vars/0"``.
        offset: of its first byte in the file; None for one without elements, or in chunks.
        chunks: the places of its chunks; None for one that is contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int | None
    chunks: ChunkTable | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * storage_bytes(self.dtype)


def read_datasets(file: h5py.File, where: str, file_bytes: int) -> list[Dataset]:
    """Every dataset of a file of ``file_bytes``, groups in the order of their names; ``where`` names the file in errors.

    Raises FormatError for features that are not read, CorruptError for elements beyond the end of the file.
    """
    datasets, chunks = [], 0
    for name, found in walk(file, where):
        dataset = _described(found, name, where, file_bytes)
        chunks += 0 if dataset.chunks is None else dataset.chunks.grid.count
        if chunks > MAX_CHUNKS:
            raise FormatError(f"{where} has more than {MAX_CHUNKS:,} chunks; {REPACK}")
        datasets.append(dataset)
    return datasets


def left_out_attributes(file: h5py.File, uri: str) -> Iterator[str]:
    """Attributes at the top of a file, such as the model in an HDF5 file of Keras 2, which loads nothing without them."""
    from h5py import h5a

    if count := h5a.get_num_attrs(file.id):
        names = (h5a.open(file.id, index=at).name[:80] for at in range(min(count, 3)))
        some = ", ".join(repr(name.decode(errors="replace")) for name in names)
        more = f" and {count - 3:,} more" if count > 3 else ""
        yield (
            f"the attributes {some}{more} of {uri!r} are left out, since only arrays are read; where they are a model, its own program "
            "loads it"
        )


def walk(file: h5py.File, where: str) -> Iterator[tuple[str, DatasetID]]:
    """Every dataset by its path; nothing is read of it.

    Raises FormatError for a link, for a group that is in the file twice, and beyond the limits.
    """
    from h5py import h5d, h5g, h5o

    root = file["/"].id
    waiting: list[tuple[str, GroupID]] = [("", root)]
    seen = {h5o.get_info(root).addr}
    count = characters = 0
    while waiting:
        path, group = waiting.pop()
        below: list[tuple[str, GroupID]] = []
        for link in group:
            name = _path(path, link, where)
            count, characters = count + 1, characters + len(name)
            if count > 4 * MAX_LEAVES or characters > MAX_ALL_NAMES_CHARACTERS:
                raise FormatError(f"{where} has more groups and datasets than are read")
            _refuse_link(group, link, f"{where}: {name!r}")
            found = h5o.open(group, link)
            if isinstance(found, h5d.DatasetID):
                yield name, found
                continue
            if not isinstance(found, h5g.GroupID):
                raise FormatError(f"{where}: {name!r} is a named datatype, which is not read")
            address = h5o.get_info(found).addr
            if address in seen:
                raise FormatError(
                    f"{where}: the group {name!r} is in the file under another name too, which is not read"
                )
            seen.add(address)
            below.append((name, found))
        waiting += reversed(below)


def _path(group: str, link: bytes, where: str) -> str:
    try:
        name = link.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{where}: the name {link[:80]!r} is not UTF-8") from None
    path = f"{group}/{name}" if group else name
    if len(path) > MAX_NAME_CHARACTERS or path.count("/") >= MAX_PATH_KEYS:
        raise FormatError(
            f"{where}: the path {path[:80]!r}… has {len(path)} characters and {path.count('/') + 1} names, more than are read"
        )
    return path


def _refuse_link(group: GroupID, link: bytes, what: str) -> None:
    from h5py import h5l

    kind = group.links.get_info(link).type
    if kind == h5l.TYPE_HARD:
        return
    if kind == h5l.TYPE_EXTERNAL:
        file, path = group.links.get_val(link)
        raise FormatError(
            f"{what} is a link to {path[:200].decode(errors='replace')!r} in the file {file[:200].decode(errors='replace')!r}, and links "
            "are not followed; copy what it names into one file"
        )
    if kind == h5l.TYPE_SOFT:
        path = group.links.get_val(link)
        raise FormatError(
            f"{what} is a soft link to {path[:200].decode(errors='replace')!r}, and links are not followed; store the dataset itself"
        )
    raise FormatError(f"{what} is a link of an unknown kind, and links are not followed")


def _described(found: DatasetID, name: str, where: str, file_bytes: int) -> Dataset:
    what = f"{where}: {name!r}"
    shape = _shape(found, what)
    is_chunked = _is_chunked(found, what)
    dtype = stored_dtype(found, what)
    dataset = Dataset(name, dtype, shape, None if is_chunked else found.get_offset())
    nbytes = dataset.nbytes
    if nbytes > MAX_TENSOR_BYTES:
        raise CorruptError(
            f"{what} of {dtype} {list(shape)} is larger than any tensor that is read"
        )
    if not nbytes:
        return Dataset(name, dtype, shape, None)
    if is_chunked:
        table = read_chunk_table(found, what, dtype, shape, file_bytes)
        return Dataset(name, dtype, shape, None, table)
    if dataset.offset is None:
        raise FormatError(
            f"{what} was made without any elements being written; write them, or leave it out when the file is made"
        )
    if dataset.offset + nbytes > file_bytes:
        raise CorruptError(
            f"{where} has {file_bytes:,} bytes, but {name!r} ends at {dataset.offset + nbytes:,}; it was cut short: restore it from a copy"
        )
    return dataset


def _shape(found: DatasetID, what: str) -> tuple[int, ...]:
    from h5py import h5s

    space = found.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        raise FormatError(f"{what} is empty without a shape (h5py.Empty), which is not read")
    shape = tuple(map(int, space.get_simple_extent_dims()))
    if len(shape) > MAX_RANK:
        raise FormatError(f"{what} has {len(shape)} dimensions; at most {MAX_RANK} are read")
    return shape


def _is_chunked(found: DatasetID, what: str) -> bool:
    """True if elements are in chunks. Raises FormatError if they are neither there nor in one range of the file itself."""
    from h5py import h5d

    made = found.get_create_plist()
    layout = made.get_layout()
    if layout == h5d.VIRTUAL:
        raise FormatError(
            f"{what} is a virtual dataset, made of others, perhaps in other files; {REPACK}"
        )
    if made.get_external_count():
        raise FormatError(f"{what} has its elements in another file (external storage); {REPACK}")
    if layout == h5d.CHUNKED:
        return True
    if layout != h5d.CONTIGUOUS:
        raise FormatError(f"{what} is stored in its header (compact); {REPACK}")
    return False
