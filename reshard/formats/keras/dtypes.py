"""Element types as HDF5 stores them, and as Keras does where HDF5 has none.

Keras writes bfloat16 as opaque elements of two bytes with an attribute ``dtype`` (``H5IOStore`` of its saving library). Here
other types that numpy lacks, such as float8, are written and read in the same way.
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
"""The attribute of a dataset of opaque elements that says what they are."""

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
    import h5py

    value = None
    if h5py.h5a.exists(dataset, ATTRIBUTE.encode()):
        value = h5py.AttributeManager(h5py.Dataset(dataset)).get(ATTRIBUTE)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise FormatError(
            f"{where} has opaque elements of {found.get_size()} bytes, and no attribute {ATTRIBUTE!r} that says what they are; add it "
            "with h5py, such as 'bfloat16'"
        )
    if value not in STORED_DTYPES or storage_bytes(value) != found.get_size():
        raise FormatError(
            f"{where} has opaque elements of {found.get_size()} bytes, and the attribute {ATTRIBUTE!r} {value[:40]!r}; expected one of "
            f"{', '.join(sorted(OPAQUE))} of that size"
        )
    return value


def _is_big_endian(found: TypeID) -> bool:
    from h5py import h5t

    if found.get_class() == h5t.COMPOUND and found.get_nmembers():
        return _is_big_endian(found.get_member_type(0))
    if found.get_class() == h5t.ENUM:
        return _is_big_endian(found.get_super())
    is_number = found.get_class() in (h5t.INTEGER, h5t.FLOAT, h5t.BITFIELD)
    return bool(is_number and found.get_order() == h5t.ORDER_BE)


def _kind(found: TypeID) -> str:
    """What elements are, in words."""
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
