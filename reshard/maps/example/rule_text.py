"""The text of a rule: a draft in the words of maps, with a mark in place of each size and number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from reshard.maps.example.copies import Fit, UnexplainedError
from reshard.maps.example.drafts import End, LoopName, RuleDraft

Loops = list[tuple[LoopName, int, int]]
"""Name, count and step of each loop."""


IN_NAMES = "name"
"""The place of a size that no tensor has: an index of names."""


class Length(Struct, frozen=True):
    """A pad or a crop: the mark of the dimension, and its length."""

    mark: str
    length: int


class RuleText(Struct, frozen=True):
    """A rule with marks: ``<0>`` is a size, ``#0#`` a number in a name.

    Attributes:
        sizes, numbers: their values.
        within: for each size the tensors that have it, so that two of one tensor get two names.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    shape: str
    pads: tuple[Length, ...]
    crops: tuple[Length, ...]
    sizes: tuple[int, ...]
    numbers: tuple[int, ...]
    within: tuple[frozenset[str], ...]
    fit: Fit
    fill: float | None
    off: int
    cast: str | None

    @property
    def skeleton(self) -> tuple[object, ...]:
        """The parts that are equal in the same rule of another example."""
        pads = tuple(length.mark for length in self.pads)
        crops = tuple(length.mark for length in self.crops)
        return (
            self.sources,
            self.targets,
            self.shape,
            pads,
            crops,
            self.cast,
            self.fit.addend,
            self.fit.divides,
        )


def rule_text(draft: RuleDraft) -> RuleText:
    """The draft in words; UnexplainedError where maps have no words for it."""
    writer = _Writer(draft)
    left = [writer.side("source", n, end) for n, end in enumerate(draft.sources)]
    right = [writer.side("target", n, end) for n, end in enumerate(draft.targets)]
    shape = f"{', '.join(left)} -> {', '.join(right)}" if left else f"-> {', '.join(right)}"
    return writer.text(shape)


