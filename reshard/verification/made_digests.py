"""The digests of tensors that a map makes, without writing them: a conversion whose chunks have no place.

It is planned, carried out and added up as any conversion is, in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.books import Books, TargetRun
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.formats.base import Reader
from reshard.formats.chunking import chunk_shape
from reshard.formats.codecs import decoder_bytes, encoded_room, is_seekable
from reshard.formats.compression import codec_name
from reshard.formats.contents import Encoding
from reshard.formats.file_map import FileMap
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.planning.planner import Request, make_multi_plan
from reshard.planning.tensor_plan import Side

_CHUNK_BYTES = 32 << 20
"""Large enough that runs are as long as the tensors allow."""


class MadeDigests(Struct, frozen=True):
    """Digests of what a map makes, and of what it is made of, 16 hex digits.

    Attributes:
        sources: of the tensors that are taken whole and once, by name.
    """

    made: Mapping[str, str]
    sources: Mapping[str, str]


def made_digests(
    reader: Reader,
    mapping: Mapped,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    stage: Stage = "reading",
) -> MadeDigests:
    """Reads the source once, as far as the memory allows, and takes the digest of each tensor that the map makes.

    Raises CorruptError, naming tensor and chunk, for a chunk that does not decode; MemoryBudgetError, before anything is read,
    where ``max_memory`` is too small.
    """
    requests = [request for made in mapping.tensors for request in _requests(reader, made)]
    plan = make_multi_plan([requests], limits.max_memory, limits.workers)
    nowhere = FileMap(places=lambda _name, _index: (), finish=lambda *_: {})
    encodings = {made.spec.name: Encoding() for made in mapping.tensors}
    output = TargetOutput(nowhere, encodings, "")
    total = sum(tensor.moved_bytes for tensor in plan.plans[0].tensors)
    tell, before = tell_bytes(total, stage, progress), 0

    def moved(found: Progress) -> None:
        nonlocal before
        tell(found.tensor, found.moved_bytes - before)
        before = found.moved_bytes

    books = Books(plan.plans[0], output, moved)
    runs = [TargetRun(output, books)]
    batches = task_batches(plan, [reader], runs)
    run_batches(batches, runs, plan.max_memory, plan.workers, limits.executor)
    names = [made.spec.name for made in mapping.tensors]
    found = zip(names, books.results(), strict=True)
    return MadeDigests(
        {name: result.target_digest or "" for name, result in found},
        {name: digest for (_, name), digest in books.source_digests().items()},
    )


def _requests(reader: Reader, made: MappedTensor) -> Iterator[Request]:
    """A request for each piece, to a target whose elements are at fixed offsets and whose encoding no source has."""
    target = Side(_target(made), "made", True, 0)
    sides: dict[str, Side] = {"": target}
    for piece in made.pieces:
        if piece.source not in sides:
            stored = reader.tensors[piece.source]
            sides[piece.source] = Side(
                stored.spec,
                codec_name(stored.encoding),
                is_seekable(stored.encoding),
                decoder_bytes(stored.encoding, stored.spec.chunk_bytes),
                encoded_room(stored.encoding, stored.spec.chunk_bytes),
                is_distant=stored.encoding.read_ahead_bytes > 0,
            )
        yield Request(piece, sides[piece.source], target)


def _target(made: MappedTensor) -> TensorSpec:
    spec = made.spec
    chunk = chunk_shape(Grid.whole(spec.shape), spec.itemsize, split_above=_CHUNK_BYTES)
    return replace(spec, storage=Grid.regular(spec.shape, chunk))
