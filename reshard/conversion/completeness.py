"""Checks that every chunk is there and has its size, without reading it."""

from __future__ import annotations

from collections.abc import Mapping

from reshard.conversion.resume.journaled_chunks import missing_in_bucket
from reshard.conversion.target_job import OpenTarget
from reshard.engine.tensor_book import closed_bytes
from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.target import FileRange, first_changed, look


def check_stored(target: OpenTarget) -> None:
    """Raises StorageError, naming a tensor and its chunk, unless every chunk is below the output's root.

    A worker that writes elsewhere, or someone who cleans up, does not disturb any digest.
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

    That is what this run has put, or the one that it resumes: chunks by the records, and all metadata. ``marks``: the
    versions of those that its transaction has put.
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
    """The size of a chunk that is not compressed, of which alone it is known."""
    return None if encoding.compressor != "none" else closed_bytes(spec, encoding, index)


def check_complete(reader: Reader) -> None:
    """Raises CorruptError, naming a tensor and its chunk, where one of a checkpoint is gone or cut short."""
    for name, stored in reader.tensors.items():
        for index in stored.spec.storage.indices():
            extent = reader.locate(name, index)
            expected = _raw_bytes(stored.spec, index, stored.encoding)
            if extent is not None and extent.length != (expected or extent.length):
                raise CorruptError(
                    f"tensor {name!r}, chunk {list(index)}: expected {expected} bytes in {extent.path!r}, found "
                    f"{extent.length}"
                )
