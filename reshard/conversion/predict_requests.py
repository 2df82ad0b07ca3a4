"""Predicts the requests of a conversion from or to buckets: those that its opening made, and those that are still to come.

The formulas in ``planning/requests.py`` take facts of the open source, of the file map of a target, and of buckets, which
are found here.

An example: a tensor of 4 compressed chunks, each stored in 40 MiB, is copied from S3 to Google Cloud as it is.

1. ``source_tensors`` looks at the 4 chunks. A request reads 8 MiB, so that a chunk takes 5. Reading each chunk once takes
   4 × 5 = 20 gets, which receive 160 MiB.
2. ``_way_of_copy`` says how each chunk gets there. No store copies it, since the target is in another bucket. 40 MiB are more
   than the 16 MiB that are put whole, so that it goes in parts.
3. ``requests_of_source``: one target takes the chunks in parts, and nothing reads them again: 20 gets, as in step 1. The
   source is listed again at the end: 1 list.
4. ``_requests_of_chunks``: a chunk is uploaded in 5 parts of 8 MiB between 2 puts, which begin and end the upload. Google Cloud
   proves no upload in parts, so that the chunk is read back in 5 ranges. The 4 chunks take 8 puts, 20 parts and 20 gets, which
   send and receive 160 MiB.

Chunks that must be decoded are read by every task that wants elements of them; ``planning/requests.py`` has an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.target_plan import Planned
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import Extent, StoredTensor
from reshard.formats.file_map import FileMap
from reshard.planning.multi_plan import Read
from reshard.planning.request_plan import RequestPlan
from reshard.planning.requests import (
    ChunkReads,
    Ranges,
    Writing,
    carried,
    copied,
    deleted,
    metadata,
    of_transaction,
    reading_of,
    reads,
    requests_of_read_back,
    uploaded,
    writing_of,
)
from reshard.planning.tensor_plan import Fill
from reshard.storage.base import Traits
from reshard.storage.buckets.counts import so_far
from reshard.storage.buckets.listing import BYTES_PER_OBJECT
from reshard.storage.copying import is_copied_by_store
from reshard.storage.location import Location, locate
from reshard.storage.requests import NONE, Requests, pages_of
from reshard.storage.target import traits_at, upload_parts

SAMPLES = 64
"""Chunks of a tensor that are looked at, evenly spread; each stands for as many others."""


def predict_requests(
    planned: Planned, left: Mapping[int, CheckedTarget], chosen: CheckpointPath, more: Requests
) -> RequestPlan:
    """The requests to buckets of a conversion to the targets that are ``left``, by number, and ``more`` that it makes before.

    Opening the source and looking at the targets was done already, so that it is counted and not estimated.
    """
    in_buckets = {n: target for n, target in left.items() if traits_at(target.target).by_requests}
    tensors = source_tensors(planned, chosen.root.traits.range_bytes)
    parts = [requests_of_target(planned, n, target, tensors) for n, target in in_buckets.items()]
    if chosen.root.traits.by_requests:
        parts.append(requests_of_source(planned, left, tensors, chosen.root))
    looked = so_far() - chosen.before + more
    gets = Requests(get=looked.get, received_bytes=looked.received_bytes)
    parts.append(RequestPlan(looked - gets, gets))
    return RequestPlan(
        sum((part.steps for part in parts), NONE),
        sum((part.metadata for part in parts), NONE),
        sum((part.data for part in parts), NONE),
        planned.summary.total.workers,
        len(in_buckets),
        _segment_deletes(in_buckets.values()),
    )


def _segment_deletes(targets: Iterable[CheckedTarget]) -> int:
    """Requests that remove one segment of records; a store that deletes many objects at once removes all segments in one."""
    found = (traits_at(target.target).requests for target in targets)
    return int(any(requests.deleted_at_once == 1 for requests in found))


class SourceTensor(Struct, frozen=True):
    """A source tensor: its storage, its chunks, and the extent of one of them as an example; None where none is in a file."""

    stored: StoredTensor
    chunks: ChunkReads
    example: Extent | None


SourceTensors = Mapping[str, SourceTensor]
"""By name."""


def source_tensors(planned: Planned, range_bytes: int) -> dict[str, SourceTensor]:
    """The facts of each tensor that a plan reads, by name; ``range_bytes`` as for ``source_tensor``."""
    reader = planned.reader
    pieces = (p for one in planned.summary.plans for t in one.plan.tensors for p in t.pieces)
    return {
        name: source_tensor(reader, name, range_bytes)
        for name in {piece.source for piece in pieces if piece.fill is None}
    }


def source_tensor(reader: Reader, name: str, range_bytes: int) -> SourceTensor:
    """The facts of one tensor, by some of its chunks; ``range_bytes`` are read in one request, 0 where reads are no requests."""
    stored, grid = reader.tensors[name], reader.tensors[name].spec.storage
    step = max(1.0, grid.count / SAMPLES)
    places = [grid.index_at(int(step * n)) for n in range(min(grid.count, SAMPLES))]
    found = [extent for index in places if (extent := reader.locate(name, index)) is not None]
    inside = [extent for extent in found if extent.inline is None]
    lengths = [length for extent in inside for length in _lengths_read(extent)]
    chunks = ChunkReads(
        grid.count,
        _requests_of_ranges(lengths, range_bytes, step),
        len(inside) / max(1, len(places)),
        sum(extent.length for extent in found) / max(1, len(found)),
    )
    return SourceTensor(stored, chunks, inside[0] if inside else None)


def _requests_of_ranges(lengths: Sequence[int], range_bytes: int, step: float) -> Requests:
    """The requests to read stretches of these lengths, each ``step`` times; none where reads are no requests."""
    if not range_bytes:
        return NONE
    gets = sum(-(-length // range_bytes) for length in lengths)
    return Requests(get=round(step * gets), received_bytes=round(step * sum(lengths)))


def _lengths_read(extent: Extent) -> Iterator[int]:
    """The stretches of files that a chunk is read from."""
    if extent.pieces is None:
        yield extent.length
        yield from (layer.length for layer in extent.layers if layer.length)
    else:
        yield from (piece.box.size * extent.pieces.itemsize for piece in extent.pieces.pieces)


def requests_of_source(
    planned: Planned, targets: Mapping[int, CheckedTarget], tensors: SourceTensors, root: Location
) -> RequestPlan:
    """The requests to read the chunks of a source in a bucket, and to list it again at the end for each target."""
    total, data = planned.summary.total, NONE
    for read in total.reads:
        left = list(dict.fromkeys(at.target for at in read.fills if at.target in targets))
        if left:
            asked = [targets[number] for number in left]
            data += _requests_of_read(
                read, total.fill(read.fills[0]), asked, tensors, root.traits.range_bytes
            )
    objects = root.view().traits.memory_bytes // BYTES_PER_OBJECT
    again = Requests(list=pages_of(objects), head=int(root.is_file()))
    return RequestPlan(again * len(targets), data=data)


def _requests_of_read(
    read: Read, fill: Fill, asked: Sequence[CheckedTarget], tensors: SourceTensors, range_bytes: int
) -> Requests:
    """The requests of one read of a tensor, for all targets that share it.

    Chunks that are copied encoded are read once for each target that takes them in parts; if there is none, once for all that
    take them whole. They are read again for digests, where something asks for them.
    """
    if fill.strategy != "copy":
        pieces = [n for n, piece in enumerate(fill.pieces) if piece.fill is None]
        return sum(
            (_requests_of_decoding(read, fill, number, tensors, range_bytes) for number in pieces),
            NONE,
        )
    tensor = tensors[fill.piece.source]
    encoding = tensor.stored.encoding
    ways = [_way_of_copy(tensor, one.target, is_alone=len(asked) == 1) for one in asked]
    is_unseen = bool(tensor.stored.digest) and not encoding.checksum
    again = sum(is_unseen + (one.options.check == "readback") for one in asked)
    return tensor.chunks.once * ((ways.count("parts") or "whole" in ways) + again)


def _requests_of_decoding(
    read: Read, fill: Fill, number: int, tensors: SourceTensors, range_bytes: int
) -> Requests:
    """The requests to decode one piece of a read."""
    tensor = tensors[fill.pieces[number].source]
    encoding = tensor.stored.encoding
    reading = reading_of(
        read, fill, number, seekable=is_seekable(encoding), checksum=encoding.checksum
    )
    return reads(
        reading, tensor.chunks, Ranges(range_bytes, max(range_bytes, encoding.read_ahead_bytes))
    )


WayOfCopy = Literal["store", "parts", "whole"]


def _way_of_copy(tensor: SourceTensor, target: str, *, is_alone: bool) -> WayOfCopy:
    """The way to copy chunks that are the same on both sides: by the store itself, in parts, or whole through memory.

    ``is_alone``: true if no other target is filled from the same read.
    """
    example, nbytes = tensor.example, round(tensor.chunks.mean_bytes)
    if example is None or traits_at(target).in_place:
        return "whole"
    is_whole_object = bool(example.version) and not example.offset
    is_provable = is_alone and is_whole_object and tensor.stored.encoding.checksum
    if is_provable and is_copied_by_store(example.path, example.version, target, nbytes):
        return "store"
    return "parts" if upload_parts(traits_at(target), nbytes) else "whole"


def requests_of_target(
    planned: Planned, number: int, target: CheckedTarget, tensors: SourceTensors
) -> RequestPlan:
    """The requests to write target ``number``, which is in a bucket."""
    plan, checkpoint = planned.summary.plans[number].plan, planned.checkpoints[number]
    root = locate(target.target)
    store = root.traits.requests
    written = list(map(writing_of, plan.tensors))
    data = _requests_of_shared_files(written, checkpoint.form.plan(checkpoint), root.traits)
    shared = _tensors_of_shared_reads(planned.summary.total.reads, number)
    for at, writing in enumerate(written):
        if not writing.shared:
            tensor = tensors[writing.source]
            data += _requests_of_chunks(writing, tensor, target.target, is_alone=at not in shared)
    before, after = metadata(
        len(written),
        sum(map(len, checkpoint.tensors)),
        sum(item.is_tree for item in checkpoint.container.items),
        own_files=not any(writing.shared for writing in written),
    )
    files = before + after
    chunks = sum(writing.chunks.count for writing in written)
    steps = after + of_transaction(store, data.put + files.put, chunks, plan.tasks)
    steps += _requests_of_items(checkpoint)
    if target.options.overwrite:
        steps += deleted(store, sum(1 for _ in root.files()))
    known = planned.weights[number]
    mode = known.mode
    is_hashed = mode in ("compute", "check")
    passes = (target.options.check == "readback") + is_hashed
    if passes:
        ranges = sum(w.read_back(root.traits.range_bytes) for w in written)
        data += requests_of_read_back(data, files, ranges) * passes
    if mode != "none":
        signed = known.signature is not None
        steps += Requests(put=2 + signed)  # identity.json, identity.tree and identity.dsse.json
    return RequestPlan(steps, before, data)


def _tensors_of_shared_reads(reads: Iterable[Read], target: int) -> set[int]:
    """The tensors of a target whose reads other tensors share."""
    shared = (read.fills for read in reads if len(read.fills) > 1)
    return {at.tensor for fills in shared for at in fills if at.target == target}


def _requests_of_chunks(
    writing: Writing, tensor: SourceTensor, target: str, *, is_alone: bool
) -> Requests:
    """The requests to write chunks that are files of their own."""
    traits = traits_at(target)
    if not writing.copied:
        return Requests(put=writing.puts, sent_bytes=_encoded_bytes(writing, tensor))
    nbytes = round(tensor.chunks.mean_bytes) or writing.chunk_bytes
    match _way_of_copy(tensor, target, is_alone=is_alone):
        case "store":
            return copied(traits.requests) * writing.puts
        case "parts":
            return _requests_of_upload(traits, nbytes) * writing.puts
        case "whole":
            return Requests(put=1, sent_bytes=nbytes) * writing.puts


def _requests_of_upload(traits: Traits, nbytes: int) -> Requests:
    ranges = -(-nbytes // traits.range_bytes)
    return uploaded(traits.requests, nbytes, upload_parts(traits, nbytes), ranges)


def _encoded_bytes(writing: Writing, tensor: SourceTensor) -> int:
    """Stored bytes of a target's chunks; recompressed chunks are taken to shrink as they did in the source."""
    mean_bytes, decoded = tensor.chunks.mean_bytes, tensor.stored.spec.chunk_bytes
    if writing.raw or tensor.stored.encoding.compressor == "none" or not mean_bytes:
        return writing.nbytes
    return round(writing.nbytes * mean_bytes / decoded)


def _requests_of_shared_files(
    written: Iterable[Writing], target: FileMap, traits: Traits
) -> Requests:
    """The requests to write files that chunks share."""
    chunks = (
        (one.target, index) for one in written if one.shared for index in one.chunks.indices()
    )
    files = dict.fromkeys(place.file for chunk in chunks for place in target.places(*chunk))
    sizes = (target.shared_file(file).nbytes for file in files)
    return sum((_requests_of_upload(traits, nbytes) for nbytes in sizes), NONE)


def _requests_of_items(checkpoint: TargetCheckpoint) -> Requests:
    """The requests to copy the files of items that are no trees."""
    made = NONE
    for source in checkpoint.copied.values():
        root = locate(source)
        from_bucket, folder = root.traits.by_requests, root.view()
        found = ((folder / name).status() for name in folder.files())
        files = (carried(one.nbytes if one else 0, from_bucket=from_bucket) for one in found)
        made += sum(files, Requests(list=1 + 2 * from_bucket, head=int(from_bucket)))
    return made
