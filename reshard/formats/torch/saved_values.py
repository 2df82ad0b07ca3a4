"""The values that ``torch.save`` wrote: tensors in an archive, and plain values, which are numbers, text, None, and lists, tuples and dicts of them.

The pickle of a tensor is a call of one of these (``torch/_utils.py``)::

    _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, {"conj": True}])
    _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype[, {"conj": True}])

``storage`` refers to the record ``data/<key>`` by ``("storage", class, key, device, elements)``. The class names the dtype of v2; the
storage of v3 has none, and counts bytes. ``offset`` and ``stride`` count elements.

Every value that is neither becomes an ``Unread``: warnings name it, and nothing reads it. In a tree that torch saved, numbers are tensors
without dimensions, as everywhere here; text and None are other leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from msgspec import Struct

from reshard.answers.record import safe
from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_NAME_CHARACTERS, MAX_PATH_KEYS, MAX_RANK, MAX_TENSOR_BYTES
from reshard.formats.torch.pickle_machine import (
    Built,
    Name,
    Persistent,
    Table,
    expect_built,
    expect_node,
)
from reshard.geometry.dtypes import is_known, storage_bytes
from reshard.geometry.row_major import strided_span

_PREFIX = "torch."

TORCH_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
)  # fmt: skip
"""As attributes of ``torch``; those that no tensor here may have are refused by name."""

DTYPE_NAMES = {f"{_PREFIX}{dtype}": f"{_PREFIX}{dtype}" for dtype in TORCH_DTYPES}
"""For the list of names that a pickle may use."""

TENSOR_DTYPES = tuple(dtype for dtype in TORCH_DTYPES if is_known(dtype))
"""Those that tensors here may have."""

STORAGE_DTYPES = {
    "BoolStorage": "bool", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "ByteStorage": "uint8", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "FloatStorage": "float32",
    "DoubleStorage": "float64", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
"""The element type of each typed storage: a class of ``torch``."""


def dtype_of(name: str, where: str) -> str:
    """The element type that torch calls ``torch.<name>``.

    Raises FormatError, beginning with ``where``, for one that is not read.
    """
    dtype = name.removeprefix(_PREFIX)
    if name.startswith(_PREFIX) and is_known(dtype):
        return dtype
    kind = "quantised" if dtype.startswith(("qint", "quint")) else "of a type that is not read"
    raise FormatError(
        f"{where} is {name}, {kind}; leave it out where it is saved, or save it as plain numbers (dequantize, to)"
    )


REBUILD_V2, REBUILD_V3 = "_rebuild_tensor_v2", "_rebuild_tensor_v3"
UNTYPED = "UntypedStorage"
SIZE = "torch.Size"

TENSOR_NAMES = {
    "torch._utils._rebuild_tensor_v2": REBUILD_V2,
    "torch._utils._rebuild_tensor_v3": REBUILD_V3,
    "torch.storage.UntypedStorage": UNTYPED,
    "torch.Size": SIZE,
    "collections.OrderedDict": "OrderedDict",
    **{f"torch.{storage}": storage for storage in STORAGE_DTYPES},
    **DTYPE_NAMES,
}
"""Names in the pickle of a tensor, and their texts in nodes."""


class ArchivedTensor(Struct, frozen=True):
    """A tensor whose elements lie in one record.

    Attributes:
        order: the axes from the one that is stored slowest to the fastest; () for row-major.
        strides: elements from one to the next along each axis, where they leave gaps or are used again; else ().
        record: the name of the record.
        offset: of the first element in it, in bytes.
        record_bytes: the bytes that the record must have.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    record: str
    offset: int
    record_bytes: int
    strides: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * storage_bytes(self.dtype)


def is_tensor(node: Any) -> TypeGuard[Built]:
    """True if a node would be a tensor."""
    return isinstance(node, Built) and node.name in (REBUILD_V2, REBUILD_V3)


