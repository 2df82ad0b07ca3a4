"""TensorSpec: the metadata of one tensor. SaveSliceInfo: the box of one of its slices."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from reshard.answers.shared import Axes, MeshDocument
from reshard.errors import LayoutError
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Grid
from reshard.layout.axes import show_axes
from reshard.layout.tensor_layout import TensorLayout


class TensorSpec(Struct, frozen=True, gc=False):
    """Name, shape and dtype of a tensor, its chunks on disk, and its layout over devices.

    It has two grids, which may differ: ``storage`` has the chunks on disk, ``slices`` the boxes of the layout.

    Attributes:
        name: ``/``-joined path.
        dtype: name as in ml_dtypes and numpy (``"bfloat16"``, ``"int4"``).
        storage: the chunks on disk, edge chunks clipped to the tensor.
        chunk_shape: shape of a stored chunk, edges padded to it; None if chunks are not padded.
        layout: mesh and axes, or None if none was recorded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: Grid
    chunk_shape: tuple[int, ...] | None = None
    layout: TensorLayout | None = None

    def __repr__(self) -> str:
        axes = "" if self.layout is None else f" {show_axes(self.layout.axes)}"
        return f"TensorSpec({self.name!r}: {self.dtype} {list(self.shape)}{axes})"

    def change_to(self, target: TensorSpec) -> str:
        """The change from this to ``target``, on one line."""
        names, dtypes = (self.name, target.name), (self.dtype, target.dtype)
        return change_text(names, dtypes, target.shape, (self._axes, target._axes))

    @property
    def itemsize(self) -> int:
        """Stored bytes of one element; sub-byte types take a whole byte."""
        return storage_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        """Stored bytes of all elements, before compression."""
        return math.prod(self.shape) * self.itemsize

    @property
    def _mesh_document(self) -> MeshDocument | None:
        """The mesh of the layout as JSON output has it; None without one."""
        mesh = self.layout and self.layout.device_mesh
        return MeshDocument(mesh.axis_names, mesh.shape) if mesh else None

    @property
    def _axes(self) -> Axes | None:
        """The axes of the layout as JSON output has them; None without one."""
        return None if self.layout is None else self.layout.axes

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of the largest chunk, padding included."""
        return math.prod(self.chunk_shape or self.storage.largest) * storage_bytes(self.dtype)

    @property
    def stored_bytes(self) -> int:
        """Decoded bytes of all chunks, padding included."""
        if self.chunk_shape is None:
            return self.nbytes
        return self.storage.count * math.prod(self.chunk_shape) * self.itemsize

    @property
    def slices(self) -> Grid:
        """The grid of the layout; the whole tensor without a layout."""
        if self.layout is None or self.layout.device_mesh is None:
            return Grid.whole(self.shape)
        return self.layout.grid(self.shape, self.name)

    def stored_shape(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the chunk at ``index`` as stored, padding included."""
        return self.chunk_shape if self.chunk_shape is not None else self.storage.box(index).shape


def change_text(
    names: tuple[str, str],
    dtypes: tuple[str, str],
    shape: Sequence[int],
    axes: tuple[Axes | None, Axes | None],
) -> str:
    """The change to a tensor, on one line; a name, dtype or layout that stays the same is shown once.

    >>> change_text(("a", "b"), ("float32", "int8"), (4, 2), (None, None))
    "'a' → 'b': float32 → int8 [4, 2]"
    """
    shown = ["not recorded" if each is None else show_axes(each) for each in axes]
    split = "" if axes == (None, None) else _pair(shown[0], shown[1])
    named = _pair(repr(names[0]), repr(names[1]))
    return f"{named}: {_pair(*dtypes)} {list(shape)} {split}".rstrip()


