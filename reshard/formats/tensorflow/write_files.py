"""The files of a TensorFlow target: data files, in which slices follow one another, and the index, which is written last.

Slice i of each tensor is in data file i, or files are filled up to a size, or there is one. The first begins with parts that are known before: the
object graph and texts. Tensors of strings, which come from a checkpoint of TensorFlow, are behind the slices. A record of the layout and of
digests is beside the index, as ``PREFIX.slices.json``.

The contents of the data files: the texts first, then the slices of tensors, then tensors of strings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from msgspec import Struct

from reshard.checksums.crc import CRC32C
from reshard.errors import CorruptError, PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Carried, Leaf
from reshard.formats.file_map import ChunkChecksum, FileMap, Insert, Place, SharedFile, StoredRanges
from reshard.formats.loose_pieces import SlicePlaces
from reshard.formats.marks import TENSORFLOW_INDEX
from reshard.formats.slices.slice_file import target_record
from reshard.formats.tensorflow.files import RECORD, data_ending
from reshard.formats.tensorflow.format import TensorflowForm
from reshard.formats.tensorflow.index import (
    MOST_DATA_FILES,
    NUMBERS,
    STRING,
    BundleEntry,
    Extents,
    entry_bytes,
    header_bytes,
    slice_key,
)
from reshard.formats.tensorflow.object_graph import OBJECT_GRAPH, target_graph, target_keys
from reshard.formats.tensorflow.strings import (
    joined_bytes,
    one_string,
    read_strings,
    stored_strings,
)
from reshard.formats.tensorflow.table import table_bytes
from reshard.geometry.grid import Grid, Index
from reshard.storage.local.staging import STAGED_PREFIX
from reshard.storage.location import Location


class DataFiles(Struct, frozen=True):
    """The data files of a target, under the names that they have while they are staged.

    Attributes:
        sizes: of the files, in the order of their numbers.
        slices: the places of the slices of each tensor.
        strings: the place of each tensor of strings, by the leaf's name.
    """

    sizes: Mapping[str, int]
    slices: Mapping[str, SlicePlaces]
    strings: Mapping[str, Place]


def place_data(target: TargetCheckpoint, form: TensorflowForm, head_bytes: int) -> DataFiles:
    """Gives everything its place; the first file begins with ``head_bytes`` of texts.

    Raises PlanError for more files than their names can count.
    """
    sizes = [head_bytes]
    spots = [_add(sizes, *one, form) for one in _contents(target)]
    if len(sizes) > MOST_DATA_FILES:
        raise PlanError(
            f"the target would have {len(sizes):,} data files, and TensorFlow counts at most {MOST_DATA_FILES:,}; ask for larger ones "
            "(file_bytes), for one (files), or for fewer shards (layout)"
        )
    names = [f"{STAGED_PREFIX}{data_ending(number, len(sizes))}" for number in range(len(sizes))]
    found = (Place(names[number], offset) for number, offset in spots)
    slices = {}
    for name, tensor in target.tensors.items():
        grid = tensor.packed or Grid.whole(tensor.spec.shape)
        starts: dict[Index, tuple[Place, ...]] = {i: (next(found),) for i in grid.indices()}
        slices[name] = SlicePlaces(tensor, grid, starts)
    strings = {leaf.name: next(found) for leaf, _ in carried_strings(target)}
    return DataFiles(dict(zip(names, sizes, strict=True)), slices, strings)


def carried_strings(target: TargetCheckpoint) -> Iterator[tuple[Leaf, Carried]]:
    """The tensors of strings, and their places in the source."""
    return ((leaf, leaf.carried) for leaf in target.leaves if leaf.carried)


def _contents(target: TargetCheckpoint) -> Iterator[tuple[int, int]]:
    """Everything that gets a place, in order: the number of its shard, and its bytes."""
    for tensor in target.tensors.values():
        grid = tensor.packed or Grid.whole(tensor.spec.shape)
        for number, box in enumerate(grid.boxes()):
            yield number, box.size * tensor.spec.itemsize
    for _, carried in carried_strings(target):
        yield 0, joined_bytes(carried)


def _add(sizes: list[int], shard: int, nbytes: int, form: TensorflowForm) -> tuple[int, int]:
    """Adds to one of the files, perhaps a new one; returns its number and the offset."""
    number = shard if form.files == "ranks" else len(sizes) - 1
    if form.files == "shards" and sizes[number] and sizes[number] + nbytes > form.file_bytes:
        number += 1
    sizes.extend([0] * (number + 1 - len(sizes)))
    offset = sizes[number]
    sizes[number] += nbytes
    return number, offset


def plan_files(target: TargetCheckpoint, form: TensorflowForm) -> FileMap:
    """The files of a TensorFlow checkpoint; nothing is written yet.

    Raises PlanError for two tensors that would have one key.
    """
    planned = _Planned(target, form)
    return FileMap(
        places=planned.places,
        finish=planned.finish,
        names=planned.names,
        shared=planned.sizes,
        shared_file=planned.shared_file,
    )


class _Text(Struct, frozen=True):
    """A string in the head of the first data file."""

    entry: BundleEntry
    stored: bytes


class _Planned:
    """The plan from which the files of a target follow; it never changes."""

    def __init__(self, target: TargetCheckpoint, form: TensorflowForm) -> None:
        self._target = target
        self._keys = target_keys(target, form)
        self._texts = dict(_stored_texts(self._texts_by_key(form)))
        head = b"".join(text.stored for text in self._texts.values())
        self._data = place_data(target, form, len(head))
        self.sizes = self._data.sizes
        self._heads = dict(zip(self.sizes, [head], strict=False))
        self._inserts = self._inserts_by_file()

    def names(self) -> list[str]:
        """The names of all files but the record."""
        return [f"{STAGED_PREFIX}{TENSORFLOW_INDEX}", *self.sizes]

    def _texts_by_key(self, form: TensorflowForm) -> dict[str, bytes]:
        texts = {
            self._keys[leaf.name]: leaf.text.encode()
            for leaf in self._target.leaves
            if leaf.text is not None
        }
        if form.names == "objects":
            texts[OBJECT_GRAPH], _ = target_graph(form, self._keys.values())
        return texts

    def _inserts_by_file(self) -> dict[str, list[Insert]]:
        """The tensors of strings in each file, by offset."""
        found: dict[str, list[Insert]] = defaultdict(list)
        for leaf, carried in carried_strings(self._target):
            place = self._data.strings[leaf.name]
            make = partial(_strings, leaf.name, carried)
            found[place.file].append(Insert(place.start, joined_bytes(carried), make))
        return found

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """The part of a data file that has the chunk."""
        return self._data.slices[name].places(index)

    def shared_file(self, file: str) -> SharedFile:
        """A data file; the first begins with the texts."""
        inserts = tuple(self._inserts.get(file, ()))
        return SharedFile(self._heads.get(file, b""), self.sizes[file], inserts)

    def finish(
        self, root: Location, digests: Mapping[str, str], checksums: Iterable[ChunkChecksum]
    ) -> Mapping[str, bytes]:
        """Writes the record; the index, with the checksum of each slice, is the marker."""
        (root / f"{STAGED_PREFIX}{RECORD}").write(target_record(self._target, digests))
        ranges = self._ranges(checksums)
        numbers = {file: number for number, file in enumerate(self.sizes)}
        entries = {b"": header_bytes(len(numbers))}
        entries |= {key.encode(): entry_bytes(text.entry) for key, text in self._texts.items()}
        for leaf, carried in carried_strings(self._target):
            place = self._data.strings[leaf.name]
            number, nbytes = numbers[place.file], joined_bytes(carried)
            entry = BundleEntry(STRING, carried.shape, number, place.start, nbytes, carried.crc)
            entries[self._keys[leaf.name].encode()] = entry_bytes(entry)
        for name in self._target.tensors:
            entries |= self._entries(name, ranges, numbers)
        return {f"{STAGED_PREFIX}{TENSORFLOW_INDEX}": table_bytes(sorted(entries.items()))}

    def _ranges(self, checksums: Iterable[ChunkChecksum]) -> Mapping[str, StoredRanges]:
        found: dict[str, StoredRanges] = defaultdict(lambda: StoredRanges(CRC32C))
        for chunk in checksums:
            (place,) = self.places(chunk.name, chunk.index)
            found[place.file].add(place.start, chunk.nbytes, chunk.crc32c)
        return found

    def _entries(
        self, name: str, ranges: Mapping[str, StoredRanges], numbers: Mapping[str, int]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entry of a tensor, and those of its slices."""
        tensor, stored = self._target.tensors[name], self._data.slices[name]
        dtype, shape = NUMBERS[tensor.spec.dtype], tensor.spec.shape
        key = self._keys[name].encode()

        def entry(index: Index) -> BundleEntry:
            box, (place,) = stored.slices.box(index), stored.starts[index]
            nbytes = box.size * tensor.spec.itemsize
            crc = ranges[place.file].crc(place.start, nbytes)
            return BundleEntry(dtype, box.shape, numbers[place.file], place.start, nbytes, crc)

        if not tensor.spec.nbytes:
            yield key, entry_bytes(BundleEntry(dtype, shape, crc32c=CRC32C.of(b"")))
            return
        indices = list(stored.slices.indices())
        if len(indices) == 1:
            yield key, entry_bytes(entry(indices[0]))
            return
        extents = [_extents(stored.slices, index) for index in indices]
        yield key, entry_bytes(BundleEntry(dtype, shape, slices=tuple(extents)))
        for index, one in zip(indices, extents, strict=True):
            yield slice_key(key, one), entry_bytes(entry(index))


def _strings(name: str, carried: Carried, _: StoredRanges) -> bytes:
    """A tensor of strings as it is stored. Raises CorruptError for a source that has changed or is damaged."""
    stored, _crc = stored_strings(read_strings(carried, repr(name)))
    nbytes = joined_bytes(carried)
    if len(stored) != nbytes:
        raise CorruptError(
            f"{carried.parts[0].extent.path}: the strings of {name!r} take {nbytes:,} bytes, and {len(stored):,} would be "
            "enough; the file was not written by TensorFlow: save it again with TensorFlow"
        )
    return stored


def _stored_texts(texts: Mapping[str, bytes]) -> Iterator[tuple[str, _Text]]:
    offset = 0
    for key, text in texts.items():
        stored, crc = stored_strings(one_string(text))
        yield key, _Text(BundleEntry(STRING, (), 0, offset, len(stored), crc), stored)
        offset += len(stored)


def _extents(grid: Grid, index: Index) -> Extents:
    box = grid.box(index)
    return tuple(zip(box.start, box.shape, strict=True))
