"""Proves one target after its last task, by its digests and its files, and publishes it.

Nothing is published before every digest agrees and every chunk is found where it was stored. The digests are those that the source
recorded, and those of the output read back.

Most digests are taken while tensors are moved. A tensor that is copied encoded is not decoded: where its chunks have no
checksum, nothing else shows whether its bytes changed, and it is read again at the end for its digest alone.

To read back, the kernel is asked to drop the files from its cache first, so that reading reaches the device. Tensors that
were copied encoded were never decoded, so that their sources are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.crc import CRC32C_OF_CHECKED
from reshard.conversion.conversion_key import source_state
from reshard.engine.books import TensorResult, closed_bytes
from reshard.engine.decode.chunk_reader import check_recorded
from reshard.engine.journal import missing_in_bucket
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_digests import check_decodable, tensor_digests
from reshard.errors import (
    CorruptError,
    FormatError,
    MemoryBudgetError,
    SourceChangedError,
    StorageError,
    VerificationError,
)
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.codecs.source import REMEDY
from reshard.formats.contents import Encoding
from reshard.formats.file_map import ChunkChecksum, finish_files
from reshard.formats.registry import open_written, refuse_other_content
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped_checkpoint import unequal
from reshard.planning.plans import Plan, TensorPlan
from reshard.storage.location import Location, locate
from reshard.storage.target import FileRange, first_changed, look

if TYPE_CHECKING:
    from reshard.conversion.make_plan import JointPlan, TargetPlan
    from reshard.conversion.open_target import OpenTarget
    from reshard.conversion.run import Run


def finish_target(
    run: Run[Any], plan: JointPlan, target: OpenTarget
) -> tuple[Sequence[TensorResult], dict[str, Any]]:
    """Writes the metadata of a target and checks all of it; returns the result of each tensor, and members of the report.

    Raises VerificationError or CorruptError where a digest is wrong, StorageError for a missing chunk,
    SourceChangedError where the source changed.
    """
    planned, transaction, limits = target.planned, target.transaction, plan.limits(run.executor)
    results: Sequence[TensorResult] = target.books.results()
    seen, crcs = target.books.source_digests(), target.books.source_crcs()
    check_sources(planned.plan, planned.reader, seen, crcs, limits)
    if planned.equal:
        _check_equal(planned.reader, planned.equal, seen, limits)
    if not transaction.root.traits.has_versions:  # else `check_put` proves more
        check_stored(target)
    digests, checksums = _digests(planned, results), ChunkChecksums(target)
    markers = finish_files(target.output.files, target.recording_root, digests, checksums)
    transaction.mark(markers)
    tell = run.progress.listener
    if target.read_back:
        from reshard.conversion.parts.read_back import proved_by_parts

        check_complete(open_written(transaction.written()))
        results = proved_by_parts(planned.plan, results, target.read_back)
    elif planned.target.check == "readback":
        results = read_back(
            planned.plan, planned.reader, results, transaction.written(), limits, tell
        )
    members: dict[str, Any] = {}
    for feature in plan.features:
        members |= feature.prove(target, results, limits, tell)
    if source_state(locate(planned.key.source), plan.chosen.computed) != planned.key.files:
        raise SourceChangedError(
            f"the source {planned.summary.source!r} changed while it was read: the names, sizes or times of its files "
            "are not what they were; the output was discarded; run again when nothing writes to it"
        )
    run.progress.end("syncing")
    return results, members


def publish_target(target: OpenTarget) -> None:
    """Publishes a finished target; in a bucket every object is looked for once more, right before the marker."""
    overwrite, prove = target.planned.target.overwrite, partial(check_put, target)
    target.transaction.commit(overwrite=overwrite, check=refuse_other_content, prove=prove)


def _digests(target: TargetPlan, results: Sequence[TensorResult]) -> dict[str, str]:
    """Each target tensor's digest; one whose chunks were copied encoded keeps its source's."""
    digests: dict[str, str] = {}
    for tensor, result in zip(target.plan.tensors, results, strict=True):
        # Only a chunk of an equal tensor is copied as it is, so that the one source has the digest.
        recorded = (
            None if result.target_digest else target.reader.tensors[tensor.piece.source].digest
        )
        digest = result.target_digest or recorded
        if digest is not None:
            digests[tensor.name] = digest
    return digests


class ChunkChecksums(Struct, frozen=True):
    """Every chunk of a target whose units are all filled, in any order; each iteration reads the journal anew.

    Raises StorageError where the journal is not whole any more.
    """

    target: OpenTarget

    def __iter__(self) -> Iterator[ChunkChecksum]:
        plan, count = self.target.planned.plan, 0
        for chunk in self.target.recorded_chunks():
            if chunk.stored_bytes is None:
                continue
            crc32c = CRC32C_OF_CHECKED if chunk.has_trailer else chunk.crc32c
            if crc32c is not None:
                name = plan.tensors[chunk.tensor].name
                yield ChunkChecksum(name, chunk.stored.index, chunk.stored_bytes, crc32c)
                count += 1
        expected = sum(tensor.target.spec.storage.count for tensor in plan.tensors)
        if count != expected:
            raise StorageError(
                f"the journal in {self.target.transaction.place!r} names {count} of {expected} finished chunks, so that their "
                "checksums are not known; nothing was published; leave that folder alone, and run again"
            )


def check_stored(target: OpenTarget) -> None:
    """Raises StorageError, naming a tensor and its chunk, unless every chunk is below the output's root.

    Digests do not show that a worker wrote elsewhere, or that somebody removed files.
    """
    plan, output = target.planned.plan, target.output
    is_stored = look(target.transaction.root)
    for tensor in plan.tensors:
        spec = tensor.target.spec
        encoding = output.encodings[spec.name]
        for index in spec.storage.indices():
            for place in output.places(spec.name, index):
                nbytes = _raw_bytes(spec, index, encoding) or None
                if not is_stored(FileRange(place.file, place.offset, nbytes)):
                    path = f"{output.root}/{place.file}"
                    raise StorageError(
                        f"tensor {spec.name!r}, chunk {list(index)}: it was written, but is not whole in {path!r}; "
                        "nothing was published; leave that folder alone, give only executors whose workers share "
                        "this file system, and run again"
                    )


def check_put(target: OpenTarget, marks: Mapping[str, str]) -> None:
    """Raises StorageError unless every object of a target in a bucket is listed in the version that was put.

    These are the objects that this run, or the one that it resumes, has put: recorded chunks and all metadata. ``marks``:
    the versions of the objects that the transaction has put.
    """
    plan = target.planned.plan
    listed = target.transaction.root.view()
    if (changed := first_changed(listed, {**target.put, **marks})) is not None:
        raise _other_than_put(changed)

    missing = missing_in_bucket(target.recorded_chunks, listed)
    for number, index in sorted(missing):
        chunk = f"tensor {plan.tensors[number].name!r}, chunk {list(index)}"
        raise _other_than_put(f"{chunk}, below {target.output.root}")
    count = sum(1 for chunk in target.recorded_chunks() if chunk.stored_bytes is not None)
    expected = sum(tensor.target.spec.storage.count for tensor in plan.tensors)
    if count != expected:
        raise StorageError(
            f"the records in {target.transaction.place} name {count} of {expected} finished chunks; nothing was published; leave "
            "that folder alone, and run again"
        )


def _other_than_put(what: str) -> StorageError:
    return StorageError(
        f"{what}: it was put, but is not there now, or is another object; nothing was published; make sure that nothing else "
        "writes there, and run again"
    )


def _raw_bytes(spec: TensorSpec, index: Index, encoding: Encoding) -> int | None:
    """The size of an uncompressed chunk; None for a compressed one, whose size is not known."""
    return None if encoding.compressor != "none" else closed_bytes(spec, encoding, index)


def check_complete(reader: Reader) -> None:
    """Raises CorruptError, naming tensor and chunk, where a chunk of a checkpoint is missing or cut short."""
    for name, stored in reader.tensors.items():
        for index in stored.spec.storage.indices():
            extent = reader.locate(name, index)
            expected = _raw_bytes(stored.spec, index, stored.encoding)
            if extent is not None and extent.length != (expected or extent.length):
                raise CorruptError(
                    f"tensor {name!r}, chunk {list(index)}: expected {expected} bytes in {extent.path!r}, found "
                    f"{extent.length}"
                )


def check_sources(
    plan: Plan,
    reader: Reader,
    seen: Mapping[tuple[int, str], str],
    crcs: Mapping[tuple[int, str], int],
    limits: Limits,
) -> None:
    """Compares the digest or checksum of every source tensor with the one that the source recorded, if any.

    Args:
        seen: the digests that were taken while tensors were moved (``Books.source_digests``).
        crcs: the formats' checksums of what was read (``Books.source_crcs``).

    Raises CorruptError where the source changed since, VerificationError where something else was written.
    """
    unseen = _unseen(plan, reader)
    found = {name: digest for (_, name), digest in seen.items()}
    found |= tensor_digests(reader, limits, unseen) if unseen else {}
    for (_, name), total in crcs.items():
        recorded_crcs = reader.tensors[name].proving_crcs()
        if name not in unseen and recorded_crcs is not None and total != recorded_crcs.total:
            raise _crc_difference(plan, reader, name, limits)
    for name, digest in found.items():
        recorded = reader.tensors[name].digest
        if recorded and recorded != digest:
            raise _difference(plan, reader, name, digest, limits)
    for holder, names in _operands(plan, reader):
        for name, digest in tensor_digests(holder, limits, names).items():
            if recorded := holder.tensors[name].digest:
                check_recorded(name, digest, recorded)


def _operands(plan: Plan, reader: Reader) -> Iterator[tuple[Reader, set[str]]]:
    """The operands of computed sources whose digests are recorded: they are read once more, since windows of them were read in parts."""
    used = {piece.source for t in plan.tensors for piece in t.pieces if piece.fill is None}
    computed = [n for n in used if reader.tensors[n].encoding.compressor == "computed"]
    if not computed:
        return iter(())
    from reshard.formats.computed.tensors import recorded_operands

    return recorded_operands(reader, computed)


def _difference(
    plan: Plan, reader: Reader, name: str, found: str, limits: Limits
) -> CorruptError | VerificationError:
    """The error of the source or of the output; reads the source once more to tell which.

    Raises CorruptError, naming the chunk, where one of the source does not have its own checksum.
    """
    target = next(t.name for t in plan.tensors if any(p.source == name for p in t.pieces))
    recorded = reader.tensors[name].digest
    try:
        now = tensor_digests(reader, limits, [name])[name]
    except MemoryBudgetError:
        return VerificationError(
            f"{target!r}: what was written has digest {found}, but {recorded} was recorded of its source; the output "
            f"was discarded; run reshard verify {reader.uri} with more memory: if it finds nothing, check this machine's"
        )
    if now == recorded:
        return VerificationError(
            f"{target!r}: what was written has digest {found}, but what was read has {recorded}; the output was "
            "discarded; check this machine's memory, then run again"
        )
    return CorruptError(
        f"{name!r} in {reader.uri!r} has digest {now}, but {recorded} was recorded when it was written: "
        "its bytes changed since; restore it from another copy"
    )


def _crc_difference(plan: Plan, reader: Reader, name: str, limits: Limits) -> VerificationError:
    """The error where the bytes read are not those stored; raises CorruptError where the stored bytes are wrong themselves."""
    tensor_digests(reader, limits, [name])
    target = next(t.name for t in plan.tensors if any(p.source == name for p in t.pieces))
    crcs = reader.tensors[name].crcs
    kind = "CRC" if crcs is None else crcs.crc.title
    return VerificationError(
        f"{target!r}: what was read of {name!r} does not have the {kind} that was recorded, but what is stored has it; the output was "
        "discarded; check this machine's memory, then run again"
    )


def _check_equal(
    reader: Reader,
    pairs: Sequence[tuple[str, str]],
    seen: Mapping[tuple[int, str], str],
    limits: Limits,
) -> None:
    """Raises VerificationError for source tensors that differ though a map says that they are equal.

    A tensor that was not moved is read for its digest alone.
    """
    known = {name: digest for (_, name), digest in seen.items()}
    for first, second in unequal(reader, pairs, known, limits):
        raise VerificationError(
            f"the map says that {first!r} equals {second!r} (same_as), but their digests differ; "
            "the output was discarded; give the first a rule of its own"
        )


def check_unseen_memory(
    plan: Plan, reader: Reader, limits: Limits, pairs: Sequence[tuple[str, str]] = ()
) -> None:
    """Raises MemoryBudgetError now for tensors that could not be read after everything was written."""
    if names := _unseen(plan, reader) | {name for pair in pairs for name in pair}:
        stored = (reader.tensors[name] for name in names)
        check_decodable(((each.spec, each.encoding) for each in stored), limits)
    for holder, names in _operands(plan, reader):
        stored = (holder.tensors[name] for name in names)
        check_decodable(((each.spec, each.encoding) for each in stored), limits)


def _unseen(plan: Plan, reader: Reader) -> set[str]:
    copied = {t.piece.source for t in plan.tensors if t.strategy == "copy"}
    unseen = {
        name
        for name in copied
        if (reader.tensors[name].digest or reader.tensors[name].proving_crcs())
        and not reader.tensors[name].encoding.checksum
    }
    return unseen | {
        piece.source
        for tensor in plan.tensors
        for piece in tensor.pieces
        if piece.source_view is not None
        and piece.fill is None
        and _is_unsummed(reader, piece.source)
    }


def _is_unsummed(reader: Reader, name: str) -> bool:
    """True if the format's checksums cover pieces, which a view does not keep apart."""
    stored = reader.tensors[name]
    return stored.proving_crcs() is not None and stored.proving_crcs(is_viewed=True) is None


