"""Makes the tensors of a map in this process: no file is written; elements go to a function, or nowhere.

It is planned, carried out and added up as any conversion is, in the same memory: a conversion whose chunks have no place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.books import Books, DoneUnits, TargetRun
from reshard.engine.limits import Limits
from reshard.engine.output import Keep, TargetOutput
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.formats.base import Reader
from reshard.formats.chunking import chunk_shape
from reshard.formats.codecs import decoder_bytes, encoded_room, is_seekable
from reshard.formats.contents import Encoding, StoredTensor, codec_name
from reshard.formats.file_map import FileMap
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped import MappedTensor
from reshard.planning.planner import WantedPiece, make_multi_plan
from reshard.planning.plans import Fill, Plan, Side

_CHUNK_BYTES = 32 << 20
"""Large enough that runs are as long as the tensors allow."""


class MadeTensors(Struct, frozen=True):
    """The result of making tensors.

    Attributes:
        books: of the tensors, in their order.
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes of the chunks that were needed, each once.
    """

    books: Books
    read_bytes: int
    needed_bytes: int


class Keeping(Struct, frozen=True):
    """The receiver of elements, and the choice of those that it needs.

    Attributes:
        keep: takes them, from any thread.
        is_needed: true if anything of a box of a tensor is needed; other boxes are not made. None where everything is needed:
            then every tensor is proved.
    """

    keep: Keep
    is_needed: Callable[[str, Box], bool] | None = None


def make_tensors(
    reader: Reader,
    tensors: Sequence[MappedTensor],
    limits: Limits,
    keeping: Keeping | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Stage = "reading",
) -> MadeTensors:
    """Reads the source once, as far as the memory allows, and makes each tensor.

    The storage of a tensor says in which boxes it is made. Without ``keeping`` only digests are taken.

    Raises CorruptError, naming tensor and chunk, for a chunk that does not decode; MemoryBudgetError, before anything is read,
    where ``max_memory`` is too small.
    """
    wanted_pieces = [wanted for made in tensors for wanted in _wanted_pieces(reader, made)]
    plan = make_multi_plan([wanted_pieces], limits.max_memory, limits.workers)
    (own,) = plan.plans
    nowhere = FileMap(places=lambda _name, _index: (), finish=lambda *_: {})
    encodings = {made.spec.name: Encoding() for made in tensors}
    keep = None if keeping is None else keeping.keep
    output = TargetOutput(nowhere, encodings, "", keep=keep)
    total = sum(tensor.moved_bytes for tensor in own.tensors)
    tell, before = tell_bytes(total, stage, progress), 0

    def moved(found: Progress) -> None:
        nonlocal before
        tell(found.tensor, found.moved_bytes - before)
        before = found.moved_bytes

    books = Books(own, output, moved)
    is_needed = None if keeping is None else keeping.is_needed
    run = TargetRun(output, books, is_needed and _not_needed(own, is_needed))
    batches = task_batches(plan, [reader], [run])
    read_bytes = run_batches(batches, [run], plan.max_memory, plan.workers, limits.executor)
    if is_needed is None:
        books.results()  # raises where a tensor is not complete, or digests differ
    return MadeTensors(books, read_bytes, sum(fill.price.source_bytes for fill in own.fills))


def in_parts(spec: TensorSpec, slices: Grid) -> TensorSpec:
    """The tensor made in parts of ``slices``, subdivided where they are huge."""
    chunk = chunk_shape(slices, spec.itemsize, merge_below=0, split_above=_CHUNK_BYTES)
    return replace(spec, storage=Grid.regular(spec.shape, chunk))


def _not_needed(plan: Plan, is_needed: Callable[[str, Box], bool]) -> DoneUnits:
    """The units that nothing needs, as if they were done."""
    done = DoneUnits(plan)
    for number, tensor in enumerate(plan.tensors):
        first = 0
        for fill in tensor.fills:
            for unit in range(fill.units.count):
                if not is_needed(tensor.name, _place(fill, unit)):
                    done.add(number, first + unit)
            first += fill.units.count
    return done


def _place(fill: Fill, unit: int) -> Box:
    box = fill.units.box(fill.units.index_at(unit))
    return box if fill.is_joint else fill.piece.to_target(box)


def _wanted_pieces(reader: Reader, made: MappedTensor) -> Iterator[WantedPiece]:
    target = Side(made.spec, "made", True, 0)
    sides: dict[str, Side] = {"": target}
    for piece in made.pieces:
        if piece.source not in sides:
            sides[piece.source] = _source(reader.tensors[piece.source])
        yield WantedPiece(piece, sides[piece.source], target)


def _source(stored: StoredTensor) -> Side:
    encoding, nbytes = stored.encoding, stored.spec.chunk_bytes
    return Side(
        stored.spec,
        codec_name(encoding),
        is_seekable(encoding),
        decoder_bytes(encoding, nbytes),
        encoded_room(encoding, nbytes),
        is_distant=encoding.read_ahead_bytes > 0,
    )
