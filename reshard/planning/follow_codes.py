"""Follower: a companion of codes, such as their scales, that a target takes as it takes the codes.

A piece of the codes becomes a piece of the companion whose boxes are smaller by the size of a block::

    codes   384 × 512: rows 128:256 → rows 0:128       scales of 128 × 128   3 × 4: rows 1:2 → rows 0:1

So scales are turned, stacked, joined and split with their codes, wherever that parts no block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.quantized import WORDS, QuantizedPair, companion_tile
from reshard.geometry.grid import Box, Grid
from reshard.geometry.view import View
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece

PairsOfCodes = Mapping[str, QuantizedPair]
"""Pairs by the names of their codes, or of all their tensors."""

Specs = Mapping[str, TensorSpec]


class Follower(Struct, frozen=True, gc=False):
    """A companion in a target, and the pieces that tile it."""

    spec: TensorSpec
    pieces: tuple[Piece, ...]


def companion_name(pair: QuantizedPair, companion: str, target: str) -> str | None:
    """The name of a companion whose codes are named ``target``; None where that does not end as the codes' own name does."""
    same = len(pair.name if companion.startswith(pair.name) else pair.stem)
    ending = pair.name[same:]
    return target.removesuffix(ending) + companion[same:] if target.endswith(ending) else None


def about_pair(pair: QuantizedPair) -> str:
    """A pair in words, for the errors of rules that would part it."""
    return f"{pair.name!r} holds codes ({pair.scheme}), which mean nothing without {pair.companions['scale']!r}"


def takes_all(pieces: Sequence[Piece], specs: Specs) -> bool:
    """True if a target is all of one tensor, as it is but for the dtype."""
    piece, box = pieces[0], pieces[0].source_box
    if len(pieces) > 1 or any(box.start) or piece.is_viewed or piece.arithmetic is not None:
        return False
    return box.stop == specs[piece.source].shape and piece.axis_order == tuple(range(box.rank))


def followers(pieces: Sequence[Piece], pairs: PairsOfCodes, specs: Specs) -> Iterator[Follower]:
    """The companions of a target that has codes, by its pieces; ``specs``: of the source.

    Companions whose names do not follow from the target's are left out. Raises PlanError where a companion cannot follow: a block is
    parted, or scales for whole tensors or dimensions would have to become one.
    """
    target, sources = pieces[0].target, list(dict.fromkeys(piece.source for piece in pieces))
    first = next(pairs[name] for name in sources if name in pairs)
    for name in sources:
        if name not in pairs or pairs[name].companions.keys() != first.companions.keys():
            raise PlanError(
                f"{target!r} would have {first.name!r} together with {repr(name) if name else 'padding'}, which has not the same companions: "
                f"{about_pair(first)}; keep them apart (map), or make weights of the codes first (dequantize)"
            )
    for role in first.companions:
        every = {companion_name(pairs[n], pairs[n].companions[role], target) for n in sources}
        made = every.pop()
        if not every and made is not None:
            yield _follower(made, role, pieces, pairs, specs)


def _follower(
    name: str, role: str, pieces: Sequence[Piece], pairs: PairsOfCodes, specs: Specs
) -> Follower:
    first = pieces[0]
    companion = specs[pairs[first.source].companions[role]]
    has_one = len({piece.source for piece in pieces}) == 1 and math.prod(companion.shape) == 1
    if has_one or takes_all(pieces, specs):
        spec = TensorSpec(name, companion.shape, companion.dtype, Grid.whole(companion.shape))
        return Follower(spec, (Piece.whole(companion, spec),))
    filled = Box.around([piece.target_box for piece in pieces]).stop
    parts = [_part(piece, pairs[piece.source], role, specs, filled) for piece in pieces]
    if len({(blocks, shape, part.source_dtype) for part, blocks, shape in parts}) > 1:
        raise _refused(first, pairs[first.source], "the scales of the others have other blocks or dtypes")  # fmt: skip
    shape = parts[0][2]
    spec = TensorSpec(name, shape, companion.dtype, Grid.whole(shape))
    return Follower(spec, tuple(replace(part, target=name) for part, _, _ in parts))


