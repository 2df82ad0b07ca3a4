"""Verifies one checkpoint against its record, or two against each other: files first, then tensors.

Damage in one place does not hide damage in another: metadata that differs from its record is reported, and the tensors
are still read with it as far as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import MissingChunks, changes_of
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress, tell_files
from reshard.errors import (
    CorruptError,
    IncompleteCheckpointError,
    LayoutError,
    NotACheckpointError,
    PlanError,
    ReshardError,
)
from reshard.formats.base import Made, Reader
from reshard.formats.contents import Stored
from reshard.formats.lacks import (
    Unprotected,
    filled_chunks,
    missing_warnings,
    numbers,
    read_as,
    record_warnings,
    unprotected,
)
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.slices.file_digests import (
    FileVerdict,
    FolderRecord,
    file_verdicts,
    folder_records,
    size_or_zero,
)
from reshard.formats.slices.kept_metadata import metadata_warnings
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap, map_of
from reshard.planning.rules import (
    pair_by_record,
    pair_by_rules,
    tree_digest,
)
from reshard.storage.location import Location
from reshard.verification.compare import compare_mapped, compare_recorded, compare_stored
from reshard.verification.reports import Verification

if TYPE_CHECKING:
    from reshard.arguments import CastRules, PairRules, Rules


_Letter = Literal["A", "B"]

_LETTERS: tuple[_Letter, ...] = ("A", "B")


class ComparedSide(Struct, frozen=True):
    """A checkpoint to verify.

    Attributes:
        reader: None if it has a record of itself but cannot be opened; then ``damage`` has the reason.
        files: its files, compared with its record.
        made: the source and rules of its conversion, if it recorded them.
    """

    uri: str
    reader: Reader | None
    files: tuple[FileVerdict, ...]
    damage: tuple[str, ...] = ()
    made: Made | None = None

    @property
    def is_damaged(self) -> bool:
        return bool(self.damage) or any(f.is_difference for f in self.files)


def given_rules(
    has_b: bool,
    select: Rules | None,
    drop: Rules | None,
    rename: PairRules | None,
    cast: CastRules | None,
) -> Changes | None:
    """The caller's rules by which B was made of A; None if none is given."""
    if all(rules is None for rules in (select, drop, rename, cast)):
        return None
    if not has_b:
        raise PlanError(
            "select, drop, rename and cast say how B was made of A, but there is no B; name it, or leave them out"
        )
    return changes_of(select, drop, rename, cast)


def verify_checkpoints(
    a: CheckpointPath,
    b: CheckpointPath | None,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    rules: Changes | None = None,
    missing_chunks: MissingChunks | None = None,
    given_map: GivenMap | None = None,
) -> Verification:
    """Compares two checkpoints, or one with its record; damage is reported, not raised.

    Args:
        rules: by which B was made from A. None uses the rules that B records, if B was made from A's tree.
        given_map: by which B was made from A. None uses the map that B records, if B was made from A's tree.
        missing_chunks: the treatment of chunks that are not stored: as damage, or as fill values with or without a warning.

    Raises PlanError if the rules do not fit A; the errors of opening a checkpoint, if it has no record of itself;
    MemoryBudgetError if the budget is too small.
    """
    chosen = [side for side in (a, b) if side is not None]
    check_leaves_to_read(limits.max_memory, *chosen)
    opened = [_open_side(one, side, progress) for one, side in zip(chosen, _LETTERS, strict=False)]
    if b is not None:
        opened[0] = _as_recorded(a, *opened)
    sides = [
        replace(s, reader=None if s.reader is None else read_as(s.reader, missing_chunks))
        for s in opened
    ]
    missing = {side: filled_chunks(s.reader) for side, s in zip(_LETTERS, sides, strict=False)}
    found = _compare_tensors(sides, limits, progress, rules, given_map)
    return replace(
        found,
        a=a.path,
        b=None if b is None else b.path,
        files=tuple(chain.from_iterable(s.files for s in sides)),
        damage=(*(d for s in sides for d in s.damage), *found.damage),
        warnings=tuple(_warnings(sides, found, missing.values(), missing_chunks)),
        missing_chunks={side: numbers(missing.get(side, {})) for side in ("A", "B")},
    )


