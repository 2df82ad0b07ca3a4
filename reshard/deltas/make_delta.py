"""Makes a delta: reads OLD and what a conversion would make of NEW in lock step, and publishes what differs.

Nothing appears before every tensor was read and every file written; the index is the last file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.deltas.compare import compare_sides, lanes_within
from reshard.deltas.half_published import finish_version
from reshard.deltas.payloads import TensorPayload, payload_of, refuse_wrapping
from reshard.deltas.recorded_roots import RecordedRoots, check_identified_bytes, recorded_roots
from reshard.deltas.report import DeltaReport, DeltaTensor
from reshard.deltas.sides import DeltaSide, delta_sides, listed_tensor
from reshard.deltas.version_files import PayloadFile, payload_files, weight_map, write_payload_files
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.errors import (
    PlanError,
    ResumeError,
    SourceChangedError,
    TargetExistsError,
    VerificationError,
)
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.delta.checksums import Checksum, hasher
from reshard.formats.delta.index import (
    DeltaIndex,
    Encoded,
    is_delta,
    parse_index,
    render_index,
    version_text,
)
from reshard.formats.delta.listed_tensors import tensors_digest
from reshard.formats.delta.read_delta import anchor_version, version_of_name
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.registry import open_reader
from reshard.formats.safetensors.model_name import INDEX_NAME
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped_checkpoint import refuse_unequal
from reshard.storage.commit_markers import COMMIT_MARKER, COMMITTED
from reshard.storage.local.spool import Spool
from reshard.storage.local.target_checks import refuse_overlap
from reshard.storage.location import Location, locate
from reshard.storage.targets import check_place, held_target

_MADE_BY = {"made_by": "reshard.delta"}


class DeltaRequest(Struct, frozen=True):
    """What was asked.

    Attributes:
        old, new: the checkpoints.
        target: the folder of the version, such as ``published/weight_v000007``.
        given, changes: the map and the rules, as for a conversion of NEW.
        base_version: of OLD; None where it or the number before the target's says it.
        file_bytes: most bytes of payloads in one file.
        again: an earlier run of the same request may have published the version.
    """

    old: CheckpointPath
    new: CheckpointPath
    target: str
    given: GivenMap | None
    changes: Changes
    encoding: Encoded
    checksum: Checksum
    base_version: int | None
    file_bytes: int
    again: bool = False


def make_delta(
    request: DeltaRequest,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> DeltaReport:
    """Makes the delta, or raises and leaves nothing; see ``reshard.delta``."""
    started = time.monotonic()
    place = locate(request.target)
    version, base_version = _versions(request, place)
    hasher(request.checksum)  # raises before anything is read if its package is missing
    is_there = request.again and (place / INDEX_NAME).is_file()
    if not is_there:
        _check_new(place, request)
    check_leaves_to_read(limits.max_memory, request.old, request.new)
    before = _states(request)
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
    lanes = lanes_within(limits, left)
    budget = replace(limits, max_memory=left)
    if is_there:
        return _compared_with_published(
            old, new, request, recorded, place, budget, lanes, limits.max_memory - left, progress
        )
    with held_target(place) as transaction:
        _refuse_other_runs(place, transaction.left_by())
        try:
            finish_version(place, transaction)
            _check_new(locate(request.target), request)  # another process may have published
            with closing(Spool(_spool_folder(place))) as spool:
                transaction.begin(_MADE_BY)
                transaction.close()
                payloads = _payloads(
                    old,
                    new,
                    request,
                    recorded,
                    spool,
                    budget,
                    lanes,
                    limits.max_memory - left,
                    progress,
                )
                files = payload_files([one for one in payloads if one.changed], request.file_bytes)
                transaction.root.make_folder()
                stored_bytes = write_payload_files(files, transaction.root, spool, limits.workers)
                index = _index(request, version, base_version, recorded, payloads, files)
                _refuse_other_base(index, place)
                transaction.mark(_marks(index, place))
                if _states(request) != before:
                    raise SourceChangedError(
                        f"{request.old.path!r} or {request.new.path!r} changed while they were read; nothing was published; run again when "
                        "nothing writes to them"
                    )
                if before_publish is not None:
                    before_publish(request.target)
                transaction.commit(overwrite=False)
        finally:  # of a version that was published, what lies beside it
            transaction.abort()
    report = _report(request, index, payloads, files)
    warnings = (*old.reader.warnings, *new.reader.warnings)
    seconds = time.monotonic() - started
    return replace(report, stored_bytes=stored_bytes, warnings=warnings, seconds=seconds)


def _payloads(
    old: DeltaSide,
    new: DeltaSide,
    request: DeltaRequest,
    recorded: RecordedRoots,
    spool: Spool,
    limits: Limits,
    lanes: int,
    open_bytes: int,
    progress: Callable[[Progress], None] | None,
) -> list[TensorPayload]:
    """What every tensor becomes, compared and compressed."""
    payloads = [
        payload_of(request.encoding, made.spec, request.checksum, spool, recorded.are_there)
        for made in new.mapping.tensors
    ]
    refuse_unequal(new.reader, new.mapping.equal, {}, limits)
    compare_sides(old, new, payloads, limits, lanes, open_bytes, progress)
    check_identified_bytes(recorded, (old, new), payloads)
    return payloads


def _compared_with_published(
    old: DeltaSide,
    new: DeltaSide,
    request: DeltaRequest,
    recorded: RecordedRoots,
    place: Location,
    limits: Limits,
    lanes: int,
    open_bytes: int,
    progress: Callable[[Progress], None] | None,
) -> DeltaReport:
    """The report of the version that an earlier run of this request published. Raises TargetExistsError if it is another one."""
    started = time.monotonic()
    version, base_version = _versions(request, place)
    with closing(Spool(None)) as spool:
        payloads = _payloads(
            old, new, request, recorded, spool, limits, lanes, open_bytes, progress
        )
        files = payload_files([one for one in payloads if one.changed], request.file_bytes)
        index = _index(request, version, base_version, recorded, payloads, files)
    if render_index(index) != read_bytes(place / INDEX_NAME, what="the index"):
        raise TargetExistsError(
            f"the version {str(place)!r} exists already, but is another one than {request.old.path!r} and {request.new.path!r} give; publish the "
            "next number"
        )
    states = [(place / file.name).status("the file of a version") for file in files]
    stored_bytes = sum(state.nbytes for state in states if state is not None)
    report = _report(request, index, payloads, files)
    warnings = (*old.reader.warnings, *new.reader.warnings)
    seconds = time.monotonic() - started
    return replace(report, stored_bytes=stored_bytes, warnings=warnings, seconds=seconds)


def _versions(request: DeltaRequest, place: Location) -> tuple[int, int]:
    """The version that the target's name gives, and that of OLD."""
    version = version_of_name(place.name)
    if version is None:
        raise PlanError(
            f"the target {str(place)!r} should have the name of a version, weight_v and a number of six digits, or more where it needs them, by which receivers find it; name it "
            "such as weight_v000007"
        )
    base = request.base_version
    if base is None:
        base = anchor_version(request.old.root)
    if base is None:
        base = version - 1
    if not 0 <= base < version:
        raise PlanError(
            f"the base of the version {version_text(version)} should be an earlier one, from 0, but is {base}; give another base version, or name the "
            "target by a later version"
        )
    return version, base


