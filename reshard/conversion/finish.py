"""Finishes one target after its last task: writes its metadata, proves it and publishes it.

Nothing is published before every digest agrees and every chunk is found where it was stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct

from reshard.checksums.crc import CRC32C_OF_CHECKED
from reshard.conversion.conversion_key import source_state
from reshard.conversion.journal import missing_in_bucket
from reshard.conversion.proof import check_equal, check_sources, read_back
from reshard.conversion.report import IdentityReport
from reshard.conversion.run import TotalProgress
from reshard.conversion.target_identity import finish_identity
from reshard.conversion.target_job import OpenTarget, TargetJob
from reshard.engine.books import TensorResult, closed_bytes
from reshard.engine.limits import Limits
from reshard.errors import CorruptError, SourceChangedError, StorageError
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding
from reshard.formats.file_map import ChunkChecksum, finish_files
from reshard.formats.registry import refuse_other_content
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate
from reshard.storage.target import FileRange, first_changed, look


class FinishedTarget(Struct, frozen=True):
    """The outcome of a target that is proved.

    Attributes:
        results: of each tensor of the plan.
        identity: of its weights; None where none was made.
    """

    results: Sequence[TensorResult]
    identity: IdentityReport | None = None


def finish_target(target: OpenTarget, limits: Limits, progress: TotalProgress) -> FinishedTarget:
    """Writes the metadata of a target, checks all of it, and returns the outcome.

    Raises VerificationError or CorruptError where a digest is wrong, StorageError for a missing chunk,
    SourceChangedError where the source changed.
    """
    job, transaction = target.job, target.transaction
    results = target.books.results()
    seen = target.books.source_digests()
    check_sources(job.plan, job.reader, seen, target.books.source_crcs(), limits)
    check_equal(job.reader, job.equal, seen, limits)
    if not transaction.root.traits.has_versions:  # else `check_put` proves more
        check_stored(target)
    digests, checksums = _digests(job, results), ChunkChecksums(target)
    markers = finish_files(target.output.files, target.recording_root, digests, checksums)
    transaction.mark(markers)
    if job.options.check == "readback":
        results = read_back(
            job.plan, job.reader, results, transaction.written(), limits, progress.listener
        )
    identity = finish_identity(target, results, seen, limits, progress.listener)
    _refuse_changed_source(job)
    progress.end("syncing")
    return FinishedTarget(results, identity)


def publish_target(target: OpenTarget) -> None:
    """Publishes a finished target; in a bucket every object is looked for once more, right before the marker."""
    overwrite, prove = target.job.options.overwrite, partial(check_put, target)
    target.transaction.commit(overwrite=overwrite, check=refuse_other_content, prove=prove)


def _refuse_changed_source(job: TargetJob) -> None:
    if source_state(locate(job.key.source), job.deltas) != job.key.files:
        raise SourceChangedError(
            f"the source {job.summary.source!r} changed while it was read: the names, sizes or times of its files "
            "are not what they were; the output was discarded; run again when nothing writes to it"
        )


def _digests(job: TargetJob, results: Sequence[TensorResult]) -> dict[str, str]:
    """Each target tensor's digest; one whose chunks were copied encoded keeps its source's."""
    digests: dict[str, str] = {}
    for tensor, result in zip(job.plan.tensors, results, strict=True):
        # Only a chunk of an equal tensor is copied as it is, so that the one source has the digest.
        recorded = None if result.target_digest else job.reader.tensors[tensor.piece.source].digest
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
        plan, count = self.target.job.plan, 0
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
    plan, output = target.job.plan, target.output
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
    plan = target.job.plan
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