def _warnings(
    sides: Sequence[ComparedSide],
    found: Verification,
    missing: Iterable[Mapping[str, Stored]],
    asked: MissingChunks | None,
) -> Iterator[str]:
    yield from found.warnings
    for side in sides:
        if side.reader is not None:
            yield from side.reader.warnings
    readers = [side.reader for side in sides if side.reader is not None]
    if len(readers) == len(_LETTERS):
        yield from metadata_warnings(*(reader.metadata for reader in readers))
    yield from record_warnings(*_unprotected([side.reader for side in sides], found))
    if found.differences:
        yield from _options_left_out(*sides)
    for side in sides:
        yield from _added_files(side)
    for side, lacking in zip(sides, missing, strict=True):
        yield from missing_warnings(side.uri, lacking, asked)


def _options_left_out(a: ComparedSide, b: ComparedSide | None = None) -> Iterator[str]:
    """One sentence where B records that it was computed with options that are not given here."""
    recorded = b.made.computed.keys() if b is not None and b.made is not None else set()
    left_out = sorted(recorded - (a.reader.computed.keys() if a.reader is not None else set()))
    if b is not None and "merge" in left_out:
        yield f"{b.uri!r} records that it was merged of several checkpoints; merge them again, and compare the results"
    elif b is not None and a.made != b.made and left_out:
        what = ", ".join(left_out)
        yield f"{b.uri!r} records that it was made with {what}; give the same here, to compare with that ({what})"


def _unprotected(readers: Sequence[Reader | None], found: Verification) -> Iterator[Unprotected]:
    """Tensors of each side without a digest in their own record. A tensor that is equal on both sides may have it in
    the other record."""
    a, b = (*readers, None)[:2]
    equal = [v for v in found.tensors if v.status == "equal" and v.comparison == "exact"]
    pairs = [(v.source or v.name, v.name) for v in equal]
    if a is not None:
        yield unprotected(a, {mine for mine, other in pairs if _is_recorded(b, other)})
    if b is not None:
        yield unprotected(b, {mine for other, mine in pairs if _is_recorded(a, other)})


def _is_recorded(reader: Reader | None, name: str) -> bool:
    return reader is not None and name in reader.tensors and reader.tensors[name].digest is not None


def _added_files(side: ComparedSide) -> tuple[str, ...]:
    """A warning about files that were added to the folder and are not part of the checkpoint."""
    added = [f.name for f in side.files if f.status == "added"]
    if not added:
        return ()
    more = f" and {len(added) - 1:,} more" if len(added) > 1 else ""
    return (
        f"{side.uri!r} has files that were added after its record, which no reader uses: {added[0]!r}{more}",
    )


def _compare_tensors(
    sides: Sequence[ComparedSide],
    limits: Limits,
    progress: Callable[[Progress], None] | None,
    rules: Changes | None,
    given_map: GivenMap | None,
) -> Verification:
    readers = [s.reader for s in sides]
    try:
        left = left_to_read(limits.max_memory, *(r for r in readers if r is not None))
        limits = replace(limits, max_memory=left)
        match readers:
            case [a, b] if a is not None and b is not None:
                found = _compare_by_map(a, b, sides, limits, progress, rules, given_map)
                if found is not None:
                    return found
                made = (side.made for side in sides)
                pairing = pair_by_record(a, b, *made) if rules is None else pair_by_rules(a, rules)
                return compare_stored(a, b, limits, progress, pairing)
            case [a, *_] if a is not None:
                return compare_recorded(a, limits, progress)
    except (LayoutError, PlanError) as error:
        # Damaged metadata may demand any amount of memory; with sound metadata the error is real.
        if not any(s.is_damaged for s in sides):
            raise
        return Verification("", None, (), damage=(f"the tensors were not read: {error}",))
    return Verification("", None, ())


