"""Refuses casts, maps, names, selections and cuts that separate quantised weights from their scales."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from reshard.errors import PlanError
from reshard.formats.quantized import Quantized, QuantizedPair
from reshard.geometry.grid import Box, Grid
from reshard.planning.follow_codes import (
    PairsOfCodes,
    Specs,
    about_pair,
    companion_name,
    followers,
    takes_all,
)
from reshard.planning.piece import Piece

_SHOWN = 3
_MOST_COUNTS = 65


def refuse_parted(
    found: Quantized | None,
    specs: Specs,
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
    halves = {half: pair for pair in found.pairs.values() for half in pair.halves}
    by_name = {p[0].target: p for p in targets if any(piece.source in halves for piece in p)}
    followed = _followed(found, specs, by_name)
    copies, casts = defaultdict[str, list[str]](list), dict[str, str]()
    for target, pieces in by_name.items():
        for piece in pieces:
            if (name := piece.source) not in halves:
                continue
            if target not in followed and not takes_all(pieces, specs):
                raise PlanError(
                    f"{target!r} would have {name!r} in part, in another order or as other numbers: {about_pair(halves[name])}; move both alike: "
                    "leave the others out of the map's rules, and they follow their codes, or leave all of them out (drop)"
                )
            if piece.is_cast:
                casts[name] = piece.target_dtype
            copies[name].append(target)
    if casts:
        raise _cast(casts, halves, specs, in_memory)
    for pair in () if in_memory else found.pairs.values():
        _refuse_apart(pair, copies)


def _followed(found: Quantized, specs: Specs, targets: Mapping[str, Sequence[Piece]]) -> set[str]:
    """The targets that have codes in part or in another order, with their companions, where these are as their codes are."""
    names: set[str] = set()
    for target, pieces in targets.items():
        if takes_all(pieces, specs):
            continue  # the usual case; there may be 100,000
        if any(piece.source in found.pairs for piece in pieces):
            expected = {one.spec.name: one.pieces for one in followers(pieces, found.pairs, specs)}
            if expected and all(set(own) == set(targets.get(n, ())) for n, own in expected.items()):
                names |= {target, *expected}
    return names


def _cast(
    casts: Mapping[str, str], halves: PairsOfCodes, specs: Specs, in_memory: bool
) -> PlanError:
    """The error for halves that are cast, by the dtypes that they would have."""
    names = [name for name in halves if name in casts]
    first, some = names[0], ", ".join(map(repr, names[:_SHOWN])) + ", …" * (len(names) > _SHOWN)
    rules = " and ".join(f"cast '{rule}'" for rule in _exceptions(halves, specs, names))
    remedy = f"give {rules} before the other casts, which leave them as they are (cast), or take the weights that they stand for (dequantize)"
    return PlanError(
        f"{first!r} would be cast from {specs[first].dtype} to {casts[first]}: {about_pair(halves[first])}, and a cast of either alters the "
        f"weights. {len(names):,} tensor{' is' if len(names) == 1 else 's are'} in the way ({some}); "
        f"{'take them as they are stored (like, cast)' if in_memory else remedy}"
    )


def _exceptions(halves: PairsOfCodes, specs: Specs, casts: Sequence[str]) -> Iterator[str]:
    """Rules that cast each of ``casts`` to the dtype that it has. If possible they match no tensor outside of pairs."""
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


def _refuse_apart(pair: QuantizedPair, copies: Mapping[str, Sequence[str]]) -> None:
    """Raises PlanError if halves are not all kept, or companions do not stand beside the codes as before; their common name may change."""
    kept = [name for name in pair.halves if name in copies]
    missing = [name for name in pair.halves if name not in copies]
    if kept and missing:
        raise PlanError(
            f"{kept[0]!r} would be kept without {missing[0]!r}: {about_pair(pair)}; keep both, or leave both out (select, drop)"
        )
    if missing or all(copies[name] == [name] for name in kept):
        return  # the usual case; there may be 100,000
    for target in copies[pair.name]:
        for companion in pair.companions.values():
            expected = companion_name(pair, companion, target)
            # Programs write the same tree with either separator.
            alike = {name.replace("/", ".") for name in copies[companion]}
            if expected is None or expected.replace("/", ".") not in alike:
                raise PlanError(
                    f"{companion!r} would be written as {copies[companion][0]!r}, but {pair.name!r} as {target!r}, and readers look for both under "
                    f"names that differ as {pair.name!r} and {companion!r} do: {about_pair(pair)}; rename both alike (rename)"
                )


def refuse_cut(pair: QuantizedPair, target: str, slices: Grid | Sequence[Box]) -> None:
    """Raises PlanError if slices of the codes end inside a block."""
    for dim, grain in enumerate(pair.grain):
        cuts = slices.cuts[dim] if isinstance(slices, Grid) else {end for box in slices for end in (box.start[dim], box.stop[dim])}  # fmt: skip
        *inner, size = sorted(cuts) or (0,)
        inside = next((cut for cut in inner if cut % grain), None)
        if inside is not None:
            counts = [n for n in range(2, _MOST_COUNTS) if size % (n * grain) == 0]
            work = f", into {' or '.join(map(str, counts))} equal parts" if counts else ""
            raise PlanError(
                f"{target!r} would be cut at {inside} of {size} along dimension {dim}, inside a block of {grain}: {about_pair(pair)}, and a "
                f"slice with a part of a block has no scale of its own; cut that dimension at multiples of {grain} only{work}, or leave it "
                "whole (layout)"
            )
