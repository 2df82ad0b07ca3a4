"""Mapped: the target tensors that a map makes of source tensors, each with its pieces; from metadata alone.

Every tensor of the source is taken by one rule or dropped, and every element of a target is written once: what cannot be
proved is refused before a byte moves.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.quantized import Config, find_pairs
from reshard.geometry.dtypes import PACKED, packed_text
from reshard.geometry.grid import Grid
from reshard.layout.changes import kind_of
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.compile_rule import (
    CompiledRule,
    TargetPieces,
    arithmetic_of,
    assignments,
    compile_rule,
    fill_element,
)
from reshard.maps.rule import (
    MAX_SHOWN,
    MapRule,
    Matched,
    NameTable,
    dimension_sizes,
    index_sizes,
    match_sources,
)
from reshard.planning.follow_codes import followers
from reshard.planning.piece import Piece
from reshard.planning.rules import checked_name

MAX_PIECES = 2_000_000
"""Most pieces of all targets together."""


class MappedTensor(Struct, frozen=True, gc=False):
    """A target tensor and the pieces that tile it.

    Attributes:
        rule: the label of the rule that makes it.
    """

    spec: TensorSpec
    pieces: tuple[Piece, ...]
    rule: str

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of its source tensors, each once."""
        return tuple(dict.fromkeys(p.source for p in self.pieces if p.fill is None))


class Mapped(Struct, frozen=True):
    """The targets that a map makes of a source.

    Attributes:
        tensors: the targets, in the order of their names; numbers in names count as numbers.
        equal: pairs of source tensors that must be equal; only the second is written.
        cropped: sources that a rule takes only in part.
    """

    tensors: tuple[MappedTensor, ...]
    equal: tuple[tuple[str, str], ...] = ()
    cropped: tuple[str, ...] = ()


def apply_rules(
    rules: Sequence[MapRule],
    sizes: Mapping[str, int],
    specs: Mapping[str, TensorSpec],
    keys: Collection[str] = (),
    config: Callable[[], Config | None] = lambda: None,
) -> Mapped:
    """The targets that rules make of these source tensors; ``keys`` are those that are PRNG keys.

    Scales and other companions of codes that no rule takes follow their codes; ``config``: as for ``find_pairs``.

    Raises PlanError, naming rule and tensor, for a rule that matches nothing, a tensor that no rule takes or that two take, a
    target that two rules make, sizes that contradict or do not follow, numbers that are left out, and elements that would be.
    """
    applying = _Applying(sizes, specs, frozenset(keys))
    moves = [rule for rule in rules if rule.same_as is None]
    for rule in sorted(moves, key=lambda rule: not rule.sources):
        applying.move(rule)
    for rule in rules:
        if rule.same_as is not None:
            applying.tie(rule)
    applying.follow(config)
    applying.refuse_left()
    return applying.mapped()


