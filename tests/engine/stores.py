"""Tensors on disk made and read by numpy and zstandard alone, and moves between them made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zstandard
from hypothesis import strategies as st

from reshard.answers.shared import Strategy
from reshard.engine.books import Books, DoneUnits, TargetRun, TensorResult
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.run import run_batches
from reshard.engine.task import Task
from reshard.engine.task_stream import task_batches
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding, Extent, Leaf, PathKey, StoredTensor
from reshard.formats.file_map import Place
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.plans import Fill, MultiPlan, Plan, Price, Side, TensorPlan
from tests.formats.orbax.decode import crc32c, decode
from tests.orbax_trees import random_array

RAW = Encoding()
RAW_CRC = Encoding(checksum=True)
ZSTD = Encoding("zstd", 1)
ZSTD_CRC = Encoding("zstd", 3, checksum=True)


def tensor(
    name: str, shape: Sequence[int], chunk: Sequence[int] | None, dtype: str = "float32"
) -> TensorSpec:
    """A tensor whose chunks are padded to ``chunk``; a scalar has none."""
    chunk = tuple(shape if chunk is None else chunk)
    return TensorSpec(name, tuple(shape), dtype, Grid.regular(shape, chunk), chunk)


def encode(chunk: np.ndarray, encoding: Encoding) -> bytes:
    data = chunk.tobytes()
    if encoding.compressor == "zstd":
        data = zstandard.ZstdCompressor(level=encoding.level).compress(data)
    return data + crc32c(data).to_bytes(4, "little") if encoding.checksum else data


def padded(values: np.ndarray, spec: TensorSpec, index: Index) -> np.ndarray:
    """The chunk at ``index`` as it is stored."""
    box = spec.storage.box(index)
    chunk = np.zeros(spec.stored_shape(index), values.dtype)
    chunk[Box.full(box.shape).slices] = values[box.slices]
    return chunk


@dataclass
class Store:
    """Tensors in one file, chunk after chunk, small ones inline; chunks of zeros only are not stored."""

    path: Path
    uri: str = "made"
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    extents: dict[tuple[str, Index], Extent | None] = field(default_factory=dict)
    others: tuple[Leaf, ...] = ()
    format: str = "made"

    @property
    def leaves(self) -> list[Leaf]:
        return [*(Leaf(n, (PathKey(n),)) for n in self.tensors), *self.others]

    def add(
        self, spec: TensorSpec, values: np.ndarray, encoding: Encoding, recorded: bool = False
    ) -> None:
        digest = digest_of(np.ascontiguousarray(values).tobytes()) if recorded else None
        self.tensors[spec.name] = StoredTensor(spec, encoding, bytes(spec.itemsize), True, digest)
        with self.path.open("ab") as file:
            for number, index in enumerate(spec.storage.indices()):
                chunk = padded(values, spec, index)
                data = encode(chunk, encoding)
                inline = data if number % 5 == 4 else None
                extent = Extent(str(self.path), file.tell(), len(data), inline)
                self.extents[spec.name, index] = extent if any(chunk.tobytes()) else None
                file.write(data)

    def locate(self, name: str, index: Index) -> Extent | None:
        return self.extents[name, index]

    def copies(self, _: str) -> tuple[()]:
        return ()

    def recorded_ranges(self, _: str) -> tuple[()]:
        return ()


@dataclass
class Folder:
    """A target whose chunks are files, or, packed, are put into a dict."""

    packed: bool = False
    values: dict[tuple[str, Index], bytes] = field(default_factory=dict)

    @property
    def database(self) -> Folder | None:
        return self if self.packed else None

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        return () if self.packed else (Place("/".join([name, "c", *map(str, index)])),)

    def put(self, name: str, index: Index, data: bytes | memoryview) -> None:
        self.values[name, index] = bytes(data)

    def read(self, root: Path, spec: TensorSpec, encoding: Encoding) -> np.ndarray:
        """The tensor, with every checksum and the zeros of the padding checked."""
        out = np.empty(spec.shape, numpy_dtype(spec.dtype))
        for index in spec.storage.indices():
            places = self.places(spec.name, index)
            stored = (
                (root / places[0].file).read_bytes() if places else self.values[spec.name, index]
            )
            data = decode(stored, encoding.compressor, encoding.checksum)
            chunk = np.frombuffer(data, out.dtype).reshape(spec.stored_shape(index))
            inside = Box.full(spec.storage.box(index).shape)
            out[spec.storage.box(index).slices] = chunk[inside.slices]
            padding = np.array(chunk)
            padding[inside.slices] = 0
            assert not any(padding.tobytes()), f"padding of chunk {index}"
        return out


def side(spec: TensorSpec, encoding: Encoding) -> Side:
    return Side(spec, str(encoding), encoding.compressor == "none", 0)


def by_hand(
    placement: Piece,
    source: Side,
    target: Side,
    strategy: Strategy,
    units: Grid,
    band: int,
    *,
    at_once: bool = False,
    gathered: int = 0,
) -> Fill:
    """A move that no planner chose."""
    nbytes = math.prod(placement.shape) * source.spec.itemsize
    price = Price(units.count, nbytes, nbytes, 0, 0, 16 << 20, 0.0)
    return Fill((placement,), (source,), target, strategy, units, band, price, at_once, gathered)


def batches(
    plan: Plan, reader: Reader, output: TargetOutput, done: DoneUnits | None = None
) -> Iterator[tuple[Task, ...]]:
    """The tasks of a plan with one target."""
    return task_batches(
        MultiPlan.alone(plan), [reader], [TargetRun(output, Books(plan, output), done)]
    )


def run(
    plan: Plan,
    tasks: Iterable[tuple[Task, ...]],
    output: TargetOutput,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[TensorResult]:
    """Carries out the tasks of a plan with one target; one result per move, in order."""
    books = Books(plan, output, progress)
    run_batches(tasks, [TargetRun(output, books)], plan.max_memory, plan.workers, executor)
    return books.results()


def plan_of(fills: Sequence[Fill], workers: int = 2, max_memory: int = 64 << 20) -> Plan:
    """A plan of tensors with one fill each."""
    return Plan(tuple(TensorPlan((fill,)) for fill in fills), max_memory, workers)


def carry_out(
    fills: Sequence[Fill],
    store: Store,
    root: Path,
    folder: Folder,
    encodings: dict[str, Encoding],
    workers: int = 2,
) -> list[TensorResult]:
    plan = plan_of(fills, workers)
    output = TargetOutput(folder, encodings, str(root))
    return run(plan, batches(plan, store, output), output)


@dataclass(frozen=True)
class Case:
    """A move, what is in its source, how both ends are stored, and whether the source recorded its digest."""

    move: Fill
    values: np.ndarray
    source_encoding: Encoding
    target_encoding: Encoding
    packed: bool
    recorded: bool

    @property
    def expected(self) -> np.ndarray:
        """What plain indexing puts into the target's box."""
        placement = self.move.piece
        moved = self.values[placement.source_box.slices].transpose(placement.axis_order)
        with np.errstate(all="ignore"):
            return moved.astype(numpy_dtype(placement.target_dtype))


