"""TensorSpec: what is known of one tensor without reading it."""

from __future__ import annotations

import math

from msgspec import Struct

from reshard.layout.dtypes import storage_bytes
from reshard.layout.grid import Grid
from reshard.layout.mesh import TensorLayout


class TensorSpec(Struct, frozen=True):
    """Name, shape and dtype of a tensor, how storage cuts it, and who needs which slice.

    Two grids that are never assumed equal: ``storage`` is what is on disk, ``layout`` (or
    ``slices``, where the split is not even) who holds what.

    Attributes:
        name: ``/``-joined path.
        dtype: name as in ml_dtypes and numpy (``"bfloat16"``, ``"int4"``).
        storage: the chunks on disk, edge chunks clipped to the tensor.
        chunk_shape: shape of a stored chunk, edges padded to it; None where chunks are not padded.
        layout: mesh and axes, or None where none was recorded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: Grid
    chunk_shape: tuple[int, ...] | None = None
    layout: TensorLayout | None = None

    @property
    def itemsize(self) -> int:
        """Stored bytes of one element; sub-byte types take a whole byte."""
        return storage_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def slices(self) -> Grid:
        """Who needs what: the layout's grid, or the whole tensor where there is none."""
        if self.layout is None or self.layout.device_mesh is None:
            return Grid.whole(self.shape)
        return self.layout.grid(self.shape, self.name)

    def stored_shape(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the chunk at ``index`` as stored, padding included."""
        return self.chunk_shape if self.chunk_shape is not None else self.storage.box(index).shape
