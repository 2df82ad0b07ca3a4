"""Upper bounds, by formula, for the requests of a conversion from or to buckets.

A run makes at most so many requests, and sends and receives at most so many bytes, if no request fails and no store refuses a copy.

- Source: each task reads every stored chunk that its unit touches. A chunk takes a request for each ``Traits.range_bytes`` of it,
  and one for each band that may be read alone. Stored chunks are taken to be as long as decoded ones.
- Target: a put for each chunk, or the parts of each file; per tensor and tree some metadata; per target a transaction. What reads
  the target back reads all of it once.

Opening the source and looking at the targets is done before, so that it is counted and not estimated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.make_plan import JointPlan, TargetPlan
from reshard.conversion.report import RequestReport
from reshard.conversion.run import Feature, Run
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.codecs import is_seekable
from reshard.geometry.grid import Grid
from reshard.geometry.row_major import band_cut, row_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.estimates import RequestPlan
from reshard.planning.plans import Fill, Read, TensorPlan
from reshard.planning.task_cost import Reading
from reshard.storage.base import NONE, Requests, Traits, pages_of
from reshard.storage.buckets.counts import so_far
from reshard.storage.buckets.store import BYTES_PER_OBJECT
from reshard.storage.copying import is_copied_by_store
from reshard.storage.location import locate
from reshard.storage.target import traits_at, upload_parts

SAMPLES = 16
"""Chunks of a tensor that are looked at, evenly spread, for the pieces of files in which its chunks are stored."""

_OF_TRANSACTION = Requests(
    list=9, head=10, get=3, put=8, delete=6, received_bytes=1000, sent_bytes=2000
)
"""Requests of a bucket transaction besides its data: the lease, the mark of an unfinished target, records, and the checks that no
other run has the target. Tests count them."""

_OF_TREE = Requests(list=2, head=1, put=4, sent_bytes=2000)
_OF_TARGET = Requests(put=4, sent_bytes=2000)
_TENSOR_BYTES, _NAMES, _CHUNK_BYTES = 1000, 8, 200
"""Requests for the metadata of a tree and of a target, and bytes of metadata (measured: at most 800 for each tensor, besides its name
6 times, and 170 for each chunk or task in the records)."""

_CODED = 128
"""A codec adds at most one byte to so many (zstd: one to 256), and so many to each chunk: a frame's head, a checksum."""


class InBuckets(Feature):
    """Plans the requests of a conversion from or to buckets, and reports them."""

    def __init__(self, more: Requests) -> None:
        self._more = more

    def plan(self, plan: JointPlan, /) -> JointPlan:
        """The plan with its requests; None where the targets in buckets are there already."""
        places = [plan.chosen.path, *(target.target.target for target in plan.left)]
        if not any(traits_at(place).by_requests for place in places):
            return plan
        return replace(plan, requests=most_requests(plan, self._more))

    def end(self, run: Run[Any], plan: JointPlan, /) -> Mapping[str, Any]:
        """The requests, as planned and as they were made."""
        if plan.requests is None:
            return {}
        made = so_far() - run.chosen.before
        return {"requests": RequestReport(plan.requests.requests(), made)}


def most_requests(plan: JointPlan, more: Requests) -> RequestPlan:
    """The most requests of a conversion to the targets that are left, and ``more`` that it makes before."""
    looked = so_far() - plan.chosen.before + more
    gets = Requests(get=looked.get, received_bytes=looked.received_bytes)
    in_buckets = [one for one in plan.left if traits_at(one.target.target).by_requests]
    found = [RequestPlan(looked - gets, gets)]
    found += [_of_target(plan, one) for one in in_buckets]
    if plan.chosen.root.traits.by_requests:
        found.append(_of_source(plan))
    return RequestPlan(
        sum((part.steps for part in found), NONE),
        sum((part.metadata for part in found), NONE),
        sum((part.data for part in found), NONE),
        plan.total.workers,
        len(in_buckets),
        max((found.segment_deletes for found in found), default=0),
    )


def _of_source(plan: JointPlan) -> RequestPlan:
    """The requests that read a source, and list it again at the end for each target."""
    root, total, data = plan.chosen.root, plan.total, NONE
    left = {one.number: one.target for one in plan.left}
    for read in total.reads:
        asked = [left[n] for n in {at.target for at in read.fills} if n in left]
        fill = total.fill(read.fills[0])
        for number, piece in enumerate(fill.pieces if asked else ()):
            if piece.fill is None:
                once = reads(plan.reader, read, fill, number, root.traits.range_bytes)
                data += once * (_copies(plan.reader, fill, asked) if fill.strategy == "copy" else 1)
    objects = root.view().traits.memory_bytes // BYTES_PER_OBJECT
    again = Requests(list=pages_of(objects), head=int(root.is_file()))
    # Other places have about as many objects; to count them would take requests.
    others = [p for each in plan.chosen.computed for p in each.places if p.traits.by_requests]
    again += (again + Requests(list=1, head=1)) * len(others)
    return RequestPlan(again * len(left), data=data)


