"""Applies deltas in place: a folder of weights becomes the last version itself.

First everything is proved and what changes is recorded in a journal; then the journal is whole, and decides the change; then the files are out
of sight, get their new bytes, and come back. A call that is killed before the second step has changed nothing; after it, the next call with the
same folder ends the change from the journal alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress

from msgspec.structs import replace

from reshard.deltas.in_place.new_version import changing_files, new_version
from reshard.deltas.in_place.record_changes import record_changes
from reshard.deltas.in_place.redo_changes import redo_changes
from reshard.deltas.in_place.redo_journal import RedoPlan, open_journal, write_plan
from reshard.deltas.in_place.report import InPlaceReport
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Tell
from reshard.engine.read_digests import tensor_digests
from reshard.errors import PlanError, ResumeError, SourceChangedError, StorageError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.delta.chain import chain_reader, chained, end_reader
from reshard.formats.delta.read_delta import Delta, anchor_version, open_delta, version_of_name
from reshard.formats.registry import open_reader
from reshard.storage.local.in_place import (
    HIDDEN,
    PARTIAL_JOURNAL,
    InPlace,
    check_changeable,
    decide_change,
    end_change,
    forget_change,
    in_place,
    mark_done,
    prepare_change,
    put_back,
    take_away,
)
from reshard.storage.local.spool import Spool
from reshard.storage.local.target_checks import refuse_overlap
from reshard.storage.location import locate
from reshard.storage.targets import held_target
from reshard.storage.transaction import Transaction


def apply_deltas_in_place(
    base: CheckpointPath, limits: Limits, progress: Tell | None = None
) -> InPlaceReport:
    """Changes the folder, or raises and leaves it as it was; see ``reshard.apply_in_place``."""
    started = time.monotonic()
    where = in_place(base.root)
    for each in base.deltas:
        refuse_overlap(where.place, each)
    _refuse_published(base.path, where)
    with held_target(where.place) as transaction:
        _refuse_other_runs(where, transaction)
        try:
            report = _apply(base, where, limits, progress)
        finally:
            transaction.abort()
    return replace(report, base=base.path, seconds=time.monotonic() - started)


def _apply(
    base: CheckpointPath, where: InPlace, limits: Limits, progress: Tell | None
) -> InPlaceReport:
    resumed = _finish(where, limits, progress) if where.is_begun else None
    forget_change(where)
    deltas = list(map(open_delta, base.deltas))
    last = chained(deltas)[-1].version
    source = CheckpointPath.at(str(where.place), base.unlisted)
    check_leaves_to_read(limits.max_memory, replace(source, deltas=base.deltas))
    if anchor_version(where.place) == last:
        done = _already_done(source, deltas, limits, progress)
        return done if resumed is None else replace(resumed, resumed=True)
    _record(source, where, deltas, limits, progress)
    return _finish(where, limits, progress)


def _record(
    source: CheckpointPath,
    where: InPlace,
    deltas: Sequence[Delta],
    limits: Limits,
    progress: Tell | None,
) -> None:
    """Proves the chain, and decides the change; where that fails, the folder is as it was."""
    before = _states(where, deltas)
    reader = open_reader(source)
    changed = chain_reader(reader, deltas, anchor_version(where.place))
    files = changing_files(where.place, source.unlisted)
    check_changeable(where, files)
    budget = replace(limits, max_memory=left_to_read(limits.max_memory, changed))
    prepare_change(where)
    try:
        with closing(Spool(str(where.hidden), PARTIAL_JOURNAL)) as spool:
            found = record_changes(changed, spool, budget, progress)
            version = chained(deltas)[-1].version
            plan = new_version(reader, where.place, files, version, found, changed.warnings)
            write_plan(spool, plan, limits.max_memory)
        if _states(where, deltas) != before:
            raise SourceChangedError(
                f"{str(where.root)!r} or a delta changed while they were read; nothing was changed here; run again when nothing writes to them"
            )
        decide_change(where)
    except BaseException:
        with suppress(StorageError):
            if not where.is_begun:
                forget_change(where)
        raise


def _finish(where: InPlace, limits: Limits, progress: Tell | None) -> InPlaceReport:
    """Makes the change that a journal has decided, whatever part of it is made."""
    try:
        found = where.journal.status("the journal")
        with open_journal(where.journal, limits.max_memory) as journal:
            plan, written = journal.plan, 0
            if not where.is_done:
                take_away(where, plan.files, plan.records)
                written = redo_changes(where, journal, limits, progress)
                mark_done(where, plan.weights)
            put_back(where, plan.weights, {n: text.encode() for n, text in plan.written.items()})
        end_change(where)
    except BaseException as error:
        error.add_note(
            f"{str(where.root)!r} is between two versions; run the same command again to finish it"
        )
        raise
    return _report(plan, written, 0 if found is None else found.nbytes)


def _already_done(
    source: CheckpointPath, deltas: Sequence[Delta], limits: Limits, progress: Tell | None
) -> InPlaceReport:
    """Proves that the folder, which says that it is the last version, is that; nothing is written."""
    reader = end_reader(open_reader(source), deltas)
    budget = replace(limits, max_memory=left_to_read(limits.max_memory, reader))
    tensor_digests(reader, budget, progress=progress, stage="reading")
    version = chained(deltas)[-1].version
    return InPlaceReport(
        "",
        version,
        version,
        0,
        len(reader.tensors),
        0,
        0,
        0,
        0.0,
        already_done=True,
        warnings=tuple(reader.warnings),
    )


def _report(plan: RedoPlan, written: int, journal_bytes: int) -> InPlaceReport:
    return InPlaceReport(
        "",
        plan.version,
        plan.before or "",
        len(plan.tensors),
        plan.all_tensors,
        sum(tensor.changed for tensor in plan.tensors),
        journal_bytes,
        written,
        0.0,
        removed=plan.records,
        warnings=plan.warnings,
    )


def _states(where: InPlace, deltas: Sequence[Delta]) -> list[list[str]]:
    """What changes when a file does; looked up anew, since what a call remembers of a bucket never changes."""
    deltas_now = [list(locate(str(delta.place)).state()) for delta in deltas]
    return [list(where.place.state(frozenset({HIDDEN}))), *deltas_now]


def _refuse_published(path: str, where: InPlace) -> None:
    """A version that others may read stays what its name says."""
    if version_of_name(where.root.name) is not None:
        raise PlanError(
            f"{path!r} has the name of a published version, {where.root.name}, which never changes, since others may read it; copy it to a folder "
            "of another name and give that, or name a target"
        )


def _refuse_other_runs(where: InPlace, transaction: Transaction) -> None:
    """Keeps what a conversion to this folder left, which can be resumed."""
    if transaction.left_by() is not None or transaction.has_parts():
        raise ResumeError(
            f"another run to {str(where.root)!r} was interrupted, and what it did was kept; run it again to resume it, or remove what it left "
            f"(reshard clean {where.root})"
        )