def _part(
    piece: Piece, pair: QuantizedPair, role: str, specs: Specs, filled: Sequence[int]
) -> tuple[Piece, tuple[int, ...], tuple[int, ...]]:
    """The piece of a companion for a piece of its codes; the codes that share a scale along each dimension of the target; its shape there.

    ``filled``: the shape of the codes' target, or of its view.
    """
    codes, companion = specs[pair.name], specs[pair.companions[role]]
    tile = companion_tile(pair, role, codes, companion)
    if tile is None or len(companion.shape) != len(codes.shape):
        why = f"{companion.name!r} of shape {list(companion.shape)} has no part for a part of them"
        raise _refused(piece, pair, why)
    if codes.dtype in WORDS and list(piece.axis_order) != sorted(piece.axis_order):
        raise _refused(piece, pair, "an element holds several codes of its row")
    before, after = _sizes(piece.source_view, codes.shape), _sizes(piece.target_view, filled)
    try:
        tiles = _spread(before, tile)
        flat = tuple(chain(*tiles))
        turned = tuple(flat[axis] for axis in piece.axis_order)
        rest = iter(turned)
        after_tiles = tuple(tuple(islice(rest, len(sizes))) for sizes in after)
        blocks = tuple(map(math.prod, after_tiles))
        sides = zip(turned, piece.target_box.shape, chain(*after), strict=True)
        if after_tiles != _spread(after, blocks) or any(not t and n < of for t, n, of in sides):
            raise ValueError
        source_box = _in_blocks(piece.source_box, flat, tuple(chain(*before)))
        target_box = _in_blocks(piece.target_box, turned, tuple(chain(*after)))
    except ValueError:
        why = "parts must be multiples of blocks, and a scale for all of a dimension fits no other"
        raise _refused(piece, pair, why) from None
    made = _counts(after, after_tiles)
    moved = replace(
        piece, source=companion.name, source_box=source_box, target_box=target_box, source_dtype=companion.dtype,
        target_dtype=companion.dtype, source_view=piece.source_view and View(_counts(before, tiles)),
        target_view=piece.target_view and View(made), arithmetic=None,
    )  # fmt: skip
    return moved, blocks, tuple(map(math.prod, made))


_Sizes = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor the sizes into which a view splits it."""


def _sizes(view: View | None, shape: Sequence[int]) -> _Sizes:
    return tuple((size,) for size in shape) if view is None else view.sizes


@lru_cache(maxsize=1024)  # the layers of a model repeat their shapes
def _spread(sizes: _Sizes, tile: tuple[int, ...]) -> _Sizes:
    """The block along each of the sizes; ValueError where it is no box of them.

    >>> _spread(((4, 64), (1, 576), (2, 8)), (128, 128, 0))
    ((2, 64), (1, 128), (0, 0))
    """
    found: list[list[int]] = []
    for along, rest in zip(sizes, tile, strict=True):
        found.append([])
        for at, size in reversed(list(enumerate(along))):
            takes_rest = not rest or math.prod(along[:at]) == 1
            own = 1 if size == 1 < len(along) else rest if takes_rest else math.gcd(rest, size)
            if own not in (rest, size):
                raise ValueError
            found[-1].insert(0, own)
            rest = rest // own if own else 0
    return tuple(map(tuple, found))


@lru_cache(maxsize=1024)
def _counts(sizes: _Sizes, tiles: _Sizes) -> _Sizes:
    """The numbers of scales along each size."""
    pairs = (zip(*each, strict=True) for each in zip(sizes, tiles, strict=True))
    return tuple(tuple(-(-size // tile) if tile else 1 for size, tile in each) for each in pairs)


def _in_blocks(box: Box, tiles: Sequence[int], shape: Sequence[int]) -> Box:
    """A box counted in blocks; ValueError where it parts one."""
    sides = zip(box.start, box.stop, tiles, shape, strict=True)
    if any(t and (a % t or (b % t and b != whole)) for a, b, t, whole in sides):
        raise ValueError
    return box.in_tiles(tiles)


def _refused(piece: Piece, pair: QuantizedPair, why: str) -> PlanError:
    return PlanError(
        f"{piece.target!r} would have {piece.source!r} in part, in another order or as other numbers: {about_pair(pair)}, but {why}; move both "
        "whole, by rules of the map with 'from' and 'to' alone, or make weights of the codes first (dequantize)"
    )