def _pair(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


_NUMBER = re.compile(r"[0-9]{1,19}")
_EXAMPLE = '"4 3 0,4:1,1" for rows 0:4 and columns 1:2 of shape [4, 3]'


@dataclass(frozen=True, slots=True)
class SaveSliceInfo:
    """One slice of a tensor: full shape, and offset and shape of the slice, in elements.

    >>> SaveSliceInfo("w", (4, 3, 5), (0, 1, 3), (4, 1, 2)).spec
    '4 3 5 0,4:1,1:3,2'

    Raises LayoutError if the slice is outside of the tensor. ``spec`` is the text that
    TensorFlow's save and restore operations take as ``shape_and_slices``.
    """

    full_name: str
    full_shape: tuple[int, ...]
    var_offset: tuple[int, ...]
    var_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for field in ("full_shape", "var_offset", "var_shape"):
            object.__setattr__(self, field, self._numbers(field))
        if not len(self.full_shape) == len(self.var_offset) == len(self.var_shape):
            raise LayoutError(
                f"a slice of {self.full_name!r} needs as many offsets and lengths as the tensor has "
                f"dimensions, but shape is {list(self.full_shape)}, offset {list(self.var_offset)}, "
                f"slice shape {list(self.var_shape)}"
            )
        for dim, (size, start, length) in enumerate(
            zip(self.full_shape, self.var_offset, self.var_shape, strict=True)
        ):
            if start < 0 or length < 0 or start + length > size:
                raise LayoutError(
                    f"a slice of {self.full_name!r} leaves the tensor: dimension {dim} has {size} "
                    f"elements, but the slice is {start}:{start + length}"
                )

    def _numbers(self, field: str) -> tuple[int, ...]:
        given = getattr(self, field)
        try:
            return tuple(map(operator.index, given))
        except TypeError:
            raise LayoutError(
                f"{field} of a slice of {self.full_name!r} must be whole numbers, one for each "
                f"dimension, not {given!r}"
            ) from None

    @classmethod
    def from_box(cls, full_name: str, full_shape: tuple[int, ...], box: Box) -> SaveSliceInfo:
        """The slice that ``box`` cuts out of a tensor of ``full_shape``."""
        return cls(full_name, full_shape, box.start, box.shape)

    @classmethod
    def from_spec(cls, spec: str, full_name: str = "") -> SaveSliceInfo:
        """Parses ``spec``; ``-`` means a whole dimension. Raises LayoutError for anything else."""
        if not isinstance(spec, str) or " " not in spec:
            raise LayoutError(
                f"a slice spec is a shape, a space and slices, as in {_EXAMPLE}, not {spec!r}"
            )
        *dims, slices = spec.split(" ")
        dims = [] if dims == [""] else dims
        pairs = slices.split(":") if slices else []
        if len(pairs) != len(dims):
            raise LayoutError(
                f"slice spec {spec!r} names {len(dims)} dimensions but {len(pairs)} slices; "
                f"expected one for each, as in {_EXAMPLE}"
            )
        shape = tuple(_number(d, spec) for d in dims)
        boxes = [_pair_of_slice_info(p, size, spec) for p, size in zip(pairs, shape, strict=True)]
        return cls(full_name, shape, tuple(b[0] for b in boxes), tuple(b[1] for b in boxes))

    @property
    def spec(self) -> str:
        """Full dimensions joined by spaces, a space, then ``offset,length`` joined by colons."""
        dims = " ".join(map(str, self.full_shape))
        pairs = zip(self.var_offset, self.var_shape, strict=True)
        return f"{dims} " + ":".join(f"{a},{n}" for a, n in pairs)

    @property
    def box(self) -> Box:
        """The box of the slice in the full tensor."""
        stop = tuple(a + n for a, n in zip(self.var_offset, self.var_shape, strict=True))
        return Box(self.var_offset, stop)


def _number(text: str, spec: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise LayoutError(
            f"slice spec {spec!r} has {text!r} where a number was expected, as in {_EXAMPLE}"
        )
    return int(text)


def _pair_of_slice_info(text: str, size: int, spec: str) -> tuple[int, int]:
    if text == "-":
        return 0, size
    start, comma, length = text.partition(",")
    if not comma:
        raise LayoutError(
            f"slice spec {spec!r} has {text!r} where offset,length was expected, as in {_EXAMPLE}"
        )
    return _number(start, spec), _number(length, spec)
