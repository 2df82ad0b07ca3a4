"""What a map makes of an open checkpoint, with the rules that come before it and after it.

Select and drop rules apply to names of the source, then the map, then rename and cast rules to names of the target.
"""

from __future__ import annotations

from msgspec.structs import replace

from reshard.formats.base import Reader
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.planning.piece import Piece
from reshard.planning.rules import Rewrite, rewrites


def mapped_tensors(
    reader: Reader, given: GivenMap, changes: Changes
) -> tuple[Mapped, tuple[str, ...]]:
    """The targets of a map with the names and dtypes that they end up with, and the leaves that are left out."""
    before = Changes(select=changes.select, drop=(*given.changes.drop, *changes.drop))
    after = Changes(rename=changes.rename, cast=(*given.changes.cast, *changes.cast))
    keys = {name for name, tensor in reader.tensors.items() if tensor.is_key}
    specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
    names = [leaf.name for leaf in reader.leaves]
    kept = [r.source for r in rewrites(before, names, specs, keys) if r.source in specs]
    mapping = given.applied({name: specs[name] for name in kept}, keys)
    made = {tensor.spec.name: tensor.spec for tensor in mapping.tensors}
    moved_keys = {t.spec.name for t in mapping.tensors if keys & set(t.sources)}
    found = rewrites(after, list(made), made, moved_keys)
    tensors = tuple(map(_rewritten, mapping.tensors, found))
    left = set(kept)
    dropped = tuple(name for name in names if name not in left)
    return replace(mapping, tensors=tensors), dropped


def _rewritten(made: MappedTensor, rewrite: Rewrite) -> MappedTensor:
    if rewrite.target == made.spec.name and rewrite.dtype is None:
        return made
    dtype = rewrite.dtype or made.spec.dtype
    spec = replace(made.spec, name=rewrite.target, dtype=dtype)
    if rewrite.dtype is not None and any(piece.fill is not None for piece in made.pieces):
        made = replace(made, pieces=tuple(_cast_fill(piece, dtype) for piece in made.pieces))
    pieces = tuple(
        replace(
            piece,
            target=spec.name,
            target_dtype=dtype,
            saturate=rewrite.saturate,
            source_dtype=dtype if piece.fill is not None else piece.source_dtype,
        )
        for piece in made.pieces
    )
    return replace(made, spec=spec, pieces=pieces)


def _cast_fill(piece: Piece, dtype: str) -> Piece:
    """The element that fills a piece, in another dtype."""
    import numpy as np

    from reshard.geometry.dtypes import numpy_dtype

    if piece.fill is None:
        return piece
    element = np.frombuffer(piece.fill, numpy_dtype(piece.target_dtype))
    return replace(piece, fill=element.astype(numpy_dtype(dtype)).tobytes())
