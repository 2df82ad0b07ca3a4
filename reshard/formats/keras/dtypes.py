"""Element types as HDF5 stores them, and as Keras does where HDF5 has none.

Keras writes bfloat16 as opaque elements of two bytes with an attribute ``dtype`` (``H5IOStore`` of its saving library). Here
other types that numpy lacks, such as float8, are written in the same way, except that the attribute is a text of fixed length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from reshard.errors import FormatError
from reshard.geometry.dtypes import STORED_DTYPES, storage_bytes

if TYPE_CHECKING:
    from h5py.h5d import DatasetID
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
