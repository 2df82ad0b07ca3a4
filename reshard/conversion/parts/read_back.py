"""The proof ``readback`` of a conversion in parts: each part reads back the chunks that it wrote, and the commit compares whole tensors.

A part sums up what it reads, as digests do, and seals its work with these sums; the sums of all parts together are the digests of the tensors.
Each chunk is written by one part, so that each is read back once, on the host that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.checksums.sums import digest_text
from reshard.conversion.open_target import OpenTarget
from reshard.engine.books import TensorResult
from reshard.engine.limits import Limits
from reshard.engine.progress import Tell
from reshard.engine.read_digests import sums_of_chunks
from reshard.errors import FormatError, VerificationError
from reshard.formats.base import Chunks, Reader
from reshard.formats.codecs.source import REMEDY
from reshard.formats.contents import Extent, StoredTensor
from reshard.geometry.grid import Index
from reshard.planning.plans import Plan

ReadBack = Mapping[str, int]
"""The sum of the chunks of each tensor, by its name; the sums of all chunks, by XOR, are the digest."""

_DISCARDED = "what this part did was discarded; check the device that holds it, then run again"


class WrittenChunks(Chunks):
    """The chunks that a part has recorded, in the files below its root."""

    def __init__(self, target: OpenTarget) -> None:
        self._extents: dict[tuple[str, Index], Extent] = {}
        root = target.transaction.root
        for chunk in target.recorded_chunks():
            name = target.planned.plan.tensors[chunk.tensor].name
            for number, place in enumerate(chunk.places[:1]):
                version = chunk.stored.versions[number] if chunk.stored.versions else ""
                path, nbytes = str(root / place.file), chunk.stored_bytes or 0
                extent = Extent(path, place.start, nbytes, version=version)
                self._extents[name, chunk.stored.index] = extent

    def locate(self, name: str, index: Index) -> Extent | None:
        return self._extents[name, index]

    def __iter__(self) -> Iterator[tuple[str, Index]]:
        """The tensor and the index of each chunk."""
        return iter(self._extents)


def read_back_part(target: OpenTarget, limits: Limits, tell: Tell | None) -> ReadBack:
    """Reads back every chunk that a part wrote; VerificationError unless the bytes are those that were handed to the storage."""
    planned, chunks = target.planned, WrittenChunks(target)
    target.transaction.written()  # so that the bytes come from the device
    stored = {
        name: StoredTensor(tensor.spec, tensor.encoding, b"\0" * tensor.spec.itemsize, False)
        for name, tensor in planned.checkpoint.tensors.items()
    }
    reader = Reader(
        str(planned.place), planned.reader.format, planned.reader.container, stored, (), chunks, 0
    )
    try:
        found = sums_of_chunks(reader, chunks, limits, tell)
    except FormatError as error:
        what = str(error).removesuffix(f"; {REMEDY}")
        raise VerificationError(
            f"what was written does not read back: {what}; {_DISCARDED}"
        ) from error
    expected = _expected(target, limits)
    for name, total in found.items():
        if expected.get(name) != total:
            raise VerificationError(
                f"{name!r}: the chunks that were read back have the sum {total:016x}, but those written {expected.get(name, 0):016x}; {_DISCARDED}"
            )
    return found


def _expected(target: OpenTarget, limits: Limits) -> ReadBack:
    """The sums of what was written; those of chunks that were copied encoded are read from the source."""
    plan, reader = target.planned.plan, target.planned.reader
    found: dict[str, int] = {}
    copied: dict[tuple[str, Index], str] = {}
    for result in target.recorded():
        tensor = plan.tensors[result.tensor]
        found.setdefault(tensor.name, 0)
        for sums in result.sums:
            found[tensor.name] ^= sums.target
        if not all(sums.is_seen for sums in result.sums):
            source = tensor.fill_at(result.unit)[0].piece.source
            copied |= {(source, chunk.index): tensor.name for chunk in result.chunks}
    by_source = {source: name for (source, _), name in copied.items()}
    for source, total in sums_of_chunks(reader, copied, limits).items():
        found[by_source[source]] ^= total
    return found


def proved_by_parts(
    plan: Plan, results: Sequence[TensorResult], parts: Sequence[ReadBack]
) -> list[TensorResult]:
    """The results, with the digest of every tensor as all parts read it back; VerificationError where it is not that of what was written."""
    proved = []
    for tensor, result in zip(plan.tensors, results, strict=True):
        total = 0
        for part in parts:
            total ^= part.get(tensor.name, 0)
        digest = digest_text(total, tensor.target.spec.nbytes)
        if result.target_digest not in (None, digest):
            raise VerificationError(
                f"{tensor.name!r} was read back with digest {digest}, but {result.target_digest} was written; the output was discarded; check the "
                "device that holds it, then run again"
            )
        source = digest if result.target_digest is None else result.source_digest
        proved.append(replace(result, source_digest=source, target_digest=digest))
    return proved
