"""Refuses casts, maps, names, selections and cuts that separate quantised weights from their scales."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.quantized import Quantized, QuantizedPair
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece

_SHOWN = 3


class _Moves(Struct, frozen=True):
    """The targets of the halves of pairs, by their names in the source.

    Attributes:
        copies: the names in the target of whole tensors that keep their bits.
        casts: the dtypes of whole tensors that are cast.
        parts: a target that changes a tensor: a part of it, another order, or other numbers.
    """

    copies: dict[str, list[str]]
    casts: dict[str, str]
    parts: dict[str, str]


def refuse_parted(
    found: Quantized | None,
    specs: Mapping[str, TensorSpec],
    targets: Iterable[Sequence[Piece]],
    *,
    in_memory: bool = False,
) -> None:
    """Raises PlanError if a target changes a half of a pair, has one half alone, or has both under unrelated names.

    Args:
        specs: of the source.
        targets: the pieces of each target tensor.
        in_memory: true if a program takes the tensors. It may take any of them, but not codes as if they were numbers.
    """
    if found is None:
        return
    moves = _moves(found, specs, targets)
    for pair in found.pairs.values() if moves.casts or moves.parts else ():
        _refuse_other_forms(pair, found, specs, moves, in_memory)
    for pair in () if in_memory else found.pairs.values():
        missing = [name for name in pair.halves if name not in moves.copies]
        if not missing:
            _refuse_names(pair, moves.copies)
        elif len(missing) <= len(pair.companions):
            kept = next(name for name in pair.halves if name in moves.copies)
            raise PlanError(
                f"{kept!r} would be kept without {missing[0]!r}: {_about(pair)}; keep both, or leave both out (select, drop)"
            )


def _moves(
    found: Quantized, specs: Mapping[str, TensorSpec], targets: Iterable[Sequence[Piece]]
) -> _Moves:
    halves = {half for pair in found.pairs.values() for half in pair.halves}
    moves = _Moves(defaultdict(list), {}, {})
    for pieces in targets:
        for piece in pieces:
            if piece.source not in halves:
                continue
            if len(pieces) > 1 or not _is_whole(piece, specs[piece.source].shape):
                moves.parts[piece.source] = piece.target
            elif piece.is_cast:
                moves.casts[piece.source] = piece.target_dtype
            else:
                moves.copies[piece.source].append(piece.target)
    return moves


def _is_whole(piece: Piece, shape: tuple[int, ...]) -> bool:
    """True if a piece takes all of a tensor, as it is but for the dtype."""
    box = piece.source_box
    if box.stop != shape or any(box.start) or piece.is_viewed:
        return False
    return piece.arithmetic is None and piece.axis_order == tuple(range(len(shape)))


def _about(pair: QuantizedPair) -> str:
    return f"{pair.name!r} holds codes ({pair.scheme}), which mean nothing without {pair.companions['scale']!r}"


def _refuse_other_forms(
    pair: QuantizedPair,
    found: Quantized,
    specs: Mapping[str, TensorSpec],
    moves: _Moves,
    in_memory: bool,
) -> None:
    for name in pair.halves:
        if name in moves.parts:
            raise PlanError(
                f"{moves.parts[name]!r} would have {name!r} in part, in another order or as other numbers: {_about(pair)}; move both whole, by "
                "rules of the map with 'from' and 'to' alone, or leave both out (drop)"
            )
        if name in moves.casts:
            casts = [half for p in found.pairs.values() for half in p.halves if half in moves.casts]
            some = ", ".join(map(repr, casts[:_SHOWN])) + ", …" * (len(casts) > _SHOWN)
            rules = " and ".join(f"cast '{rule}'" for rule in _exceptions(found, specs, casts))
            remedy = f"give {rules} before the other casts, which leave them as they are (cast), or take the weights that they stand for (dequantize)"
            raise PlanError(
                f"{name!r} would be cast from {specs[name].dtype} to {moves.casts[name]}: {_about(pair)}, and a cast of either alters the "
                f"weights. {len(casts):,} tensor{' is' if len(casts) == 1 else 's are'} in the way ({some}); "
                f"{'take them as they are stored (like, cast)' if in_memory else remedy}"
            )


def _exceptions(
    found: Quantized, specs: Mapping[str, TensorSpec], casts: Sequence[str]
) -> Iterator[str]:
    """Rules that cast each of ``casts`` to the dtype that it has. If possible they match no tensor outside of pairs."""
    halves = {half for pair in found.pairs.values() for half in pair.halves}
    others = [spec for name, spec in specs.items() if name not in halves]
    dtypes = {spec.dtype for spec in others}
    ends = {_end(spec.name, 1) for spec in others}
    rules: dict[str, None] = {}
    for name in casts:
        dtype, last = specs[name].dtype, _end(name, 1)
        pattern = re.escape(_end(name, 2) if last in ends else last)
        rules[f"{dtype}={dtype}" if dtype not in dtypes else rf"\b{pattern}$={dtype}"] = None
    yield from rules


def _end(name: str, parts: int) -> str:
    """The last parts of a name.

    >>> _end("a/kernel/scale", 2), _end("scale", 2)
    ('kernel/scale', 'scale')
    """
    return re.sub(rf".*[./](?=([^./]*[./]){{{parts - 1}}}[^./]*$)", "", name, flags=re.DOTALL)


def _refuse_names(pair: QuantizedPair, copies: Mapping[str, Sequence[str]]) -> None:
    """Raises PlanError if companions do not stand beside the codes as before; their common name may change."""
    if copies[pair.name] == [pair.name] and all([n] == copies[n] for n in pair.companions.values()):
        return  # the usual case; there may be 100,000
    for target in copies[pair.name]:
        for companion in pair.companions.values():
            same = len(pair.name if companion.startswith(pair.name) else pair.stem)
            ending, its = pair.name[same:], companion[same:]
            expected = target.removesuffix(ending) + its
            # Programs write the same tree with either separator.
            if target.endswith(ending) and expected.replace("/", ".") in {
                name.replace("/", ".") for name in copies[companion]
            }:
                continue
            raise PlanError(
                f"{companion!r} would be written as {copies[companion][0]!r}, but {pair.name!r} as {target!r}, and readers look for both under names "
                f"that differ as {pair.name!r} and {companion!r} do: {_about(pair)}; rename both alike (rename)"
            )


def refuse_cut(pair: QuantizedPair, target: str, slices: Grid | Sequence[Box]) -> None:
    """Raises PlanError if slices of the codes end inside a block."""
    for dim, grain in enumerate(pair.grain):
        if isinstance(slices, Grid):
            cuts: Sequence[int] = slices.cuts[dim]
        else:
            cuts = sorted({box.stop[dim] for box in slices} | {box.start[dim] for box in slices})
        *inner, size = cuts or (0,)
        inside = next((cut for cut in inner if cut % grain), None)
        if inside is not None:
            raise PlanError(
                f"{target!r} would be cut at {inside} of {size} along dimension {dim}, inside a block of {grain}: {_about(pair)}, and a slice with "
                f"a part of a block has no scale of its own; cut that dimension at multiples of {grain} only, or leave it whole (layout)"
            )