_DISCARDED = "the output was discarded; check the device that holds it, then run again"


def check_read_back(plan: Plan, reader: Reader, target: TargetCheckpoint, limits: Limits) -> None:
    """Raises MemoryBudgetError now for tensors that could not be read back after everything was written."""
    check_decodable(((t.spec, t.encoding) for t in target.tensors.values()), limits)
    copied = (reader.tensors[t.piece.source] for t in plan.tensors if t.strategy == "copy")
    check_decodable(((t.spec, t.encoding) for t in copied), limits)


def read_back(
    plan: Plan,
    reader: Reader,
    results: Sequence[TensorResult],
    written: Location,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> list[TensorResult]:
    """The results, with a digest of every tensor; VerificationError where a tensor does not read back as written."""
    found = _stored_digests(written, limits, progress)
    encoded = {
        tensor.piece.source
        for tensor, result in zip(plan.tensors, results, strict=True)
        if result.target_digest is None
    }
    of_source = tensor_digests(reader, limits, encoded)
    return [
        _proved(tensor, result, found, of_source)
        for tensor, result in zip(plan.tensors, results, strict=True)
    ]


def _stored_digests(
    written: Location, limits: Limits, progress: Callable[[Progress], None] | None
) -> dict[str, str]:
    """Digests of the unpublished output; where it cannot be read, the error names the output, not the source."""
    try:
        return tensor_digests(open_written(written), limits, progress=progress)
    except FormatError as error:
        what = str(error).removesuffix(f"; {REMEDY}")
        raise VerificationError(
            f"what was written does not read back: {what}; {_DISCARDED}"
        ) from error


def _proved(
    tensor: TensorPlan, result: TensorResult, found: Mapping[str, str], of_source: Mapping[str, str]
) -> TensorResult:
    name = tensor.name
    expected = result.target_digest or of_source[tensor.piece.source]
    if found.get(name) != expected:
        raise VerificationError(
            f"{name!r} was read back with digest {found.get(name)}, but {expected} was written; {_DISCARDED}"
        )
    source = result.source_digest if result.target_digest else expected
    return replace(result, source_digest=source, target_digest=expected)
