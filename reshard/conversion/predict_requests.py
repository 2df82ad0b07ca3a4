"""Predicts the requests of a conversion from or to buckets: those that its opening made, and those that are still to come.

The formulas in ``planning/requests.py`` take facts of the open source, of the file map of a target, and of buckets, which
are found here.
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
from reshard.formats.registry import plan_files
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
    """What a conversion to the targets that are ``left``, by number, will ask of buckets, and ``more`` that it does before.

    Opening the source and looking at the targets was done already, so that it is counted and not estimated.
    """
    in_buckets = {n: target for n, target in left.items() if traits_at(target.target).by_requests}
    tensors = source_tensors(planned, chosen.root.traits.range_bytes)
    parts = [of_target(planned, n, target, tensors) for n, target in in_buckets.items()]
    if chosen.root.traits.by_requests:
        parts.append(of_source(planned, left, tensors, chosen.root))
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
    return int(any(requests.deletes_one_by_one for requests in found))


class Tensor(Struct, frozen=True):
    """A source tensor: how it is stored, its chunks, and where one of them is; None where none is in a file."""

    stored: StoredTensor
    chunks: ChunkReads
    some: Extent | None


Tensors = Mapping[str, Tensor]
"""By name."""


def source_tensors(planned: Planned, range_bytes: int) -> dict[str, Tensor]:
    """The facts of each tensor that a plan reads, by name; ``range_bytes`` as for ``source_tensor``."""
    reader = planned.reader
    pieces = (p for one in planned.summary.plans for t in one.plan.tensors for p in t.pieces)
    return {
        name: source_tensor(reader, name, range_bytes)
        for name in {piece.source for piece in pieces if piece.fill is None}
    }


def source_tensor(reader: Reader, name: str, range_bytes: int) -> Tensor:
    """The facts of one tensor, by some of its chunks; ``range_bytes`` are read in one request, 0 where reads are no requests."""
    stored, grid = reader.tensors[name], reader.tensors[name].spec.storage
    step = max(1.0, grid.count / SAMPLES)
    places = [grid.index_at(int(step * n)) for n in range(min(grid.count, SAMPLES))]
    found = [extent for index in places if (extent := reader.locate(name, index)) is not None]
    inside = [extent for extent in found if extent.inline is None]
    lengths = [length for extent in inside for length in _lengths(extent)]
    chunks = ChunkReads(
        grid.count,
        _ranges_of(lengths, range_bytes, step),
        len(inside) / max(1, len(places)),
        sum(extent.length for extent in found) / max(1, len(found)),
    )
    return Tensor(stored, chunks, inside[0] if inside else None)


def _ranges_of(lengths: Sequence[int], range_bytes: int, step: float) -> Requests:
    """What reading stretches of these lengths takes, each ``step`` times; nothing where reads are no requests."""
    if not range_bytes:
        return NONE
    gets = sum(-(-length // range_bytes) for length in lengths)
    return Requests(get=round(step * gets), received_bytes=round(step * sum(lengths)))


def _lengths(extent: Extent) -> Iterator[int]:
    """The stretches of files that a chunk is read from."""
    if extent.pieces is None:
        yield extent.length
        yield from (layer.length for layer in extent.layers if layer.length)
    else:
        yield from (piece.box.size * extent.pieces.itemsize for piece in extent.pieces.pieces)


def of_source(
    planned: Planned, targets: Mapping[int, CheckedTarget], tensors: Tensors, root: Location
) -> RequestPlan:
    """Reading the chunks of a source in a bucket, and listing it again at the end for each target."""
    total, data = planned.summary.total, NONE
    for read in total.reads:
        left = list(dict.fromkeys(at.target for at in read.fills if at.target in targets))
        if left:
            asked = [targets[number] for number in left]
            data += _reads(read, total.fill(read.fills[0]), asked, tensors, root.traits.range_bytes)
    objects = root.view().traits.memory_bytes // BYTES_PER_OBJECT
    again = Requests(list=pages_of(objects), head=int(root.is_file()))
    return RequestPlan(again * len(targets), data=data)


def _reads(
    read: Read, fill: Fill, asked: Sequence[CheckedTarget], tensors: Tensors, block: int
) -> Requests:
    """What one read of a tensor takes, for all targets that share it; chunks that are copied encoded are read again for
    digests, where something asks for them."""
    if fill.strategy != "copy":
        pieces = [n for n, piece in enumerate(fill.pieces) if piece.fill is None]
        return sum((_decoded(read, fill, number, tensors, block) for number in pieces), NONE)
    tensor = tensors[fill.piece.source]
    encoding = tensor.stored.encoding
    ways = [_way(tensor, one.target, is_alone=len(asked) == 1) for one in asked]
    is_unseen = bool(tensor.stored.digest) and not encoding.checksum
    again = sum(is_unseen + (one.options.check == "readback") for one in asked)
    return tensor.chunks.once * ((ways.count("parts") or "whole" in ways) + again)


def _decoded(read: Read, fill: Fill, number: int, tensors: Tensors, block: int) -> Requests:
    """What decoding one piece of a read takes."""
    tensor = tensors[fill.pieces[number].source]
    encoding = tensor.stored.encoding
    reading = reading_of(
        read, fill, number, seekable=is_seekable(encoding), checksum=encoding.checksum
    )
    return reads(reading, tensor.chunks, Ranges(block, max(block, encoding.read_ahead_bytes)))


Way = Literal["store", "parts", "whole"]


def _way(tensor: Tensor, target: str, *, is_alone: bool) -> Way:
    """How chunks are copied that are the same on both sides: by the store itself, piece by piece, or through memory.

    ``is_alone``: whether no other target is filled from the same read.
    """
    some, nbytes = tensor.some, round(tensor.chunks.mean_bytes)
    if some is None or traits_at(target).in_place:
        return "whole"
    is_whole_object = bool(some.version) and not some.offset
    is_provable = is_alone and is_whole_object and tensor.stored.encoding.checksum
    if is_provable and is_copied_by_store(some.path, some.version, target, nbytes):
        return "store"
    return "parts" if upload_parts(traits_at(target), nbytes) else "whole"


def of_target(
    planned: Planned, number: int, target: CheckedTarget, tensors: Tensors
) -> RequestPlan:
    """What writing target ``number`` takes, which is in a bucket."""
    plan, checkpoint = planned.summary.plans[number].plan, planned.checkpoints[number]
    root = locate(target.target)
    store = root.traits.requests
    written = list(map(writing_of, plan.tensors))
    data = _files(written, plan_files(checkpoint), root.traits)
    shared = _shared(planned.summary.total.reads, number)
    for at, writing in enumerate(written):
        if not writing.shared:
            tensor = tensors[writing.source]
            data += _chunks(writing, tensor, target.target, is_alone=at not in shared)
    before, after = metadata(
        len(written),
        sum(map(len, checkpoint.tensors)),
        sum(item.is_tree for item in checkpoint.container.items),
        own_files=not any(writing.shared for writing in written),
    )
    files = before + after
    chunks = sum(writing.chunks.count for writing in written)
    steps = after + of_transaction(store, data.put + files.put, chunks, plan.tasks)
    steps += _copied_items(checkpoint)
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


def _shared(reads: Iterable[Read], target: int) -> set[int]:
    """The tensors of a target whose reads others share."""
    shared = (read.fills for read in reads if len(read.fills) > 1)
    return {at.tensor for fills in shared for at in fills if at.target == target}


def _chunks(writing: Writing, tensor: Tensor, target: str, *, is_alone: bool) -> Requests:
    """What chunks take that are files of their own."""
    traits = traits_at(target)
    if not writing.copied:
        return Requests(put=writing.puts, sent_bytes=_encoded_bytes(writing, tensor))
    nbytes = round(tensor.chunks.mean_bytes) or writing.chunk_bytes
    match _way(tensor, target, is_alone=is_alone):
        case "store":
            return copied(traits.requests) * writing.puts
        case "parts":
            return _uploaded(traits, nbytes) * writing.puts
        case "whole":
            return Requests(put=1, sent_bytes=nbytes) * writing.puts


def _uploaded(traits: Traits, nbytes: int) -> Requests:
    ranges = -(-nbytes // traits.range_bytes)
    return uploaded(traits.requests, nbytes, upload_parts(traits, nbytes), ranges)


def _encoded_bytes(writing: Writing, tensor: Tensor) -> int:
    """Bytes of a target's chunks as they are stored: what is compressed anew is taken to shrink as it did in the source."""
    mean_bytes, decoded = tensor.chunks.mean_bytes, tensor.stored.spec.chunk_bytes
    if writing.raw or tensor.stored.encoding.compressor == "none" or not mean_bytes:
        return writing.nbytes
    return round(writing.nbytes * mean_bytes / decoded)


def _files(written: Iterable[Writing], target: FileMap, traits: Traits) -> Requests:
    """What files take that chunks share."""
    chunks = (
        (one.target, index) for one in written if one.shared for index in one.chunks.indices()
    )
    files = dict.fromkeys(place.file for chunk in chunks for place in target.places(*chunk))
    sizes = (target.shared_file(file).nbytes for file in files)
    return sum((_uploaded(traits, nbytes) for nbytes in sizes), NONE)


def _copied_items(checkpoint: TargetCheckpoint) -> Requests:
    """What the files of items that are no trees take."""
    made = NONE
    for source in checkpoint.copied.values():
        root = locate(source)
        from_bucket, folder = root.traits.by_requests, root.view()
        found = ((folder / name).status() for name in folder.files())
        files = (carried(one.nbytes if one else 0, from_bucket=from_bucket) for one in found)
        made += sum(files, Requests(list=1 + 2 * from_bucket, head=int(from_bucket)))
    return made
