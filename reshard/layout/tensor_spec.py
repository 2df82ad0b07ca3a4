"""TensorSpec: the metadata of one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from reshard.answers.shared import Axes, MeshDocument
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