class _Applying:
    """The tensors that the rules so far have taken and made."""

    def __init__(
        self, sizes: Mapping[str, int], specs: Mapping[str, TensorSpec], keys: frozenset[str]
    ) -> None:
        self._sizes = sizes
        self._specs = specs
        self._keys = keys
        self._table = NameTable(specs)
        self._taken: dict[str, str] = {}
        self._made: dict[str, MappedTensor] = {}
        self._made_table: NameTable | None = None
        self._equal: list[tuple[str, str]] = []
        self._cropped: list[str] = []
        self._counts: dict[str, set[int]] = defaultdict(set)
        self._pieces = 0

    def move(self, rule: MapRule) -> None:
        """Makes the targets of a rule."""
        found = match_sources(rule, self._table, self._specs, self._sizes)
        for matched in found:
            self._take(matched.names.values(), rule)
            self._check_sources(matched, rule)
        counts = index_sizes(rule, found) if rule.sources else self._counts_for(rule)
        for index, count in counts.items():
            self._counts[index].add(count)
        if rule.shape is None:
            self._move_whole(rule, found[0], counts)
            return
        sizes = dimension_sizes(counts, self._sizes, rule)
        self._move_pieces(rule, found, compile_rule(rule, found, sizes))
        if rule.crop:
            self._cropped += [name for matched in found for name in matched.names.values()]

    def _counts_for(self, rule: MapRule) -> dict[str, int]:
        """The sizes of the indices of a rule without sources: those of the other rules, where these agree."""
        names = {name for template in rule.targets for name in template.all_names()}
        return {name: next(iter(self._counts[name])) for name in names if len(self._counts[name]) == 1}  # fmt: skip

    def _take(self, names: Collection[str], rule: MapRule) -> None:
        for name in filter(self._taken.__contains__, names):
            raise PlanError(
                f"{rule.label}: it takes {name!r}, which {self._taken[name]} takes, too; a tensor is taken by one rule: make one of "
                "them narrower, or write a second copy with same_as"
            )
        self._taken.update(dict.fromkeys(names, rule.label))

    def _check_sources(self, matched: Matched, rule: MapRule) -> None:
        """Raises PlanError for sources of a dtype that the rule cannot change; they have the same."""
        name, dtype = matched.spec.name, matched.spec.dtype
        changes = (rule.multiply, rule.divide, rule.add) != (None, None, None)
        moves_only = rule.shape is None and rule.cast is None and not changes
        for key in filter(self._keys.__contains__, () if moves_only else matched.names.values()):
            raise PlanError(
                f"{rule.label}: {key!r} is a PRNG key, which is only moved as it is; give it a rule with 'from' and 'to' alone"
            )
        if dtype in PACKED and not moves_only:
            raise PlanError(
                f"{rule.label}: {name!r} is {dtype}, {packed_text(dtype)}, which is only moved as it is; give it a rule with 'from' and 'to' "
                "alone"
            )
        if changes and {kind_of(dtype), kind_of(rule.cast or dtype)} != {"float"}:
            raise PlanError(
                f"{rule.label}: arithmetic is for floats, but {name!r} is {dtype}; leave multiply and add out"
            )

    def _move_whole(self, rule: MapRule, matched: Matched, counts: Mapping[str, int]) -> None:
        template = rule.targets[0]
        missing = [n for n in template.all_names() if n not in counts and n not in self._sizes]
        if missing:
            raise PlanError(
                f"{rule.label}: {missing[0]!r} in {template.text!r} is no index of 'from' and no size that is given (sizes)"
            )
        arithmetic = arithmetic_of(rule, {**self._sizes, **counts})
        first = matched.spec
        make = self._maker(rule, 0, first.shape, rule.cast or first.dtype)
        for values, name in matched.names.items():
            spec = make(dict(zip(matched.indices, values, strict=True)))
            piece = Piece.whole(self._specs[name], spec, arithmetic=arithmetic)
            self._add(rule, spec, (piece,))

    def _move_pieces(self, rule: MapRule, found: Sequence[Matched], compiled: CompiledRule) -> None:
        dtypes = {matched.spec.dtype for matched in found}
        if len(dtypes) > 1 and rule.cast is None:
            raise PlanError(
                f"{rule.label}: its sources are of several dtypes, {', '.join(sorted(dtypes))}; name the one of the target (cast)"
            )
        dtype = rule.cast or (dtypes.pop() if dtypes else "float32")
        element = fill_element(rule, dtype)
        self._refuse_many(rule, math.prod(compiled.loops.values()))
        makes = [
            (self._maker(rule, number, shape, dtype), TargetPieces(found, compiled, some, element))
            for number, (shape, some) in enumerate(zip(compiled.shapes, compiled.patterns, strict=True))
        ]  # fmt: skip
        for values in assignments(compiled.loops):
            for make, pieces in makes:
                spec = make(values)
                self._refuse_many(rule, pieces.most)
                self._add(rule, spec, tuple(pieces.all(spec, values)))

    def _maker(
        self, rule: MapRule, number: int, shape: tuple[int, ...], dtype: str
    ) -> Callable[[Mapping[str, int]], TensorSpec]:
        """A function that makes the specs of a rule's target by the numbers of its indices."""
        template, grid = rule.targets[number], Grid.whole(shape)
        name_of, sizes = template.namer(), self._sizes
        sizes = {name: sizes[name] for name in template.all_names() if name in sizes}

        def make(values: Mapping[str, int]) -> TensorSpec:
            try:
                name = checked_name(template.text, name_of({**sizes, **values}))
            except ValueError as error:
                raise PlanError(f"{rule.label}: {error}") from None
            if name in self._made:
                other = self._made[name].rule
                twice = "it makes it twice" if other == rule.label else f"{other} makes it, too"
                raise PlanError(
                    f"{rule.label}: it makes {name!r}, but {twice}; name the targets apart"
                )
            return TensorSpec(name, shape, dtype, grid)

        return make

    def _add(self, rule: MapRule, spec: TensorSpec, pieces: tuple[Piece, ...]) -> None:
        self._refuse_many(rule, len(pieces))
        self._pieces += len(pieces)
        self._made[spec.name] = MappedTensor(spec, pieces, rule.label)
        if self._made_table is not None:
            self._made_table.add(spec.name)

    def _refuse_many(self, rule: MapRule, more: int) -> None:
        """Raises PlanError where ``more`` pieces are too many; an index may stand for 2^40 tensors."""
        if self._pieces + more > MAX_PIECES:
            raise PlanError(
                f"{rule.label}: the map makes more than {MAX_PIECES:,} pieces; write it in several maps"
            )

    def tie(self, rule: MapRule) -> None:
        """Notes sources that must be equal, or makes a target once more."""
        if rule.sources:
            self._tie_sources(rule)
        else:
            self._tie_targets(rule)

    def _tie_sources(self, rule: MapRule) -> None:
        template = rule.same_as
        assert template is not None  # noqa: S101  the caller looks
        for matched in match_sources(rule, self._table, self._specs, self._sizes):
            self._take(matched.names.values(), rule)
            for values, name in matched.names.items():
                at = {**self._sizes, **dict(zip(matched.indices, values, strict=True))}
                self._equal.append((name, self._other_source(rule, name, template.name(at))))

    def _other_source(self, rule: MapRule, name: str, other: str) -> str:
        mine, found = self._specs[name], self._specs.get(other)
        if found is None:
            near = self._table.nearest(other)
            raise PlanError(
                f"{rule.label}: the source has no {other!r}{f'; the nearest is {near!r}' if near else ''}"
            )
        if (mine.shape, mine.dtype) != (found.shape, found.dtype):
            raise PlanError(
                f"{rule.label}: {name!r} is {mine.dtype} {list(mine.shape)}, but {other!r}, which it must equal, is {found.dtype} "
                f"{list(found.shape)}"
            )
        return other

    def _tie_targets(self, rule: MapRule) -> None:
        template = rule.same_as
        assert template is not None  # noqa: S101  the caller looks
        if self._made_table is None:
            self._made_table = NameTable(self._made)
        try:
            found = self._made_table.matching(template, self._sizes)
            indices = template.indices(self._sizes)
        except ValueError as error:
            raise PlanError(f"{rule.label}: {error}") from None
        if not found:
            raise PlanError(
                f"{rule.label}: no rule makes {template.text!r}, of which the target is a copy"
            )
        maker = cache(partial(self._maker, rule, 0))  # there are few shapes
        for values, name in found.items():
            copied = self._made[name]
            make = maker(copied.spec.shape, copied.spec.dtype)
            spec = make(dict(zip(indices, values, strict=True)))
            pieces = tuple(replace(piece, target=spec.name) for piece in copied.pieces)
            self._add(rule, spec, pieces)

    def follow(self, config: Callable[[], Config | None]) -> None:
        """Makes the targets of companions that no rule takes: as their codes are moved, turned, joined and split, under names beside theirs."""
        found = None
        if len(self._taken) < len(self._specs):
            found = find_pairs(self._specs, config)
        if found is None:
            return
        waiting = {name: pair.name for pair in found.pairs.values() for name in pair.companions.values() if name not in self._taken}  # fmt: skip
        codes = set(waiting.values())
        for made in list(self._made.values()):
            if codes.isdisjoint(made.sources):
                continue
            for one in followers(made.pieces, found.pairs, self._specs):
                sources = {piece.source for piece in one.pieces}
                if sources <= waiting.keys() and one.spec.name not in self._made:
                    self._taken.update(dict.fromkeys(sources, made.rule))
                    self._made[one.spec.name] = MappedTensor(one.spec, one.pieces, made.rule)

    def refuse_left(self) -> None:
        """Raises PlanError for source tensors that no rule takes, and for targets that lie below others."""
        left = [name for name in self._specs if name not in self._taken]
        if left:
            some = ", ".join(map(repr, left[:MAX_SHOWN])) + (", …" if len(left) > MAX_SHOWN else "")
            raise PlanError(
                f"no rule of the map takes {len(left):,} of {len(self._specs):,} tensors ({some}); write a rule for each, or name them in "
                "drop"
            )
        for name in self._made:
            parent = name.rpartition("/")[0]
            while parent:
                if parent in self._made:
                    raise PlanError(
                        f"{self._made[name].rule}: it makes {name!r}, but {parent!r} is a tensor itself; choose another name"
                    )
                parent = parent.rpartition("/")[0]

    def mapped(self) -> Mapped:
        """The targets in the order of their names."""
        ordered = sorted(self._made.values(), key=lambda made: natural(made.spec.name))
        return Mapped(tuple(ordered), tuple(self._equal), tuple(dict.fromkeys(self._cropped)))


def natural(name: str) -> str:
    """A key by which names are sorted so that ``layers.2`` comes before ``layers.10``.

    Parts of text and numbers take turns. Each ends with ``\\0``, so that a part is compared before those behind it.
    """
    parts = _NUMBERS.split(name)
    parts[1::2] = [
        f"\1{p.zfill(20)}" if p.isascii() and len(p) < 20 else f"\0{p}" for p in parts[1::2]
    ]
    return "\0".join(parts)


_NUMBERS = re.compile(r"(\d+)")
