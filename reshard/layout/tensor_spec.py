"""TensorSpec: the metadata of one tensor."""

from __future__ import annotations

import math

from msgspec import Struct

from reshard.documents.shared import Axes, MeshDocument
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Grid
from reshard.layout.axes import show_axes
from reshard.layout.tensor_layout import TensorLayout


class TensorSpec(Struct, frozen=True):
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


def change_text(source: TensorSpec, target: TensorSpec) -> str:
    """The change to a tensor, on one line; a name, dtype or layout that stays the same is shown once.

    >>> whole = Grid.whole((4, 2))
    >>> change_text(TensorSpec("a", (4, 2), "float32", whole), TensorSpec("b", (4, 2), "int8", whole))
    "'a' → 'b': float32 → int8 [4, 2]"
    """
    axes = ["" if s.layout is None else show_axes(s.layout.axes) for s in (source, target)]
    split = _pair(axes[0] or "not recorded", axes[1] or "not recorded") if any(axes) else ""
    named = _pair(repr(source.name), repr(target.name))
    return f"{named}: {_pair(source.dtype, target.dtype)} {list(target.shape)} {split}".rstrip()


def _pair(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
