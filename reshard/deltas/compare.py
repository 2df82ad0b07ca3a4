"""Compares the two checkpoints of a delta in lock step, window by window: NEW as a conversion would make it, and OLD as it is or made alike.

Both are tensors of one list. Each tensor's bytes go to its payload, and recorded identities are checked.

Tensors that both sides stream go through lanes: each takes tensors of its own, and reads, compares and compresses in one thread, so that no
thread waits for another. Tensors that a map puts together go in rounds, since a chunk that it reads may feed many tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from reshard.deltas.payloads import TensorPayload
from reshard.deltas.windows import Window, fill_windows, is_streamed, rounds, stream_windows
from reshard.engine.buffers import ALIGNMENT
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, tell_bytes
from reshard.errors import MemoryBudgetError, PlanError, ReshardError
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.contents import Leaf
from reshard.formats.delta.index import ListedTensor
from reshard.formats.delta.read_delta import anchor_version
from reshard.formats.format import refuse_others
from reshard.formats.leaf_paths import renamed_leaves
from reshard.formats.quantized import find_pairs
from reshard.formats.safetensors.format import SAFETENSORS, SafetensorsForm
from reshard.formats.safetensors.header import header_shape, safetensors_name
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.identity.identity_file import read_identity
from reshard.identity.leaf_tree import is_installed
from reshard.identity.weights_identity import (
    WeightsIdentity,
    changed_once_identified,
    check_identity_of,
)
from reshard.layout.changes import Changes
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import mapped_tensors
from reshard.planning.keep_pairs import refuse_parted
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites
from reshard.storage.location import Location

_FULL_VERSION = "a delta changes bytes and nothing else: publish a full version (reshard convert)"


class DeltaSide(Struct, frozen=True):
    """A checkpoint, and the tensors that are made of it.

    Attributes:
        mapping: its tensors, and those of the source that must be equal.
        is_as_it_is: true if neither a map nor rules made its tensors.
    """

    reader: Reader
    mapping: Mapped
    is_as_it_is: bool = False

    @property
    def tensors(self) -> Mapping[str, MappedTensor]:
        """Its tensors by name."""
        return {made.spec.name: made for made in self.mapping.tensors}


def delta_sides(
    old: Reader, new: Reader, given: GivenMap | None, changes: Changes, old_root: Location
) -> tuple[DeltaSide, DeltaSide]:
    """Both sides, with the same tensors in the same order.

    OLD is taken as it is where it was converted already, else the same rules are applied to it.

    Raises PlanError where the rules do not fit NEW, where the tensors differ in name, dtype or shape, and where OLD may be either; FormatError
    for content that safetensors files cannot hold.
    """
    made = _made(new, given, changes)
    if not made.is_as_it_is:
        specs = {name: tensor.spec for name, tensor in new.tensors.items()}
        refuse_parted(find_pairs(specs), specs, [each.pieces for each in made.mapping.tensors])
    _refuse_unknown(made)
    kept = _made(old, None, Changes(), only_tensors=True)
    difference = _difference(kept, made)
    again = _made_alike(old, given, changes, made, old_root)
    if again is not None and (difference or _is_step(old, new, made)):
        kept, difference = again, ""
    if difference:
        raise PlanError(f"{difference}; {_FULL_VERSION}")
    olds = kept.tensors
    ordered = tuple(olds[made.spec.name] for made in made.mapping.tensors)
    return replace(kept, mapping=replace(kept.mapping, tensors=ordered)), made


def left_out_warnings(old: DeltaSide) -> tuple[str, ...]:
    """A warning where the rules leave out tensors of an OLD that serving might read as it is, such as the scales of quantised weights."""
    count = len(old.reader.tensors) - len(old.tensors)
    if old.is_as_it_is or old.reader.format != SafetensorsForm.format or count <= 0:
        return ()
    return (
        f"the rules leave out {count:,} of the {len(old.reader.tensors):,} tensors of {old.reader.uri} too, and the delta is of the others alone: it "
        "does not fit that folder as it is, only what a conversion by the same rules makes of it",
    )


def _made_alike(
    old: Reader, given: GivenMap | None, changes: Changes, made: DeltaSide, old_root: Location
) -> DeltaSide | None:
    """OLD as the rules make it; None without rules, where they give other tensors than of NEW, and for a version, which receivers have
    as it is."""
    if (given is None and not changes) or anchor_version(old_root) is not None:
        return None
    try:
        again = _made(old, given, changes)
    except ReshardError:
        return None
    return None if _difference(again, made) else again


def _is_step(old: Reader, new: Reader, made: DeltaSide) -> bool:
    """True if OLD is a step of the run though its tensors, as they are, also fit those made of NEW, as where a map turns a square matrix.

    If one were taken for the other, each byte would be compared with one of another place.
    """
    plain = _made(new, None, Changes(), only_tensors=True)
    if _difference(plain, made) or _pieces(plain) == _pieces(made):
        return False
    if old.format != SafetensorsForm.format:
        return True
    if new.format != SafetensorsForm.format:
        return False
    raise PlanError(
        f"{old.uri} may be a step, or what the map and rules made of one: its names, dtypes and shapes fit both; convert the step to a folder with "
        "the name of its version, such as weight_v000006, and give that"
    )


def _pieces(side: DeltaSide) -> Mapping[str, tuple[Piece, ...]]:
    return {name: made.pieces for name, made in side.tensors.items()}


def listed_tensor(spec: TensorSpec, digest: str) -> ListedTensor:
    """A tensor as the index of a delta lists it."""
    dtype = safetensors_name(spec.dtype, spec.name)
    return ListedTensor(dtype, header_shape(spec.dtype, spec.shape), digest)


def _made(
    reader: Reader, given: GivenMap | None, changes: Changes, *, only_tensors: bool = False
) -> DeltaSide:
    if given is not None:
        return DeltaSide(reader, mapped_tensors(reader, given, changes)[0])
    specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
    keys = {name for name, tensor in reader.tensors.items() if tensor.is_key}
    found = rewrites(changes, [leaf.name for leaf in reader.leaves], specs, keys)
    names = {rewrite.source: rewrite.target for rewrite in found}
    leaves = renamed_leaves(reader.leaves, names, reader.container.naming_items).leaves
    if not only_tensors:
        _refuse_leaves(reader, leaves)
    tensors = tuple(
        _whole(specs[rewrite.source], leaf.name, rewrite.dtype, rewrite.saturate)
        for rewrite, leaf in zip(found, leaves, strict=True)
        if rewrite.source in specs
    )
    return DeltaSide(reader, Mapped(tensors), is_as_it_is=not changes)


def _whole(source: TensorSpec, name: str, dtype: str | None, saturate: bool) -> MappedTensor:
    spec = TensorSpec(name, source.shape, dtype or source.dtype, Grid.whole(source.shape))
    return MappedTensor(spec, (Piece.whole(source, spec, saturate=saturate),), "")


def _refuse_leaves(reader: Reader, leaves: Sequence[Leaf]) -> None:
    """Refuses the leaves that a conversion to safetensors refuses: strings, None, empty containers and PRNG keys."""
    target = TargetCheckpoint(reader.container, {}, leaves, {}, SafetensorsForm())
    refuse_others(SAFETENSORS, target, reader)


def _refuse_unknown(side: DeltaSide) -> None:
    for name, made in side.tensors.items():
        safetensors_name(made.spec.dtype, name)


def _difference(old: DeltaSide, new: DeltaSide) -> str:
    """The first difference between the tensors of both, as a clause; "" for none."""
    olds, news = old.tensors, new.tensors
    for name, made in news.items():
        if name not in olds:
            return f"{old.reader.uri} has no {name[:200]!r}, which {new.reader.uri} gives"
        a, b = olds[name].spec, made.spec
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return (
                f"{name[:200]!r} is {a.dtype} of shape {list(a.shape)} in {old.reader.uri}, but {new.reader.uri} gives {b.dtype} of shape "
                f"{list(b.shape)}"
            )
    more = next((name for name in olds if name not in news), None)
    return "" if more is None else f"{old.reader.uri} has {more[:200]!r}, which {new.reader.uri} does not give"  # fmt: skip


if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Fill = Callable[[Reader, Sequence[MappedTensor], Sequence[Window], Bytes], list[Bytes]]

_SHARE = 4
"""The windows of each side take a quarter of the memory; half of it is for reading."""

_COMPRESSING_BYTES = 4 << 20
"""Memory of a compressor and its blocks (measured: 3 MiB at level 1)."""

_LEAST_WINDOW_BYTES = 256 << 10
"""Smallest windows of a side: with smaller ones a round would cost more than its comparison."""

MIB = 1 << 20


def lanes_within(limits: Limits, left: int) -> int:
    """The number of threads that compress: each has a compressor beside windows that are not too small.

    Raises MemoryBudgetError where one does not fit.
    """
    fit = (left - _SHARE * _LEAST_WINDOW_BYTES) // _COMPRESSING_BYTES
    if fit < 1:
        smallest = limits.max_memory - left + _COMPRESSING_BYTES + _SHARE * _LEAST_WINDOW_BYTES
        raise MemoryBudgetError(
            f"to compare and compress takes {format_bytes(_COMPRESSING_BYTES + _SHARE * _LEAST_WINDOW_BYTES)} beside what is open, but max_memory "
            f"is {format_bytes(limits.max_memory)}; allow {-(-smallest // MIB)}MiB",
            smallest_bytes=smallest,
        )
    return min(limits.workers, fit)


class _Pair(Struct, frozen=True):
    """A tensor of both sides, and its payload."""

    old: MappedTensor
    new: MappedTensor
    payload: TensorPayload


def compare_sides(
    old: DeltaSide,
    new: DeltaSide,
    payloads: Sequence[TensorPayload],
    limits: Limits,
    lanes: int,
    open_bytes: int,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Reads every tensor of both sides once, if its chunks allow it, and finishes the payload of each; ``payloads`` in the order of the tensors.

    ``open_bytes``: memory of all that is open, beside that of ``limits``. Raises MemoryBudgetError where a chunk does not fit.
    """
    olds = old.tensors
    pairs = {
        made.spec.name: _Pair(olds[made.spec.name], made, payload)
        for made, payload in zip(new.mapping.tensors, payloads, strict=True)
    }
    total = sum(payload.spec.nbytes for payload in payloads)
    tell = tell_bytes(2 * total, "comparing", progress)
    most = (limits.max_memory - lanes * _COMPRESSING_BYTES) // _SHARE
    reading = replace(limits, max_memory=limits.max_memory - 2 * most)
    comparing = _Comparing(old.reader, new.reader, pairs, reading, lanes)
    share = reading.max_memory // lanes
    streamed = {
        name
        for name, pair in pairs.items()
        if is_streamed(old.reader, pair.old, most // lanes, share)
        and is_streamed(new.reader, pair.new, most // lanes, share)
    }
    lone = [pairs[name] for name in pairs if name in streamed]
    others = [pairs[name] for name in pairs if name not in streamed]
    try:
        for found in (comparing.in_lanes(lone, most // lanes), comparing.in_rounds(others, most)):
            with closing(found) as windows:  # no thread goes on after an error: the spool is closed
                for window in windows:
                    tell(window.spec.name, 2 * window.nbytes)
    except MemoryBudgetError as error:
        raise _too_little(error, limits, open_bytes) from error


def _too_little(error: MemoryBudgetError, limits: Limits, open_bytes: int) -> MemoryBudgetError:
    """The error for the whole memory; at least half of that is for reading."""
    smallest = open_bytes + 2 * max(error.smallest_bytes, limits.max_memory // 2)
    return MemoryBudgetError(
        f"{error}; the windows of both sides and what is open take the rest: allow {-(-smallest // MIB)}MiB in all",
        smallest_bytes=smallest,
    )


class _Comparing(Struct, frozen=True):
    """Both sides, and the memory for reading them."""

    old: Reader
    new: Reader
    pairs: dict[str, _Pair]
    limits: Limits
    lanes: int

    def in_lanes(self, pairs: Sequence[_Pair], most: int) -> Generator[Window]:
        """The windows of streamed tensors, as they are done; the largest tensors come first, so that the lanes end together."""
        ordered = sorted(pairs, key=lambda pair: pair.new.spec.nbytes, reverse=True)
        waiting = _batches(ordered, most)
        fill = partial(stream_windows, max_memory=self.limits.max_memory // self.lanes)
        with ThreadPoolExecutor(self.lanes, "reshard.delta") as threads:
            running: dict[Future[list[Window]], _Lane] = {}

            def go_on(lane: _Lane) -> None:
                windows = next(lane.windows, None)
                while windows is None and (batch := next(waiting, None)) is not None:
                    lane = _Lane(rounds(_specs(batch), most), lane.memories)
                    windows = next(lane.windows, None)
                if windows is not None:
                    running[threads.submit(self._compared, windows, lane.memories, fill)] = lane

            for _ in range(self.lanes):
                go_on(_Lane(iter(()), _memories(ordered, most)))
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    lane = running.pop(future)
                    found = future.result()
                    go_on(lane)
                    yield from found

    def in_rounds(self, pairs: Sequence[_Pair], most: int) -> Generator[Window]:
        """The windows of the others: each round is made, then compared, in all threads."""
        memories = _memories(pairs, most)
        fill = partial(fill_windows, limits=self.limits)
        with ThreadPoolExecutor(self.lanes, "reshard.delta") as threads:
            for windows in rounds(_specs(pairs), most):
                yield from threads.map(self._add, windows, *self._filled(windows, memories, fill))

    def _compared(
        self, windows: Sequence[Window], memories: tuple[Bytes, Bytes], fill: Fill
    ) -> list[Window]:
        return list(map(self._add, windows, *self._filled(windows, memories, fill)))

    def _filled(
        self, windows: Sequence[Window], memories: tuple[Bytes, Bytes], fill: Fill
    ) -> tuple[list[Bytes], list[Bytes]]:
        made = [self.pairs[window.spec.name] for window in windows]
        before = fill(self.old, [pair.old for pair in made], windows, memories[0])
        return before, fill(self.new, [pair.new for pair in made], windows, memories[1])

    def _add(self, window: Window, old: Bytes, new: Bytes) -> Window:
        payload = self.pairs[window.spec.name].payload
        payload.add(old, new, window.start)
        if window.is_last:
            payload.finish()
        return window


class _Lane(Struct, frozen=True):
    """The work of one thread: rounds of windows of its own tensors, and the memory for a round of both sides."""

    windows: Iterator[list[Window]]
    memories: tuple[Bytes, Bytes]


def _specs(pairs: Sequence[_Pair]) -> list[TensorSpec]:
    return [pair.new.spec for pair in pairs]


def _batches(pairs: Sequence[_Pair], most: int) -> Iterator[list[_Pair]]:
    """Batches of tensors: a large one alone, small ones together as long as they fit one round."""
    batch: list[_Pair] = []
    taken = 0
    for pair in pairs:
        if batch and taken + pair.new.spec.nbytes > most:
            yield batch
            batch, taken = [], 0
        batch.append(pair)
        taken += pair.new.spec.nbytes
    if batch:
        yield batch


def _memories(pairs: Sequence[_Pair], most: int) -> tuple[Bytes, Bytes]:
    """Memory for the windows of a round, of each side; only touched pages are taken."""
    rooms = (-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in _specs(pairs))
    largest = min(sum(rooms), most + ALIGNMENT)
    return np.empty(largest, np.uint8), np.empty(largest, np.uint8)


class RecordedRoots(Struct, frozen=True):
    """The identities of OLD and NEW; None where none is recorded, or where a map or rules make other tensors."""

    old: WeightsIdentity | None
    new: WeightsIdentity | None

    @property
    def are_there(self) -> tuple[bool, bool]:
        """True for each of both that is there."""
        return self.old is not None, self.new is not None


def recorded_roots(
    old: DeltaSide, new: DeltaSide, roots: tuple[Location, Location]
) -> RecordedRoots:
    """The identities in the ``identity.json`` of both folders; CorruptError where one does not fit the tensors there."""
    return RecordedRoots(_identity(old, roots[0]), _identity(new, roots[1]))


def _identity(side: DeltaSide, root: Location) -> WeightsIdentity | None:
    if not side.is_as_it_is or not is_installed():
        return None
    found = read_identity(root.view())
    if found is not None:
        check_identity_of(side.reader, found)
    return found


def check_identified_bytes(
    recorded: RecordedRoots, sides: tuple[DeltaSide, DeltaSide], payloads: Sequence[TensorPayload]
) -> None:
    """Raises CorruptError where the bytes that were read are not those of the identities."""
    for number, known in enumerate((recorded.old, recorded.new)):
        if known is None:
            continue
        for payload in payloads:
            name, crc = payload.spec.name, payload.crcs[number]
            then = known.tensors[name].crc64nvme
            if crc != then:
                raise changed_once_identified(sides[number].reader.uri, name, crc, then)