def _copies(reader: Reader, fill: Fill, asked: Sequence[CheckedTarget]) -> int:
    """The number of times that encoded chunks are read: for each target, and again for digests that something asks for."""
    stored = reader.tensors[fill.piece.source]
    is_unseen = bool(stored.digest) and not stored.encoding.checksum
    by_store = len(asked) == 1 and _is_copied_by_store(reader, fill.piece.source, asked[0].target)
    return sum(1 - by_store + is_unseen + (one.check == "readback") for one in asked)


def _is_copied_by_store(reader: Reader, name: str, target: str) -> bool:
    """True if the store most likely copies the chunks of a source tensor by itself, as it does if no other target takes them."""
    stored = reader.tensors[name]
    found = (
        reader.locate(name, (0,) * len(stored.spec.shape)) if stored.spec.storage.count else None
    )
    return (
        stored.encoding.checksum
        and found is not None
        and not found.offset
        and is_copied_by_store(found.path, found.version, target, found.length)
    )


def reads(reader: Reader, read: Read, fill: Fill, number: int, range_bytes: int) -> Requests:
    """The requests of all tasks of a read for piece ``number`` of its fills.

    An example: [4096, 4096] float32 in 4 compressed chunks of [1024, 4096] is wanted in 4 units of [4096, 1024]. That makes 16
    pairs of a unit and a chunk. A request reads 8 MiB, and a chunk has 16 MiB: 16 × (16 // 8 + 1) = 48 gets.
    """
    piece, spec = fill.pieces[number], fill.sources[number].spec
    encoding, view = reader.tensors[piece.source].encoding, piece.source_view
    if fill.is_joint:
        units, grid = piece.target_grid(read.units), piece.source_grid(spec.storage)
        start = piece.source_box.start
    else:
        grid = (view.grid(spec.storage) if view else spec.storage).clip(read.box)
        units, start = read.units, read.box.start
    pairs = Reading(fill.sources[number], grid, units, view, start).pairs
    stretches = 1
    is_in_parts = pairs > grid.count or grid != spec.storage
    if is_in_parts and is_seekable(encoding) and fill.strategy in ("scatter", "block"):
        stretches = _stretches(spec, fill.band_bytes, range_bytes, units, None if view else grid)
    pieces, nbytes = _stored_in(reader, piece.source)
    ranges = nbytes // range_bytes
    nbytes += nbytes // _CODED + pieces * _CODED
    gets = pieces * stretches + ranges + (encoding.checksum and ranges > 0)
    return Requests(get=pairs * gets, received_bytes=pairs * nbytes)