def _check_new(place: Location, request: DeltaRequest) -> None:
    """Refuses a version that exists, which receivers may have read, and a place within a source."""
    try:
        check_place(place, request.old.root, overwrite=False)
        refuse_overlap(place, request.new.root)
    except TargetExistsError:
        raise TargetExistsError(
            f"the version {str(place)!r} exists already and was left untouched, since receivers may have read it; publish the next number"
        ) from None


def _refuse_other_base(index: DeltaIndex, place: Location) -> None:
    """Refuses an OLD that is not the base version beside the target, where that is a delta which says what it gives."""
    file = (place.parent / f"weight_v{version_text(index.base_version)}").view() / INDEX_NAME
    if not file.is_file():
        return
    data = read_bytes(file, what="the index of the base version")
    if not is_delta(json_value(data, str(file))):
        return
    base = parse_index(data, str(file))
    if base.checksum == index.checksum and base.target_digest not in (None, index.base_digest):
        raise VerificationError(
            f"the old checkpoint gives the digest {index.base_digest}, but {file} records {base.target_digest} for the version "
            f"{version_text(index.base_version)}: it is not what that version was made of, or other rules were applied; give the step of that "
            "version with the same rules, or publish a full version"
        )


def _refuse_other_runs(place: Location, left: Mapping[str, Any] | None) -> None:
    """Keeps what a conversion left that can be resumed; an earlier delta begins anew."""
    if left is not None and left != _MADE_BY:
        raise ResumeError(
            f"another run to {str(place)!r} was interrupted, and what it did was kept; run it again to resume it, or remove what it left "
            f"(reshard clean {place})"
        )


def _spool_folder(place: Location) -> str | None:
    """Payloads wait on the file system of the target; those for a bucket among the temporary files."""
    return place.parent.path if place.traits.renames else None


def _states(request: DeltaRequest) -> tuple[tuple[str, ...], ...]:
    places = (request.old.root, request.new.root)
    # Looked up anew: what a call remembers of a bucket never changes.
    return tuple(tuple(locate(str(place)).state()) for place in places)


def _marks(index: DeltaIndex, place: Location) -> dict[str, bytes]:
    """The files that say that the version is whole; the index last."""
    marks = {} if place.traits.renames else {COMMIT_MARKER: COMMITTED}
    return {**marks, INDEX_NAME: render_index(index)}


def _index(
    request: DeltaRequest,
    version: int,
    base_version: int,
    recorded: RecordedRoots,
    payloads: Sequence[TensorPayload],
    files: Sequence[PayloadFile],
) -> DeltaIndex:
    before = {one.spec.name: listed_tensor(one.spec, one.digests[0]) for one in payloads}
    after = {one.spec.name: listed_tensor(one.spec, one.digests[1]) for one in payloads}
    return DeltaIndex(
        version,
        base_version,
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
        version_text(index.version),
        version_text(index.base_version),
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
