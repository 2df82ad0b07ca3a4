"""Drafts: copies of many targets as one rule, before its dimensions have names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.maps.example.copies import (
    Fit,
    Named,
    TargetCopies,
    UnexplainedError,
    nests,
    split_at,
    split_name,
)

LoopName = str
"""A loop of a draft: those over targets begin with ``t``."""


class LoopStep(Struct, frozen=True):
    """The step of a loop in a part.

    Attributes:
        target, source: elements.
        numbers: in the name of the source.
    """

    target: int = 0
    source: int = 0
    numbers: tuple[int, ...] = ()

    def times(self, count: int) -> LoopStep:
        return LoopStep(
            self.target * count, self.source * count, tuple(n * count for n in self.numbers)
        )


class End(Struct, frozen=True):
    """The targets or the sources of a draft that have one place in its list of names.

    Attributes:
        numbers: in the name of the first.
        steps: the step of each loop in these numbers.
    """

    kind: Named
    numbers: tuple[int, ...]
    steps: Mapping[LoopName, tuple[int, ...]]


class DraftCopy(Struct, frozen=True):
    """A copy in a draft.

    Attributes:
        of_target, of_source: places in the draft's lists.
        target, source: the first element of each.
    """

    of_target: int
    of_source: int
    target: int
    source: int
    steps: Mapping[LoopName, LoopStep]


class RuleDraft(Struct, frozen=True):
    """A rule whose dimensions have no names yet.

    Attributes:
        counts: the count of each loop; those over targets first.
        fill: the element of places that no part fills; None without such places.
    """

    targets: tuple[End, ...]
    sources: tuple[End, ...]
    parts: tuple[DraftCopy, ...]
    counts: Mapping[LoopName, int]
    fit: Fit
    fill: float | None
    off: int

    def steps(
        self, side: str, number: int
    ) -> Iterator[tuple[int, list[tuple[LoopName, int, int]]]]:
        """The start of each part of a target or a source, and its loops with count and step."""
        for part in self.parts:
            if number == (part.of_target if side == "target" else part.of_source):
                loops = [
                    (key, self.counts[key], getattr(step, side)) for key, step in part.steps.items()
                ]
                yield getattr(part, side), loops


def drafts_of(found: Mapping[str, TargetCopies], kinds: Mapping[str, Named]) -> list[RuleDraft]:
    """The drafts of all targets; ``kinds``: shape and dtype of each."""
    alike: dict[tuple[object, ...], list[tuple[tuple[int, ...], str]]] = defaultdict(list)
    for name, copies in found.items():
        text, numbers = split_name(name)
        kind = replace(kinds[name], name=text)
        shapes = tuple((c.kind, c.fit, c.loops, c.target) for c in copies.copies)
        row = (*numbers, *(n for c in copies.copies for n in (*c.numbers, c.source)))
        alike[kind, copies.fill, shapes].append((row, name))
    drafts = [draft for group in alike.values() for draft in _looped(group, found, kinds)]
    return [_settled(draft) for draft in _cut(drafts)]


def _looped(
    group: Sequence[tuple[tuple[int, ...], str]],
    found: Mapping[str, TargetCopies],
    kinds: Mapping[str, Named],
) -> Iterator[RuleDraft]:
    """Targets that are made alike, as loops over their names."""
    import numpy as np

    by_row = dict(group)
    rows = np.array(sorted(by_row), np.int64).reshape(len(by_row), -1)
    if rows.shape[1] == 0:
        yield _draft(next(iter(by_row.values())), (), found, kinds, by_row.values())
        return
    at = 0
    for nest in nests(rows):
        count = 1
        for n, _ in nest.loops:
            count *= n
        names = [by_row[tuple(map(int, row))] for row in rows[at : at + count]]
        at += count
        yield _draft(names[0], nest.loops, found, kinds, names)


def _draft(
    name: str,
    loops: Sequence[tuple[int, tuple[int, ...]]],
    found: Mapping[str, TargetCopies],
    kinds: Mapping[str, Named],
    names: Iterable[str],
) -> RuleDraft:
    text, numbers = split_name(name)
    first = found[name]
    over = {f"t{i}": (count, step) for i, (count, step) in enumerate(loops)}
    counts = {key: count for key, (count, _) in over.items()}
    target = End(
        replace(kinds[name], name=text),
        numbers,
        {key: step[: len(numbers)] for key, (_, step) in over.items()},
    )
    sources: list[End] = []
    parts: list[DraftCopy] = []
    at = len(numbers)
    for number, copy in enumerate(first.copies):
        end = at + len(copy.numbers)
        own = {f"p{number}.{i}": loop for i, loop in enumerate(copy.loops)}
        counts |= {key: loop.count for key, loop in own.items()}
        steps = {k: LoopStep(0, step[end], step[at:end]) for k, (_, step) in over.items()}
        steps |= {k: LoopStep(loop.target, loop.source, loop.numbers) for k, loop in own.items()}
        source = End(copy.kind, copy.numbers, {k: s.numbers for k, s in steps.items()})
        if source not in sources:
            sources.append(source)
        parts.append(DraftCopy(0, sources.index(source), copy.target, copy.source, steps))
        at = end + 1
    off = sum(found[each].off for each in names)
    return RuleDraft(
        (target,), tuple(sources), tuple(parts), counts, _fit_of(first), first.fill, off
    )


def _fit_of(copies: TargetCopies) -> Fit:
    """The arithmetic of all parts of a target; UnexplainedError where they have several."""
    fits = {copy.fit for copy in copies.copies} or {Fit()}
    if len(fits) > 1:
        raise UnexplainedError("its parts have several factors; a rule has one for all of them")
    return fits.pop()


def _cut(drafts: Sequence[RuleDraft]) -> Iterator[RuleDraft]:
    """Joins drafts that take parts of one source, if together they take all of it."""
    groups: dict[tuple[object, ...], list[RuleDraft]] = defaultdict(list)
    for number, draft in enumerate(drafts):
        takes_part = len(draft.sources) == 1 and draft.fill is None
        takes_part = takes_part and not _takes_all(draft, draft.sources)
        groups[_shared_source(draft) if takes_part else (number,)].append(draft)
    for group in groups.values():
        joined = _joined(group) if len(group) > 1 else None
        if joined is not None and _takes_all(joined, joined.sources):
            yield joined
        else:
            yield from group


def _shared_source(draft: RuleDraft) -> tuple[object, ...]:
    """A key that is the same for all drafts that take parts of one source."""
    source = draft.sources[0]
    loops = tuple((k, n) for k, n in draft.counts.items() if k.startswith("t"))
    over = tuple(source.steps.get(k, ()) for k, _ in loops)
    return source.kind, source.numbers, over, draft.fit, loops


def _takes_all(draft: RuleDraft, sources: Sequence[End]) -> bool:
    """True if the parts have as many elements as the sources."""
    taken = sum(
        math.prod(draft.counts[k] for k, s in part.steps.items() if s.source or any(s.numbers))
        for part in draft.parts
    )
    named = math.prod(
        draft.counts[k]
        for k in draft.counts
        if k.startswith("t") and any(any(source.steps.get(k, ())) for source in sources)
    )
    whole = sum(math.prod(source.kind.shape) for source in sources) * named
    return taken >= whole


def _joined(group: Sequence[RuleDraft]) -> RuleDraft:
    ordered = sorted(group, key=lambda draft: draft.parts[0].source)
    counts: dict[LoopName, int] = {k: n for k, n in ordered[0].counts.items() if k.startswith("t")}
    parts: list[DraftCopy] = []
    for number, draft in enumerate(ordered):
        own = {k: k if k.startswith("t") else f"{k}/{number}" for k in draft.counts}
        counts |= {own[k]: n for k, n in draft.counts.items()}
        parts += [
            replace(part, of_target=number, steps={own[k]: s for k, s in part.steps.items()})
            for part in draft.parts
        ]
    targets = tuple(draft.targets[0] for draft in ordered)
    source = ordered[0].sources[0]
    shared = {k: s for k, s in source.steps.items() if k.startswith("t")}
    return RuleDraft(
        targets,
        (replace(source, steps=shared),),
        tuple(parts),
        counts,
        ordered[0].fit,
        None,
        sum(draft.off for draft in ordered),
    )


def _settled(draft: RuleDraft) -> RuleDraft:
    """The draft with loops over targets cut where they go beyond an axis of a source."""
    while True:
        found = _crossing(draft)
        if found is None:
            return draft
        draft = _split(draft, *found)


def _crossing(draft: RuleDraft) -> tuple[LoopName, int] | None:
    for part in draft.parts:
        shape = draft.sources[part.of_source].kind.shape
        for key, step in part.steps.items():
            if step.source < 0:
                raise UnexplainedError("an axis runs backwards, for which maps have no word")
            cut = split_at(draft.counts[key], step.source, shape)
            if cut is not None:
                return key, cut[1]
    return None


def _split(draft: RuleDraft, key: LoopName, inner: int) -> RuleDraft:
    """The draft with one loop as two: the one outside, and ``inner`` steps within it."""
    far, near = f"{key}o", f"{key}i"
    counts: dict[LoopName, int] = {}
    for each, count in draft.counts.items():
        counts |= {far: count // inner, near: inner} if each == key else {each: count}
    return replace(
        draft,
        counts=counts,
        targets=tuple(_split_end(end, key, inner) for end in draft.targets),
        sources=tuple(_split_end(end, key, inner) for end in draft.sources),
        parts=tuple(
            replace(
                part,
                steps={
                    k: s
                    for each, step in part.steps.items()
                    for k, s in (
                        ((far, step.times(inner)), (near, step)) if each == key else ((each, step),)
                    )
                },
            )
            for part in draft.parts
        ),
    )


def _split_end(end: End, key: LoopName, inner: int) -> End:
    steps: dict[LoopName, tuple[int, ...]] = {}
    for each, step in end.steps.items():
        if each == key:
            steps |= {f"{key}o": tuple(n * inner for n in step), f"{key}i": step}
        else:
            steps[each] = step
    return replace(end, steps=steps)
