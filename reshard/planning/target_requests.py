"""Formulas for the requests that write a target in a bucket; nothing is looked up here.

A target takes what its chunks and files take, its metadata by the number of its tensors, and what holds and publishes it.
"""

from __future__ import annotations

import math

from msgspec import Struct

from reshard.geometry.grid import Grid
from reshard.planning.tensor_plan import TensorPlan
from reshard.storage.requests import NONE, PAGE_OBJECTS, Requests, pages_of

_OF_TRANSACTION = Requests(
    list=6, head=7, get=1, put=6, delete=4, received_bytes=300, sent_bytes=1300
)
"""Of a new target in a bucket beside its files: the lease, the mark of what is unfinished, records, and the looks by which a run
is sure that nobody else has the target. Tests count them."""

_RECORD_BYTES, _CHUNK_RECORD_BYTES = 110, 60
"""What the journal has of a task that is done, and of each chunk that it put (measured)."""

_ARRAY_BYTES, _ENTRY_BYTES, _SHARED_ENTRY_BYTES, _NAMES = 350, 450, 120, 6
"""What a target says of a tensor in a file of its own, in those of its tree, and beside shared files; a name is there so often
(measured)."""


class Writing(Struct, frozen=True):
    """How a plan writes a tensor.

    Attributes:
        copied: whether chunks are copied as they are, encoded.
        raw: whether they are not compressed.
        chunks: that are written, each in every place that it has.
        chunk_bytes, nbytes: of a chunk, and of all of them, before they are compressed.
        shared: whether they are parts of files that chunks share.
        slices: the grid of what a reader asks for: chunks, or slices of a shared file.
        copies: places of each.
        itemsize: bytes of an element.
    """

    source: str
    target: str
    copied: bool
    raw: bool
    chunks: Grid
    chunk_bytes: int
    nbytes: int
    shared: bool
    slices: Grid
    copies: int
    itemsize: int

    @property
    def puts(self) -> int:
        """Chunks in all places."""
        return self.chunks.count * self.copies

    def read_back(self, block_bytes: int) -> int:
        """Requests that read all of it."""
        largest = math.prod(self.slices.largest) * self.itemsize
        return -(-largest // block_bytes) * self.slices.count * self.copies


def writing_of(tensor: TensorPlan) -> Writing:
    """The facts of a target tensor; only here they are taken from a plan."""
    side, spec = tensor.target, tensor.target.spec
    return Writing(
        source=tensor.piece.source,
        target=spec.name,
        copied=tensor.strategy == "copy",
        raw=side.codec.startswith("raw"),
        chunks=spec.storage,
        chunk_bytes=spec.chunk_bytes,
        nbytes=tensor.price.written_bytes,
        shared=side.in_order is not None,
        slices=spec.storage if side.in_order is None else side.in_order,
        copies=side.copies,
        itemsize=spec.itemsize,
    )


def uploaded(scheme: str, nbytes: int, parts: int, ranges: int) -> Requests:
    """What putting a file takes, whole where ``parts`` is 0.

    Google Cloud's uploads in parts are read back in so many ``ranges``, since nothing proves them there.
    """
    if not parts:
        return Requests(put=1, sent_bytes=nbytes)
    sent = Requests(put=2, part=parts, sent_bytes=nbytes)
    return sent if scheme != "gs" else sent + Requests(get=ranges, received_bytes=nbytes)


def copied(scheme: str) -> Requests:
    """What a copy by the store itself takes; on S3 it is an upload of one part."""
    return Requests(head=2, copy=1, put=2 if scheme == "s3" else 0)


def carried(nbytes: int, *, from_bucket: bool) -> Requests:
    """What a file takes that is no tensor: it is read again for the record of the target."""
    gets = 1 + from_bucket
    return Requests(head=1, get=gets, put=1, received_bytes=gets * nbytes, sent_bytes=nbytes)


def metadata(
    tensors: int, name_bytes: int, trees: int, *, own_files: bool
) -> tuple[Requests, Requests]:
    """What metadata takes before the chunks, and after them.

    Args:
        name_bytes: of the names of all tensors.
        own_files: whether chunks are files of their own: then each tensor has a file that describes them, and each tree some.
    """
    names = _NAMES * name_bytes
    if not own_files:
        return NONE, Requests(put=2, sent_bytes=300 + _SHARED_ENTRY_BYTES * tensors + names)
    sent = 900 * trees + _ENTRY_BYTES * tensors + names
    after = Requests(list=2 * trees, head=trees, put=3 + 4 * trees, sent_bytes=sent)
    return Requests(put=tensors, sent_bytes=_ARRAY_BYTES * tensors), after


def of_transaction(scheme: str, objects: int, chunks: int, tasks: int) -> Requests:
    """What holding and publishing a target takes, with the journal's records of so many chunks and tasks."""
    one_by_one = Requests(delete=2 if scheme == "gs" else 0)
    records = Requests(sent_bytes=_RECORD_BYTES * tasks + _CHUNK_RECORD_BYTES * chunks)
    return _OF_TRANSACTION + one_by_one + records + Requests(list=pages_of(objects) - 1)


def deleted(scheme: str, objects: int) -> Requests:
    """What deleting so many objects takes."""
    return Requests(delete=objects if scheme == "gs" else -(-objects // PAGE_OBJECTS))


def requests_of_read_back(written: Requests, metadata: Requests, chunk_ranges: int) -> Requests:
    """What opening the finished target and reading all of it takes.

    Args:
        written, metadata: what wrote its data, and its other files.
        chunk_ranges: requests that read its tensors.
    """
    return Requests(
        list=pages_of(written.put + metadata.put),
        get=metadata.put + chunk_ranges,
        received_bytes=metadata.sent_bytes + written.sent_bytes,
    )
