"""The targets that a map makes of an open checkpoint, with the rules before and after it.

Select and drop rules apply to names of the source, then the map, then rename and cast rules to names of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from reshard.engine.limits import Limits
from reshard.engine.read_digests import tensor_digests
from reshard.errors import VerificationError
from reshard.formats.base import Reader
from reshard.formats.contents import Leaf
from reshard.formats.leaf_paths import renamed
from reshard.formats.quantized import quantization_config
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.planning.piece import Piece
from reshard.planning.rules import Rewrite, kept_leaves, rewrites


def mapped_tensors(
    reader: Reader, given: GivenMap, changes: Changes
) -> tuple[Mapped, tuple[str, ...]]:
    """The targets of a map with the names and dtypes that they end up with, and the leaves that are left out."""
    every = given.changes + changes
    before = Changes(select=every.select, drop=every.drop)
    after = Changes(rename=every.rename, cast=every.cast)
    keys = {name for name, tensor in reader.tensors.items() if tensor.is_key}
    specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
    names = [leaf.name for leaf in reader.leaves]
    kept = [name for name in kept_leaves(before, names, specs) if name in specs]
    config = partial(quantization_config, reader.uri)
    mapping = given.applied({name: specs[name] for name in kept}, keys, config)
    left = set(kept)
    dropped = tuple(name for name in names if name not in left)
    if not after:
        return mapping, dropped
    made = {tensor.spec.name: tensor.spec for tensor in mapping.tensors}
    moved_keys = {t.spec.name for t in mapping.tensors if keys and keys & set(t.sources)}
    found = rewrites(after, list(made), made, moved_keys)
    return replace(mapping, tensors=tuple(map(_rewritten, mapping.tensors, found))), dropped


def leaf_of(reader: Reader, made: MappedTensor) -> Leaf:
    """The leaf of a tensor that a map makes."""
    return next(leaves_of(reader, [made]))


def leaves_of(reader: Reader, tensors: Iterable[MappedTensor]) -> Iterator[Leaf]:
    """The leaves of tensors that a map makes: new ones; those of PRNG keys keep their metadata."""
    trees = [item.name for item in reader.container.items if item.is_tree]
    blank, items = Leaf("", (), trees[0] if trees else ""), reader.container.naming_items
    for made in tensors:
        source = next((p.source for p in made.pieces if p.fill is None), None)
        leaf = blank
        if source is not None and reader.tensors[source].is_key:
            leaf = replace(blank, meta=next(x.meta for x in reader.leaves if x.name == source))
        yield renamed(leaf, made.spec.name, items)


def unequal(
    reader: Reader, pairs: Sequence[tuple[str, str]], seen: Mapping[str, str], limits: Limits
) -> Iterator[tuple[str, str]]:
    """The pairs of source tensors that differ though a map says that they are equal (``same_as``).

    ``seen``: known digests; a tensor without one is read for its digest alone.
    """
    names = {name for pair in pairs for name in pair if name not in seen}
    known = {**seen, **(tensor_digests(reader, limits, names) if names else {})}
    return (pair for pair in pairs if known[pair[0]] != known[pair[1]])


def refuse_unequal(
    reader: Reader, pairs: Sequence[tuple[str, str]], seen: Mapping[str, str], limits: Limits
) -> None:
    """Raises VerificationError for the first pair that ``unequal`` finds; arguments as there."""
    for first, second in unequal(reader, pairs, seen, limits):
        raise VerificationError(
            f"the map says that {first!r} equals {second!r} (same_as), but their digests differ; give the first a rule of its own"
        )


def _rewritten(made: MappedTensor, rewrite: Rewrite) -> MappedTensor:
    if rewrite.target == made.spec.name and rewrite.dtype is None:
        return made
    dtype = rewrite.dtype or made.spec.dtype
    return in_dtype(made, dtype, rewrite.target, saturate=rewrite.saturate)


def in_dtype(
    made: MappedTensor, dtype: str, name: str | None = None, *, saturate: bool = False
) -> MappedTensor:
    """The same tensor in another dtype, perhaps under another name; casts round once, together with arithmetic."""
    spec = replace(made.spec, name=name or made.spec.name, dtype=dtype)
    if dtype != made.spec.dtype and any(piece.fill is not None for piece in made.pieces):
        made = replace(made, pieces=tuple(_cast_fill(piece, dtype) for piece in made.pieces))
    pieces = tuple(
        replace(
            piece,
            target=spec.name,
            target_dtype=dtype,
            saturate=saturate,
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
