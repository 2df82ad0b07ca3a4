"""Proves a map on an example: bit by bit, or to two units in the last place where the script rounds otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reshard.engine.cast import converted
from reshard.errors import ReshardError
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import map_of
from reshard.maps.mapped import MappedTensor
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Arrays = Mapping[str, Array]


def made_by(text: str, source: Arrays, sizes: Mapping[str, int]) -> dict[str, Array]:
    """The arrays that a map makes of others, in memory. Raises the errors of a map that does not fit them."""
    given = map_of(text if "\n" in text else f"{text}\n", sizes)
    if given is None:
        return {}
    specs = {
        name: TensorSpec(name, array.shape, array.dtype.name, Grid.whole(array.shape))
        for name, array in source.items()
    }
    kept = [r.source for r in rewrites(given.changes, list(specs), specs)]
    mapping = given.applied({name: specs[name] for name in kept})
    return {made.spec.name: _filled(made, source) for made in mapping.tensors}


def _filled(made: MappedTensor, source: Arrays) -> Array:
    import numpy as np

    out = np.zeros(made.spec.shape, numpy_dtype(made.spec.dtype))
    for piece in made.pieces:
        place = out if piece.target_view is None else out.reshape(piece.target_view.shape)
        place[piece.target_box.slices] = _elements(piece, source, out.dtype)
    return out


def _elements(piece: Piece, source: Arrays, dtype: Any) -> Array:
    import numpy as np

    if piece.fill is not None:
        return np.broadcast_to(np.frombuffer(piece.fill, dtype), piece.target_box.shape)
    array = source[piece.source]
    seen = array if piece.source_view is None else array.reshape(piece.source_view.shape)
    turned = seen[piece.source_box.slices].transpose(piece.axis_order)
    if not piece.is_computed:
        return turned
    return converted(turned, dtype, saturate=piece.saturate, arithmetic=piece.arithmetic)


def complaints(
    text: str, source: Arrays, target: Arrays, sizes: Mapping[str, int], *, is_rounded: bool
) -> Iterator[str]:
    """The differences between ``target`` and the map's output for ``source``; ``is_rounded`` allows two units in the last place."""
    try:
        made = made_by(text, source, sizes)
    except ReshardError as error:
        yield f"the map does not fit the example: {error}"
        return
    for name, array in made.items():
        if name not in target:
            yield f"the map makes {name!r}, which the script does not"
        elif array.shape != target[name].shape or array.dtype != target[name].dtype:
            made_by_script = f"{target[name].dtype.name} {list(target[name].shape)}"
            yield f"the map makes {name!r} of {array.dtype.name} {list(array.shape)}, the script of {made_by_script}"
        elif off := _differing(array, target[name], is_rounded=is_rounded):
            yield f"{name!r} differs in {off:,} of {array.size:,} elements"
    for name in target:
        if name not in made:
            yield f"the map makes no {name!r}"


def _differing(made: Array, wanted: Array, *, is_rounded: bool) -> int:
    import ml_dtypes
    import numpy as np

    unlike = made.view("u1").reshape(-1) != wanted.view("u1").reshape(-1) if made.size else made
    if not unlike.any():
        return 0
    a, b = made.astype(np.float64), wanted.astype(np.float64)
    slack = 0.0
    if is_rounded and made.dtype.kind not in "iub":
        info = ml_dtypes.finfo(made.dtype)  # type: ignore[no-untyped-call] # ml_dtypes has no types for it
        slack = 4.01 * 2.0 ** -(info.nmant + 1)
    is_near = (a == b) | (np.abs(a - b) <= slack * np.abs(b))
    return int((~is_near).sum())