def _compare_by_map(
    a: Reader,
    b: Reader,
    sides: Sequence[ComparedSide],
    limits: Limits,
    progress: Callable[[Progress], None] | None,
    rules: Changes | None,
    given_map: GivenMap | None,
) -> Verification | None:
    """The comparison by the given map, or by the one that B recorded, with its rules; None without a map."""
    if given_map is not None:
        return compare_mapped(a, b, given_map, rules or Changes(), limits, progress, "given")
    recorded, made = _recorded_map(a, sides, rules), sides[1].made
    if recorded is None or made is None:
        return None
    return compare_mapped(a, b, recorded, made.changes, limits, progress, "recorded")


def _recorded_map(
    a: Reader, sides: Sequence[ComparedSide], rules: Changes | None
) -> GivenMap | None:
    """The map that B records, if B was made of A's tree by it, and A was not made of the same."""
    of_a, of_b = (side.made for side in sides)
    if rules is not None or of_b is None or of_b.by is None or of_a == of_b:
        return None
    if tree_digest(a.tensors) != of_b.source:
        return None
    return map_of(of_b.by.get("map"), of_b.by.get("sizes"), of_b.by.get("reverse") is True)


def _open_side(
    chosen: CheckpointPath, side: _Letter, progress: Callable[[Progress], None] | None
) -> ComparedSide:
    uri, root = chosen.path, chosen.root.view()
    records = folder_records(root)
    if not records:
        reader, files, damage = _opened_alone(chosen, is_file=root.is_file())
        return ComparedSide(uri, reader, files, damage, None if reader is None else reader.made)
    reader, damage = _opened(chosen, records)
    read = _file_progress(root, records, progress)
    is_chunk = None if reader is None else reader.chunks.chunk_test()
    files = tuple(replace(f, side=side) for f in file_verdicts(root, records, is_chunk, read))
    made = next((r.file.made for r in records if r.file is not None and not r.folder), None)
    return ComparedSide(uri, reader, files, damage, made)


def _as_recorded(chosen: CheckpointPath, a: ComparedSide, b: ComparedSide) -> ComparedSide:
    """A with its weights dequantised, if B records that it was made of those, and nothing else is asked of A."""
    if a.reader is None or b.made is None or a.reader.computed.keys() - {"deltas"}:
        return a
    # Options that name places are not obeyed: a file from a stranger may name any.
    if b.made.computed.keys() != {"dequantize"} or a.made == b.made:
        return a
    from reshard.arithmetic.asked import computed

    try:
        reader = open_reader(computed(chosen, **b.made.computed), "unchecked")
    except PlanError:  # A is another checkpoint
        return a
    return replace(a, reader=reader) if tree_digest(reader.tensors) == b.made.source else a


def _opened_alone(
    chosen: CheckpointPath, *, is_file: bool
) -> tuple[Reader | None, tuple[FileVerdict, ...], tuple[str, ...]]:
    """Opens a checkpoint without files that record it; the record within a single file may be unreadable."""
    try:
        return open_reader(chosen), (), ()
    except CorruptError as error:
        if not is_file:
            raise
        return None, (), (f"{chosen.path} cannot be opened as a checkpoint: {error}",)


def _opened(
    chosen: CheckpointPath, records: Sequence[FolderRecord]
) -> tuple[Reader | None, tuple[str, ...]]:
    try:
        return open_reader(chosen, "unchecked"), ()
    except IncompleteCheckpointError:
        raise  # unfinished output is not damage
    except ReshardError as error:
        if isinstance(error, NotACheckpointError) and all(record.folder for record in records):
            raise  # a folder of checkpoints, not a checkpoint
        if chosen.computed and _opened(replace(chosen, computed=()), records)[0] is not None:
            raise  # the fault is in what is computed, as in deltas; the records are of the base
        return None, (f"{chosen.path} cannot be opened as a checkpoint: {error}",)


def _file_progress(
    root: Location, records: Sequence[FolderRecord], progress: Callable[[Progress], None] | None
) -> Callable[[str], None]:
    names = [r.below(n) for r in records if r.file is not None for n in r.file.every_file]
    return tell_files({name: size_or_zero(root / name) for name in names}, progress)