class _Writer:
    """The marks that were given so far."""

    def __init__(self, draft: RuleDraft) -> None:
        self._draft = draft
        self._class: dict[LoopName, LoopName] = {key: key for key in draft.counts}
        self._pads: list[tuple[LoopName, int]] = []
        self._crops: list[tuple[LoopName, int]] = []
        self._within: dict[LoopName, set[str]] = {}
        self._constants: dict[LoopName, int] = {}

    def side(self, side: str, number: int, end: End) -> str:
        """The words of one tensor, with ``<KEY>`` for each dimension."""
        shape = end.kind.shape
        entries = list(self._draft.steps(side, number))
        gaps = self._crops if side == "source" else self._pads
        axes = []
        for axis, size in enumerate(shape):
            stride = math.prod(shape[axis + 1 :])
            along = [
                (start // stride % size, _along(loops, stride, size)) for start, loops in entries
            ]
            words = (
                self._weave(size, along, gaps, f"{side}{number}")
                if entries
                else [self._constant(f"c{number}.{axis}", size, f"{side}{number}")]
            )
            axes.append(words[0] if len(words) == 1 else f"({' '.join(words)})")
        return " ".join(axes)

    def _constant(self, key: LoopName, size: int, where: str) -> str:
        """A dimension of a target that one number fills."""
        self._class[key] = key
        self._constants[key] = size
        self._within.setdefault(key, set()).add(where)
        return f"<{key}>"

    def _weave(
        self,
        size: int,
        entries: Sequence[tuple[int, Loops]],
        gaps: list[tuple[LoopName, int]],
        where: str,
    ) -> list[str]:
        """The words of an axis of ``size`` places, from the start and the loops of each part."""
        heads = {loops[0][1:] if loops else None for _, loops in entries}
        if size == 1 and heads == {None}:
            return ["1"]
        if len(heads) == 1 and (head := heads.pop()) is not None:
            count, step = head
            if self._is_head(size, entries, count, step):
                word = self._mark([loops[0][0] for _, loops in entries], where)
                if count * step < size:
                    gaps.append((self._root(entries[0][1][0][0]), size // step))
                rest = [(start, loops[1:]) for start, loops in entries]
                return [word, *(self._weave(step, rest, gaps, where) if step > 1 else [])]
        return [self._parts(size, entries, gaps, where)]

    def _is_head(
        self, size: int, entries: Sequence[tuple[int, Loops]], count: int, step: int
    ) -> bool:
        """True if all parts share the loop outside; it may be shorter than the axis where that is padded or cropped."""
        if count * step == size:
            return True
        is_lone = len({(start, tuple(loop[1:] for loop in loops)) for start, loops in entries}) == 1
        return is_lone and size % step == 0 and count * step < size and entries[0][0] < step

    def _parts(
        self,
        size: int,
        entries: Sequence[tuple[int, Loops]],
        gaps: list[tuple[LoopName, int]],
        where: str,
    ) -> str:
        spans = sorted(
            {(s, s + (loops[0][1] * loops[0][2] if loops else 1)) for s, loops in entries}
        )
        ends = [0, *(b for _, b in spans)]
        if len(spans) == 1 or [*(a for a, _ in spans), size] != ends:
            raise UnexplainedError(f"no brackets say how its parts {spans} lie in {size} places")
        words = [
            " ".join(
                self._weave(
                    b - a, [(s - a, loops) for s, loops in entries if a <= s < b], gaps, where
                )
            )
            for a, b in spans
        ]
        return f"[{' | '.join(words)}]"

    def _mark(self, keys: Sequence[LoopName], where: str) -> str:
        """The mark of the one dimension that these loops are."""
        root = self._root(keys[0])
        for key in keys[1:]:
            self._class[self._root(key)] = root
        self._within.setdefault(root, set()).add(where)
        return f"<{root}>"

    def _root(self, key: LoopName) -> LoopName:
        while self._class[key] != key:
            key = self._class[key]
        return key

    def text(self, shape: str) -> RuleText:
        """The rule, with marks that are numbered by their order in the text."""
        draft, order = self._draft, list[LoopName]()
        counts = {**draft.counts, **self._constants}
        # A cropped dimension has the size of the source, and its loop is the part that is taken.
        taken = {key: counts[key] for key, _ in self._crops}
        counts |= dict(self._crops)

        def number(key: LoopName) -> str:
            root = self._root(key)
            if root not in order:
                order.append(root)
            return f"<{order.index(root)}>"

        numbers: list[int] = []
        sources = tuple(self._name(end, number, numbers) for end in draft.sources)
        targets = tuple(self._name(end, number, numbers) for end in draft.targets)
        text = _replaced(shape, number)
        pads = tuple(Length(number(key), length) for key, length in self._pads)
        crops = tuple(Length(number(key), length) for key, length in taken.items())
        within = self._within_roots()
        return RuleText(
            sources,
            targets,
            text,
            pads,
            crops,
            tuple(counts[key] for key in order),
            tuple(numbers),
            tuple(frozenset(within.get(key, {IN_NAMES})) for key in order),
            draft.fit,
            draft.fill,
            draft.off,
            _cast_of(draft),
        )

    def _within_roots(self) -> dict[LoopName, set[str]]:
        """The places of each dimension, from all of its loops."""
        within: dict[LoopName, set[str]] = {}
        for key, places in self._within.items():
            within.setdefault(self._root(key), set()).update(places)
        return within

    def _name(self, end: End, number: Callable[[LoopName], str], numbers: list[int]) -> str:
        """A name with the arithmetic of its indices."""
        texts = []
        for at, first in enumerate(end.numbers):
            terms = []
            for key, step in end.steps.items():
                if step and step[at] and self._draft.counts[key] > 1:
                    numbers.append(step[at])
                    terms.append(f"#{len(numbers) - 1}#*{number(key)}")
            if not terms:
                texts.append(str(first))
                continue
            numbers.append(first)
            texts.append(f"{{{'+'.join(terms)}+#{len(numbers) - 1}#}}")
        return _escaped(end.kind.name).format(*texts) if texts else _escaped(end.kind.name).format()


def _escaped(name: str) -> str:
    """The name for ``str.format``, in which ``{}`` stands for a number alone."""
    parts = name.split("{}")
    return "{}".join(part.replace("{", "{{{{").replace("}", "}}}}") for part in parts)


def _replaced(text: str, number: Callable[[LoopName], str]) -> str:
    return re.sub(r"<([^<>]+)>", lambda found: number(found[1]), text)


def _along(loops: Loops, stride: int, size: int) -> Loops:
    """The loops that step along one axis, the slowest first, in its places."""
    found = [
        (key, count, step // stride)
        for key, count, step in loops
        if count > 1 and stride <= step < stride * size
    ]
    return sorted(found, key=lambda loop: -loop[2])


def _cast_of(draft: RuleDraft) -> str | None:
    """The dtype of the targets, where it is not that of all sources."""
    made = draft.targets[0].kind.dtype
    return None if {end.kind.dtype for end in draft.sources} == {made} else made
