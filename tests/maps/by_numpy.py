"""What pieces make, by plain numpy: the referee of what maps compile to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import map_of
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.planning.piece import Piece, check_tiled

Array = npt.NDArray[Any]


def specs_of(arrays: Mapping[str, Array]) -> dict[str, TensorSpec]:
    """The tensors as a checkpoint would have them, whole."""
    return {
        name: TensorSpec(name, a.shape, a.dtype.name, Grid.whole(a.shape))
        for name, a in arrays.items()
    }


def mapped(
    text: Any, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None, **more: Any
) -> Mapped:
    """What a map makes of arrays."""
    given = map_of(text, sizes, **more)
    assert given is not None
    return given.applied(specs_of(arrays))


def made_by(
    text: Any, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None, **more: Any
) -> dict[str, Array]:
    """The arrays that a map makes, piece by piece."""
    return {
        made.spec.name: filled(made, arrays) for made in mapped(text, arrays, sizes, **more).tensors
    }


def filled(made: MappedTensor, arrays: Mapping[str, Array]) -> Array:
    """A tensor of a map, piece by piece; PlanError unless its pieces tile it."""
    check_tiled(made.spec, made.pieces)
    out = np.zeros(made.spec.shape, numpy_dtype(made.spec.dtype))
    for piece in made.pieces:
        place = out if piece.target_view is None else out.reshape(piece.target_view.shape)
        place[piece.target_box.slices] = _elements(piece, arrays, out.dtype)
    return out


def _elements(piece: Piece, arrays: Mapping[str, Array], dtype: np.dtype[Any]) -> Array:
    if piece.fill is not None:
        return np.broadcast_to(np.frombuffer(piece.fill, dtype)[0], piece.target_box.shape)
    source = arrays[piece.source]
    seen = source if piece.source_view is None else source.reshape(piece.source_view.shape)
    found: Array = seen[piece.source_box.slices].transpose(piece.axis_order)
    if piece.arithmetic is not None:
        by = piece.arithmetic
        with np.errstate(all="ignore"):
            found = found.astype(np.float32) * np.float32(by.multiply)
            found = found / np.float32(by.divide) + np.float32(by.add)
            return found.astype(dtype)
    return found.astype(dtype)


def assert_same_arrays(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Names, dtypes, shapes and every bit are alike."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes(), name