def archived_tensor(node: Built, where: str) -> ArchivedTensor:
    """The tensor that a pickle describes.

    Raises CorruptError for a contradiction, FormatError for a dtype that is not read, and for the bits of another number (conj, neg).
    """
    arguments, is_v3 = node.arguments, node.name == REBUILD_V3
    fixed = 7 if is_v3 else 6
    if not fixed <= len(arguments) <= fixed + 1:
        raise CorruptError(
            f"{where}: {node.name} has {len(arguments)} arguments; expected {fixed} or {fixed + 1}"
        )
    _refuse_lazy(arguments[fixed:], where)
    storage, key, count = _storage(arguments[0], where)
    if is_v3:
        dtype = dtype_of(expect_node(arguments[6], Name, "the dtype", where).text, where)
    else:
        dtype = _typed(storage, where)
    itemsize = storage_bytes(dtype)
    record_bytes = count if storage == UNTYPED else count * itemsize
    shape = sizes_of(arguments[2], "the shape", where)
    stride = sizes_of(arguments[3], "the strides", where)
    offset = sizes_of((arguments[1],), "the offset", where)[0] * itemsize
    order, has_gaps = _order(shape, stride, where)
    strides = (
        tuple(s if n > 1 else 0 for n, s in zip(shape, stride, strict=True)) if has_gaps else ()
    )
    found = ArchivedTensor(dtype, shape, order, f"data/{key}", offset, record_bytes, strides)
    reached = strided_span(shape, stride) * itemsize
    if max(record_bytes, found.nbytes) > MAX_TENSOR_BYTES or (
        found.nbytes and offset + reached > record_bytes
    ):
        raise CorruptError(
            f"{where}: {dtype} of shape {shorten(list(shape))} at byte {offset:,} does not fit its storage of {record_bytes:,} bytes; "
            "restore the file from a copy"
        )
    return found


def sizes_of(value: Any, what: str, where: str) -> tuple[int, ...]:
    """Sizes, offsets or strides: a tuple or a ``torch.Size`` of numbers from 0 to 2^60, at most 32."""
    if isinstance(value, Built):
        expect_built(value, SIZE, what, where)
        value = value.arguments[0] if len(value.arguments) == 1 else None
    found = expect_node(value, tuple, what, where)
    if len(found) > MAX_RANK:
        raise FormatError(
            f"{where}: {what} has {len(found):,} dimensions; at most {MAX_RANK} are supported"
        )
    for size in found:
        # Smaller numbers than 2^61 - 1 have different hashes, so that no one can make a dict of them slow.
        if type(size) is not int or not 0 <= size <= 1 << 60:
            raise CorruptError(
                f"{where}: {what} should be of numbers from 0 to 2^60, but is {shorten(found)}"
            )
    return found


def _refuse_lazy(more: Sequence[Any], where: str) -> None:
    """Refuses marks by which torch computes other values from the stored ones, or that are not known."""
    marks = [key for value in more for key, _ in expect_node(value, Table, "it", where).pairs()]
    if marks:
        raise FormatError(
            f"{where} is stored with the mark {shorten(marks[0])}, so that its bytes are not its values; save it after resolve_conj() and "
            "resolve_neg()"
        )


def _storage(value: Any, where: str) -> tuple[str, str, int]:
    """The class of a storage, its key, and its elements (bytes of an untyped one)."""
    reference = expect_node(value, Persistent, "its storage", where).reference
    if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage":
        raise CorruptError(f"{where}: its storage is {shorten(reference)}; expected five parts")
    _, storage, key, _, count = reference
    name = expect_node(storage, Name, "the class of its storage", where).text
    key = expect_node(key, str, "the name of its storage", where)
    return name, key, sizes_of((count,), "the size of its storage", where)[0]


def _typed(storage: str, where: str) -> str:
    if storage not in STORAGE_DTYPES:
        raise CorruptError(f"{where}: its storage is {storage}, which names no dtype")
    return STORAGE_DTYPES[storage]