def _stretches(
    spec: TensorSpec, band_bytes: int, range_bytes: int, units: Grid, grid: Grid | None
) -> int:
    """The most stretches of a raw chunk that a unit reads: bands, or runs of bands that follow one another, of which the first is apart.

    ``grid``: the chunks that are read; None in a view. A run goes through all dimensions behind the last in which units end within chunks.
    """
    shape = spec.chunk_shape or spec.storage.largest
    dim, rows = band_cut(len(shape), row_bytes(shape, spec.itemsize), band_bytes)
    bands = math.prod(shape[:dim]) * -(-shape[dim] // rows)
    if grid is None or band_bytes >= range_bytes:
        return bands
    sides = zip(units.cuts[: dim + 1], grid.cuts, spec.storage.cuts, strict=False)
    inside = [d for d, (u, g, s) in enumerate(sides) if g != s or not set(u) <= set(g)]
    return min(bands, 2 * math.prod(shape[: max(inside, default=0)]))


def _stored_in(reader: Reader, name: str) -> tuple[int, int]:
    """The most places in which a chunk of a tensor, or what it is computed of, is stored; and the most decoded bytes of all."""
    spec = reader.tensors[name].spec
    grid = spec.storage
    some = range(0, grid.count, -(-grid.count // SAMPLES) or 1)
    found = [extent for n in some if (extent := reader.locate(name, grid.index_at(n)))]
    pieces = max((len(x.pieces.pieces) for x in found if x.pieces is not None), default=1)
    computed = [x.computed for x in found if x.computed is not None]
    if not computed:
        return pieces, spec.chunk_bytes
    # What is read on from within a file is asked for twice: the first window by itself, then ranges.
    begun = max(one.files + sum(not o.is_held for o in one.operands) for one in computed)
    return begun, max(one.decoded_bytes for one in computed)


def _of_target(plan: JointPlan, planned: TargetPlan) -> RequestPlan:
    """The requests that write a target in a bucket, and read it back where that is asked for."""
    target, checkpoint, root = planned.target, planned.checkpoint, planned.place
    files = checkpoint.form.plan(checkpoint)
    store, tensors = root.traits, planned.plan.tensors
    shared = [_upload(store, files.shared_file(file).nbytes) for file in files.shared]
    data = sum(shared, NONE)
    if not shared:
        alone = {read.fills[0].tensor for read in plan.total.reads if len(read.fills) == 1}
        for at, tensor in enumerate(tensors):
            data += _chunks(plan.reader, tensor, target.target, is_alone=at in alone)
    names = _NAMES * sum(map(len, checkpoint.tensors))
    own = Requests(put=len(tensors) * (not shared), sent_bytes=_TENSOR_BYTES * len(tensors) + names)
    trees = sum(item.is_tree for item in checkpoint.container.items)
    after = _OF_TARGET + _OF_TREE * trees
    puts = data.put + own.put + after.put
    records = _CHUNK_BYTES * (data.put + planned.summary.tasks)
    steps = after + _OF_TRANSACTION + Requests(list=pages_of(puts) - 1, sent_bytes=records)
    steps += _items(checkpoint)
    at_once = store.requests.deleted_at_once
    if target.overwrite:
        steps += Requests(delete=-(-sum(1 for _ in root.files()) // at_once))
    identity = planned.summary.identity
    if identity is not None:
        steps += Requests(put=3)  # identity.json, identity.tree and identity.dsse.json
    passes = (target.check == "readback") + (identity is not None and identity.how != "carry")
    data += _read_back(store, tensors, data, own + after) * passes
    return RequestPlan(steps, own, data, segment_deletes=int(at_once == 1))


def _chunks(reader: Reader, tensor: TensorPlan, target: str, *, is_alone: bool) -> Requests:
    """The requests that write the chunks of a tensor in files of their own.

    ``is_alone``: no other target is filled from the same read, so that the store may copy chunks by itself.
    """
    spec, store = tensor.target.spec, traits_at(target)
    nbytes, count = spec.chunk_bytes, spec.storage.count * tensor.target.copies
    nbytes += nbytes // _CODED + _CODED
    if tensor.strategy != "copy":
        return Requests(put=1, sent_bytes=nbytes) * count
    if is_alone and _is_copied_by_store(reader, tensor.piece.source, target):
        return Requests(head=2, copy=1, put=store.requests.puts_of_copy) * count
    return _upload(store, nbytes) * count


def _upload(store: Traits, nbytes: int) -> Requests:
    """The requests that put a file, whole or in parts; where no answer of the store proves the parts, they are read back."""
    parts = upload_parts(store, nbytes)
    if not parts:
        return Requests(put=1, sent_bytes=nbytes)
    sent = Requests(put=2, part=parts, sent_bytes=nbytes)
    back = Requests(get=-(-nbytes // store.range_bytes), received_bytes=nbytes)
    return sent + back * int(store.requests.reads_uploads_back)


def _read_back(
    store: Traits, tensors: Collection[TensorPlan], data: Requests, files: Requests
) -> Requests:
    """The requests that open the finished target and read all of it: its chunks, or its slices of files that chunks share."""
    gets = 0
    for tensor in tensors:
        spec, ordered = tensor.target.spec, tensor.target.in_order
        grid = spec.storage if ordered is None else ordered
        ranges = 1 + math.prod(grid.largest) * spec.itemsize // store.range_bytes
        gets += ranges * grid.count * tensor.target.copies
    return Requests(
        list=pages_of(data.put + files.put),
        get=gets + files.put,
        received_bytes=data.sent_bytes + files.sent_bytes,
    )


def _items(checkpoint: TargetCheckpoint) -> Requests:
    """The requests that copy the files of items that are no trees; each is read again for the target's record."""
    made = NONE
    for source in checkpoint.copied.values():
        folder, again = locate(source).view(), 1 + locate(source).traits.by_requests
        for status in [(folder / name).status() for name in folder.files()]:
            nbytes = status.nbytes if status else 0
            made += Requests(
                head=1, get=again, put=1, received_bytes=again * nbytes, sent_bytes=nbytes
            )
        made += Requests(list=2 * again, head=1)
    return made