SOURCES = ("float32", "bfloat16", "int8", "complex128", "float8_e4m3fn", "int64")
CASTS = {
    "float32": ("bfloat16", "float64", "float8_e5m2"),
    "bfloat16": ("float32", "float16"),
    "int8": ("int32", "float32"),
    "complex128": ("complex64",),
    "float8_e4m3fn": ("float32",),
    "int64": ("int16", "float64"),
}


@st.composite
def cases(draw: st.DrawFn, *, offsets: bool = False) -> Case:
    """Any move that one of the four strategies carries out.

    With ``offsets`` a box of the source goes to a place in a larger target, its axes in any order;
    else the whole of one tensor becomes the whole of the other.
    """
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    dtype = draw(st.sampled_from(SOURCES))
    target_dtype = draw(st.sampled_from((dtype, *CASTS[dtype])))
    source = tensor("in/w", shape, draw(chunk_shapes(shape)), dtype)
    placement, target = draw(
        _placements(source, target_dtype) if offsets else _whole(source, target_dtype)
    )
    encodings = draw(st.tuples(*[st.sampled_from((RAW, RAW_CRC, ZSTD, ZSTD_CRC))] * 2))
    sides = side(source, encodings[0]), side(target, encodings[1])
    strategy: Strategy = draw(st.sampled_from(("scatter", "weave", "block")))
    if not sides[1].raw:
        strategy = "block"
    units = draw(_units(strategy, placement, *sides))
    band = draw(st.sampled_from((1, 40, 300, 1 << 20)))
    move = by_hand(placement, *sides, strategy, units, band, at_once=draw(st.booleans()))
    packed = strategy == "block" and draw(st.booleans())
    return Case(move, draw(random_values(shape, dtype)), *encodings, packed, draw(st.booleans()))


def chunk_shapes(shape: Sequence[int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Chunks may be larger than the tensor: then all of it is an edge."""
    return st.tuples(*(st.integers(1, n + 2) for n in shape))


@st.composite
def _whole(draw: st.DrawFn, source: TensorSpec, dtype: str) -> tuple[Piece, TensorSpec]:
    target = tensor("out/w", source.shape, draw(chunk_shapes(source.shape)), dtype)
    return Piece.whole(source, target), target


@st.composite
def _placements(draw: st.DrawFn, source: TensorSpec, dtype: str) -> tuple[Piece, TensorSpec]:
    """The target's box begins and ends where its chunks do, so that one move fills whole chunks."""
    start = tuple(draw(st.integers(0, n - 1)) for n in source.shape)
    stop = tuple(draw(st.integers(a + 1, n)) for a, n in zip(start, source.shape, strict=True))
    order = tuple(draw(st.permutations(range(len(source.shape)))))
    moved = Box(start, stop).permute(order).shape
    chunk = tuple(draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0])) for n in moved)
    before = tuple(c * draw(st.integers(0, 2)) for c in chunk)
    shape = tuple(
        b + n + c * draw(st.integers(0, 1)) for b, n, c in zip(before, moved, chunk, strict=True)
    )
    target = tensor("out/w", shape, chunk, dtype)
    place = Box.full(moved).shift(before)
    return (
        Piece("in/w", Box(start, stop), "out/w", place, order, source.dtype, dtype),
        target,
    )


@st.composite
def _units(
    draw: st.DrawFn, strategy: Strategy, placement: Piece, source: Side, target: Side
) -> Grid:
    source_grid = placement.source_grid(source.spec.storage)
    target_grid = placement.target_grid(target.spec.storage)
    common = source_grid.common(target_grid)
    if strategy == "scatter":
        return source_grid
    if strategy == "block":
        return draw(st.sampled_from((common, target_grid)))
    first = draw(st.integers(1, max(1, len(placement.shape))))
    return Grid(common.shape, source_grid.cuts[:first] + common.cuts[first:])


@st.composite
def random_values(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random bits; sometimes with zeros, so that whole chunks are not stored."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random_array(rng, shape, dtype).copy()
    if shape and draw(st.booleans()):
        values[: draw(st.integers(0, shape[0]))] = 0
    return values