def _order(
    shape: tuple[int, ...], stride: tuple[int, ...], where: str
) -> tuple[tuple[int, ...], bool]:
    """The axes as they are stored, and True if elements leave gaps or are used again.

    Axes of one element have no place, whatever their stride.
    """
    if len(shape) != len(stride):
        raise CorruptError(
            f"{where} has the shape {shorten(list(shape))} and the strides {shorten(list(stride))}"
        )
    if not math.prod(shape):
        return (), False
    long = [dim for dim, size in enumerate(shape) if size > 1]
    axes = sorted(long, key=lambda dim: -stride[dim])
    step, has_gaps = 1, False
    for dim in reversed(axes):
        has_gaps = has_gaps or stride[dim] != step
        step *= shape[dim]
    if axes == long and not has_gaps:
        return (), False
    short = [dim for dim, size in enumerate(shape) if size <= 1]
    return (*short, *axes), has_gaps


_MOST_SHOWN = 3

_NUMBER = {"value_metadata": {"value_type": "scalar", "skip_deserialize": False}}
_TEXT = {"value_type": "string", "skip_deserialize": False}


TUPLES_KEY = "tuples"
"""In the metadata of a leaf in a value of torch: the depths of the tuples around it, in keys before the end of its path."""


def tensor_leaf(path: tuple[PathKey, ...]) -> Leaf:
    """The leaf of a tensor."""
    return leaf_at(path, {})


def value_leaf(path: tuple[PathKey, ...], value: Any) -> Leaf:
    """The leaf of a number, a text, None or an empty container."""
    if isinstance(value, str):
        return leaf_at(path, {"value_metadata": _TEXT, "string": value}, is_tensor=False)
    if value is None or isinstance(value, Empty):
        kind = "None" if value is None else value.kind
        meta = {"value_metadata": {"value_type": kind, "skip_deserialize": True}}
        return leaf_at(path, meta, is_tensor=False)
    return leaf_at(path, _NUMBER)


def unread_leaf(path: tuple[PathKey, ...], value: Unread, digest: str, **more: Any) -> Leaf:
    """The leaf of a value that is not read; ``digest`` is the same for the same content."""
    return leaf_at(path, {"object": value.kind, "digest": digest, **more}, is_tensor=False)


def leaf_at(path: tuple[PathKey, ...], meta: Mapping[str, Any], *, is_tensor: bool = True) -> Leaf:
    """The leaf with this path and its format's metadata."""
    return Leaf("/".join(key.key for key in path), path, tensor=is_tensor, meta=meta)


def unread_warnings(leaves: Sequence[Leaf]) -> Iterator[str]:
    """A sentence about the values that are not read."""
    unread = [leaf for leaf in leaves if leaf.is_object]
    found = [f"{leaf.name!r} is {leaf.kind}" for leaf in unread]
    carried = sum(leaf.carried is not None for leaf in unread)
    if carried:
        instead = f"torch DCP targets get {carried} of {len(unread)} as they are; leave them out (drop) of others"
    else:
        instead = "leave them out (drop) where the checkpoint is converted"
    if found:
        more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        yield (
            f"{', '.join(found[:_MOST_SHOWN])}{more}: such values are not read; {instead}, or save them as tensors, "
            "numbers and text"
        )


COMPLEX, ORDERED, BYTES = "complex", "OrderedDict", "bytes"

PLAIN_NAMES = {
    "__builtin__.complex": COMPLEX,
    "builtins.complex": COMPLEX,
    # Before protocol 3 a pickle has bytes as the text that they are the Latin-1 code of.
    "_codecs.encode": BYTES,
    "__builtin__.bytes": BYTES,
    **TENSOR_NAMES,
}
"""Names in the pickle of a plain value; it lists tensors and bytes so that warnings can name them."""

EMPTY_KINDS = {list: "List", tuple: "Tuple", Table: "Dict"}

_FEW_PARTS = 1 << 16

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1

Plain = bool | int | float | complex | str | None


class Empty(Struct, frozen=True):
    """An empty container; ``kind`` is ``"List"``, ``"Tuple"`` or ``"Dict"``."""

    kind: str


