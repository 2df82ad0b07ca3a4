"""Makes a delta: reads OLD and the tensors that a conversion would make of NEW in lock step, and publishes the differences.

Nothing appears before all tensors are read and all files are written; the index is the last file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from reshard.deltas.compare import (
    DeltaSide,
    RecordedRoots,
    check_identified_bytes,
    compare_sides,
    delta_sides,
    lanes_within,
    left_out_warnings,
    listed_tensor,
    recorded_roots,
)
from reshard.deltas.delta_request import (
    MADE_BY,
    DeltaRequest,
    FullBefore,
    check_new_version,
    delta_versions,
    full_before,
    refuse_other_base,
    refuse_other_deltas,
    refuse_other_full,
)
from reshard.deltas.payloads import (
    PayloadFile,
    TensorPayload,
    payload_files,
    payload_of,
    refuse_wrapping,
    weight_map,
    write_payload_files,
)
from reshard.deltas.report import DeltaReport, DeltaTensor
from reshard.deltas.versions import finish_version
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.errors import (
    SourceChangedError,
    TargetExistsError,
)
from reshard.formats.delta.index import (
    DeltaIndex,
    render_index,
    tensors_digest,
)
from reshard.formats.delta.index_values import hasher
from reshard.formats.registry import open_reader
from reshard.formats.safe_json import read_bytes
from reshard.formats.safetensors.files import INDEX_NAME
from reshard.formats.slices.kept_metadata import stale_metadata
from reshard.maps.mapped_checkpoint import refuse_unequal
from reshard.storage.commit_markers import markers_at
from reshard.storage.local.spool import Spool
from reshard.storage.location import Location, locate
from reshard.storage.targets import lock_target


def make_delta(
    request: DeltaRequest,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> DeltaReport:
    """Makes the delta, or raises and leaves nothing; see ``reshard.delta``."""
    started = time.monotonic()
    place = locate(request.target)
    versions = delta_versions(request, place)
    hasher(request.checksum)  # raises before anything is read if its package is missing
    is_there = request.again and (place / INDEX_NAME).is_file()
    if not is_there:
        check_new_version(place, request)
    check_leaves_to_read(limits.max_memory, request.old, request.new)
    before = _states(request)
    beside = place.parent / request.folder_of(versions[1])
    standing_on = full_before(beside, request.old, limits.max_memory)
    comparing = _comparison(request, versions, standing_on, limits, progress)
    if is_there:
        return _told(comparing, *_published(comparing, place), started)
    with lock_target(place) as transaction:
        refuse_other_deltas(place, transaction.left_by())
        try:
            finish_version(place, transaction)
            check_new_version(locate(request.target), request)  # another process may have published
            with closing(Spool(None if place.local is None else place.parent.path)) as spool:
                transaction.begin(MADE_BY)
                transaction.close()
                index, payloads, files = _compared(comparing, spool)
                transaction.root.make_folder()
                stored_bytes = write_payload_files(files, transaction.root, spool, limits.workers)
                refuse_other_base(index, beside, payloads)
                transaction.mark(_marks(render_index(index, request.receiver), place))
                if _states(request) != before:
                    raise SourceChangedError(
                        f"{request.old.path!r} or {request.new.path!r} changed while they were read; nothing was published; run again when "
                        "nothing writes to them"
                    )
                if before_publish is not None:
                    before_publish(request.target)
                transaction.commit(overwrite=False)
        finally:  # of a published version, the temporary files
            transaction.abort()
    return _told(comparing, _report(request, index, payloads, files), stored_bytes, started)


class _Comparison(Struct, frozen=True):
    """Two open checkpoints that are compared.

    Attributes:
        versions: of NEW and of OLD.
        limits: with the memory that is left beside the ``open_bytes`` of both.
        before: the full version beside the target, with which OLD is compared.
        lanes: number of tensors that are compared at once.
    """

    request: DeltaRequest
    versions: tuple[str, str]
    old: DeltaSide
    new: DeltaSide
    recorded: RecordedRoots
    before: FullBefore | None
    limits: Limits
    lanes: int
    open_bytes: int
    progress: Callable[[Progress], None] | None


def _comparison(
    request: DeltaRequest,
    versions: tuple[str, str],
    before: FullBefore | None,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> _Comparison:
    old, new = delta_sides(
        open_reader(request.old),
        open_reader(request.new),
        request.given,
        request.changes,
        request.old.root,
    )
    for made in new.mapping.tensors:
        refuse_wrapping(request.encoding, made.spec)
    recorded = recorded_roots(old, new, (request.old.root, request.new.root))
    left = left_to_read(limits.max_memory, old.reader, new.reader)
    lanes, budget = lanes_within(limits, left), replace(limits, max_memory=left)
    taken = limits.max_memory - left
    return _Comparison(
        request, versions, old, new, recorded, before, budget, lanes, taken, progress
    )


def _compared(
    it: _Comparison, spool: Spool
) -> tuple[DeltaIndex, list[TensorPayload], list[PayloadFile]]:
    """The index, the payload of every tensor, compressed in the spool, and the files of payloads."""
    of_old, of_new = it.recorded.are_there
    with_crcs = (of_old or it.before is not None, of_new)
    payloads = [
        payload_of(it.request.encoding, made.spec, it.request.checksum, spool, with_crcs)
        for made in it.new.mapping.tensors
    ]
    refuse_unequal(it.new.reader, it.new.mapping.equal, {}, it.limits)
    compare_sides(it.old, it.new, payloads, it.limits, it.lanes, it.open_bytes, it.progress)
    check_identified_bytes(it.recorded, (it.old, it.new), payloads)
    refuse_other_full(it.before, it.request.old.path, payloads)
    files = payload_files([one for one in payloads if one.changed], it.request.file_bytes)
    return _index(it.request, it.versions, it.recorded, payloads, files), payloads, files


def _published(it: _Comparison, place: Location) -> tuple[DeltaReport, int]:
    """The report and the bytes of the version that an earlier run of this request published. Raises TargetExistsError if it is another one."""
    with closing(Spool(None)) as spool:
        index, payloads, files = _compared(it, spool)
    if render_index(index, it.request.receiver) != read_bytes(place / INDEX_NAME, what="the index"):
        raise TargetExistsError(
            f"the version {str(place)!r} exists already, but is another one than {it.request.old.path!r} and {it.request.new.path!r} give; publish "
            "the next version"
        )
    states = [(place / file.name).status("the file of a version") for file in files]
    stored_bytes = sum(state.nbytes for state in states if state is not None)
    return _report(it.request, index, payloads, files), stored_bytes


def _told(it: _Comparison, report: DeltaReport, stored_bytes: int, started: float) -> DeltaReport:
    unseen = () if it.before is None else it.before.warnings
    readers = (*it.old.reader.warnings, *it.new.reader.warnings)
    stale = stale_metadata(it.old.reader.metadata, it.new.reader.metadata)
    warnings = (*readers, *left_out_warnings(it.old), *stale, *unseen)
    seconds = time.monotonic() - started
    return replace(report, stored_bytes=stored_bytes, warnings=warnings, seconds=seconds)


def _states(request: DeltaRequest) -> tuple[tuple[str, ...], ...]:
    places = (request.old.root, request.new.root)
    # Located anew: a location of a bucket keeps its first listing.
    return tuple(tuple(locate(str(place)).state()) for place in places)


def _marks(index: bytes, place: Location) -> dict[str, bytes]:
    """The files that mark a version as whole; the index last."""
    return {**markers_at(place), INDEX_NAME: index}


def _index(
    request: DeltaRequest,
    versions: tuple[str, str],
    recorded: RecordedRoots,
    payloads: Sequence[TensorPayload],
    files: Sequence[PayloadFile],
) -> DeltaIndex:
    before = {one.spec.name: listed_tensor(one.spec, one.digests[0]) for one in payloads}
    after = {one.spec.name: listed_tensor(one.spec, one.digests[1]) for one in payloads}
    return DeltaIndex(
        *versions,
        request.encoding,
        request.checksum,
        weight_map(files),
        tensors_digest(request.checksum, before),
        tensors_digest(request.checksum, after),
        sum(one.spec.nbytes for one in payloads),
        after,
        {one.spec.name: one.changed for one in payloads if one.changed},
        None if recorded.old is None else recorded.old.root,
        None if recorded.new is None else recorded.new.root,
    )


def _report(
    request: DeltaRequest,
    index: DeltaIndex,
    payloads: Sequence[TensorPayload],
    files: Sequence[PayloadFile],
) -> DeltaReport:
    tensors: Mapping[str, DeltaTensor] = {
        one.spec.name: DeltaTensor(
            one.spec.name,
            one.spec.dtype,
            one.spec.shape,
            one.spec.nbytes,
            one.spec.nbytes // one.spec.itemsize,
            one.changed,
            one.frame.nbytes,
            file.name,
        )
        for file in files
        for one in file.payloads
    }
    return DeltaReport(
        request.old.path,
        request.new.path,
        request.target,
        index.version,
        index.base_version,
        index.encoding,
        index.checksum,
        len(payloads),
        index.total_size or 0,
        0,
        index.base_digest or "",
        index.target_digest or "",
        0.0,
        tensors,
        base_identity=index.base_identity or "",
        target_identity=index.target_identity or "",
    )
