"""Plans the requests that write a target in a bucket: its chunks, its metadata, and holding and publishing it.

What a format puts is counted by writing its files to a store that sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.prepare import Planned
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.carry_out import finish_files, prepare_files
from reshard.formats.contents import Extent
from reshard.formats.file_map import FileMap
from reshard.formats.registry import plan_files
from reshard.planning.move import Move
from reshard.planning.predict_source_requests import (
    WeightedSum,
    some_chunks,
)
from reshard.planning.request_plan import deleted, of_transaction
from reshard.storage.buckets.file import RANGE_BYTES
from reshard.storage.buckets.objects import WHOLE_BYTES, part_bytes
from reshard.storage.commit_markers import COMMIT_MARKER, COMMITTED
from reshard.storage.copying import is_copied_by_store
from reshard.storage.location import Location, is_in_bucket, locate
from reshard.storage.requests import NONE, Requests, pages
from reshard.storage.unsent import Unsent

_ZEROS = "0" * 16
"""Stands for the digest of a tensor, which is as long."""


class RequestParts(Struct, frozen=True):
    """The requests for the source, or for a target, by when they are made."""

    steps: Requests = NONE
    metadata: Requests = NONE
    data: Requests = NONE


def target_requests(planned: Planned, number: int, target: CheckedTarget) -> RequestParts:
    """What writing target ``number`` takes, which is in a bucket."""
    plan, checkpoint = planned.summary.plans[number].plan, planned.checkpoints[number]
    root, scheme = locate(target.target), target.target.partition("://")[0]
    files = plan_files(replace(checkpoint, copied={}, conversion=_ZEROS * 2))
    metadata, finish = _metadata(files, checkpoint, root)
    reads = planned.summary.total.reads
    shared = {at.move for read in reads if len(read) > 1 for at in read if at.target == number}
    data = _chunks(plan.moves, planned.reader, target.target, shared)
    data += _files(plan.moves, files, scheme)
    chunks = sum(move.target.spec.storage.count for move in plan.moves)
    held = of_transaction(scheme, data.put + metadata.put + finish.put, chunks, plan.tasks)
    steps = finish + _copied_items(checkpoint) + held
    if target.options.overwrite:
        steps += deleted(scheme, sum(1 for _ in root.files()))
    if target.options.check == "readback":
        data += _read_back(plan.moves, planned.reader, metadata, finish, data)
    return RequestParts(steps, metadata, data)


def _metadata(
    files: FileMap, checkpoint: TargetCheckpoint, root: Location
) -> tuple[Requests, Requests]:
    """What the files of metadata take, before the chunks and after them."""
    unsent = Unsent(root.store)
    place = Location(unsent, root.path)
    prepare_files(files, place)
    before = unsent.requests
    markers = finish_files(files, place, dict.fromkeys(checkpoint.tensors, _ZEROS), ())
    markers = {**markers, COMMIT_MARKER: COMMITTED}
    sent = sum(map(len, markers.values()))
    after = unsent.requests - before
    return before, after + Requests(put=len(markers), sent_bytes=sent)


def _read_back(
    moves: Sequence[Move], reader: Reader, metadata: Requests, finish: Requests, data: Requests
) -> Requests:
    """Opening the finished target and reading all of it."""
    files = metadata.put + finish.put
    gets = sum(map(_ranges, moves))
    stored = sum(_encoded_bytes(move, reader) for move in moves)
    nbytes = metadata.sent_bytes + finish.sent_bytes + stored
    return Requests(list=pages(data.put + files), get=files + gets, received_bytes=nbytes)


def _ranges(move: Move) -> int:
    """Requests that read a target's tensor: each chunk, or each slice of a shared file."""
    spec = move.target.spec
    slices = spec.storage if move.target.in_order is None else move.target.in_order
    largest = math.prod(slices.largest) * spec.itemsize
    return -(-largest // RANGE_BYTES) * slices.count * move.target.copies


def _copied_items(checkpoint: TargetCheckpoint) -> Requests:
    """Files of items that are no trees, which are read again for the record of the target."""
    made = NONE
    for source in checkpoint.copied.values():
        folder = locate(source).view()
        for name in folder.files():
            found = (folder / name).status()
            nbytes = 0 if found is None else found.nbytes
            reads = 1 + is_in_bucket(source)
            made += Requests(
                head=1, get=reads, put=1, received_bytes=reads * nbytes, sent_bytes=nbytes
            )
        made += Requests(list=1) + (Requests(list=2, head=1) if is_in_bucket(source) else NONE)
    return made


def _chunks(
    moves: Sequence[Move], reader: Reader, target: str, shared: Collection[int]
) -> Requests:
    """Chunks that are objects of their own; ``shared``: the moves whose reads other targets share."""
    made = NONE
    for number, move in enumerate(moves):
        if move.target.in_order is not None:
            continue
        if move.strategy == "copy":
            made += _copies(move, reader, target, is_alone=number not in shared)
        else:
            count = move.target.spec.storage.count * move.target.copies
            made += Requests(put=count, sent_bytes=_encoded_bytes(move, reader))
    return made


def _copies(move: Move, reader: Reader, target: str, *, is_alone: bool) -> Requests:
    """Chunks that are copied encoded."""
    scheme, total = target.partition("://")[0], WeightedSum()
    for extent, weight in some_chunks(move, reader.locate):
        nbytes = move.target.spec.chunk_bytes if extent is None else extent.length
        match way_of(extent, move, reader, target, is_alone=is_alone):
            case "store":
                made = Requests(head=2, copy=1, put=2 if scheme == "s3" else 0)
            case "parts":
                made = _uploaded(nbytes, scheme)
            case "whole":
                made = Requests(put=1, sent_bytes=nbytes)
        total.add(made, weight)
    return total.requests


def _uploaded(nbytes: int, scheme: str) -> Requests:
    """A file that is uploaded in parts; Google Cloud's is read back, since nothing proves it there."""
    sent = Requests(put=2, part=-(-nbytes // part_bytes(nbytes)), sent_bytes=nbytes)
    if scheme != "gs":
        return sent
    return sent + Requests(get=-(-nbytes // RANGE_BYTES), received_bytes=nbytes)


def _encoded_bytes(move: Move, reader: Reader) -> int:
    """Bytes of a target's chunks as they are stored: what is compressed anew is taken to shrink as it did in the source."""
    encoding = reader.tensors[move.placement.source].encoding
    written = move.price.written_bytes
    if move.target.codec.startswith("raw"):
        return written
    ratio = _stored_share(move, reader) if encoding.compressor != "none" else 1.0
    return round(written * ratio)


def _stored_share(move: Move, reader: Reader) -> float:
    """Encoded bytes of the source for each decoded one, by some of its chunks."""
    found = [extent for extent, _ in some_chunks(move, reader.locate) if extent is not None]
    stored = sum(extent.length for extent in found)
    return stored / (len(found) * move.source.spec.chunk_bytes or 1) if found else 1.0


def _files(moves: Sequence[Move], files: FileMap, scheme: str) -> Requests:
    """Files that chunks share."""
    made = NONE
    for nbytes in _file_sizes(moves, files):
        if nbytes <= WHOLE_BYTES:
            made += Requests(put=1, sent_bytes=nbytes)
        else:
            made += _uploaded(nbytes, scheme)
    return made


def _file_sizes(moves: Sequence[Move], files: FileMap) -> Iterator[int]:
    names: dict[str, None] = {}
    for move in moves:
        if move.target.in_order is None:
            continue
        spec = move.target.spec
        for index in spec.storage.indices():
            names |= dict.fromkeys(place.file for place in files.places(spec.name, index))
    return (files.shared_file(name).nbytes for name in names)


Way = Literal["store", "parts", "whole"]


def way_of(
    extent: Extent | None, move: Move, reader: Reader, target: str, *, is_alone: bool
) -> Way:
    """How a chunk is copied that is the same on both sides: by the store itself, piece by piece, or through memory.

    ``is_alone``: whether no other target is filled from the same read.
    """
    if extent is None or extent.inline is not None or not is_in_bucket(target):
        return "whole"
    if is_alone and extent.version and not extent.offset:
        has_checksums = reader.tensors[move.placement.source].encoding.checksum
        place = (extent.path, extent.version, target, extent.length)
        if has_checksums and is_copied_by_store(*place):
            return "store"
    return "whole" if extent.length <= WHOLE_BYTES else "parts"