class Unread(Struct, frozen=True):
    """A value that is not read; ``kind`` says what it is, as in "it is …"."""

    kind: str


PlainValues = tuple[tuple[Path, Plain | Empty, tuple[int, ...]], ...] | Unread
"""Each value with its path, and the depths of the tuples around it, in keys before the end of the path."""


class NotPlainError(Exception):
    """A part of a value is not plain; its text says what it is, as in "it is …"."""


def plain_values(node: Any, most: int) -> PlainValues:
    """The values in a node; an Unread where any part of it is not plain, or they are more than ``most``."""
    try:
        return tuple(
            (path, plain_leaf(leaf), tuple(len(path) - depth for depth in tuples))
            for path, leaf, tuples in _leaf_nodes(node, most)
        )
    except NotPlainError as error:
        return Unread(str(error))


def most_parts(pickled: bytes) -> int:
    """The most parts of a pickle that are looked at: each takes a byte, unless it is the same one again and again."""
    return max(_FEW_PARTS, 2 * len(pickled))


def _leaf_nodes(node: Any, most: int) -> Iterator[tuple[Path, Any, tuple[int, ...]]]:
    """The nodes that are no containers, in order: path, node, and the number of keys to each tuple around it.

    Containers may contain themselves, so that depth and number are limited: NotPlainError, as for keys that are no names.
    """
    waiting: list[tuple[Path, Any, tuple[int, ...]]] = [((), node, ())]
    steps = 0
    while waiting:
        path, value, tuples = waiting.pop()
        steps += 1
        if steps > most or len(path) > MAX_PATH_KEYS:
            raise NotPlainError("a value with too many parts")
        children = list(_children(value))
        if children:
            inner = (*tuples, len(path)) if isinstance(value, tuple) else tuples
            waiting += [((*path, key), child, inner) for key, child in reversed(children)]
        else:
            yield path, value, tuples


def _children(value: Any) -> Iterator[tuple[PathKey, Any]]:
    if isinstance(value, Built) and value.name == ORDERED and value.table is not None:
        value = value.table
    if isinstance(value, list | tuple):
        for number, child in enumerate(value):
            yield PathKey(str(number), is_sequence=True), child
    elif isinstance(value, Table):
        pairs = [(_key(key), child) for key, child in value.pairs()]
        if len({key for key, _ in pairs}) < len(pairs):
            raise NotPlainError("a dict with a key twice")
        yield from pairs


def _key(key: Any) -> PathKey:
    """The key of a dict. A number becomes text, as torch makes names of it."""
    if type(key) not in (str, int) or len(str(key)) > MAX_NAME_CHARACTERS:
        raise NotPlainError("a dict with keys that are no names")
    return PathKey(str(key))


def plain_leaf(value: Any) -> Plain | Empty:
    """A number, a text, None or an empty container. NotPlainError for any other node."""
    if type(value) in EMPTY_KINDS:
        return Empty(EMPTY_KINDS[type(value)])
    if value is None or type(value) in (bool, float, str):
        found: Plain = value
        return found
    if type(value) is int:
        if not _LEAST <= value <= _MOST:
            raise NotPlainError("an integer of more than 64 bits")
        return value
    if is_tensor(value):
        raise NotPlainError("a value with tensors in it")
    if isinstance(value, bytes):
        raise NotPlainError(BYTES)
    if isinstance(value, Built):
        return _made(value)
    if isinstance(value, Name):
        raise NotPlainError(f"the object {safe(value.text[:200])}")
    raise NotPlainError("an object")


def _made(value: Built) -> Plain | Empty:
    if value.name == ORDERED and not value.arguments:
        return Empty("Dict")  # attributes, such as the versions of modules, are left out
    arguments = value.arguments
    if value.name == COMPLEX and len(arguments) == 2 and {type(a) for a in arguments} == {float}:
        return complex(*arguments)
    if value.name == BYTES:
        raise NotPlainError(BYTES)
    raise NotPlainError(f"an object of {safe(value.name[:200])}")
