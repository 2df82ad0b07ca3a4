"""A map of files is made and completed by the same functions, whatever its format."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from reshard.checksums.crc import CRC32, CRC32C, Crc
from reshard.errors import FormatError, StorageError
from reshard.formats.file_map import (
    ChunkChecksum,
    FileMap,
    Insert,
    Place,
    SharedFile,
    StoredRanges,
    finish_files,
    prepare_files,
)
from reshard.geometry.grid import Index
from reshard.storage.location import Location, locate

DATA = {"a": b"alpha", "b": b"beta" * 1000, "c": b""}
PREFIX = "ckpt-1000"


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6), st.data())
def test_the_crc_of_every_range_that_chunks_tile(pieces: list[bytes], data: st.DataObject) -> None:
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(pieces))] * 2)))
    for crc, expected in ((CRC32, zlib.crc32), (CRC32C, crc32c)):
        ranges, starts = StoredRanges(crc), [0, *np.cumsum([len(p) for p in pieces]).tolist()]
        for number in data.draw(st.permutations(range(len(pieces)))):
            if pieces[number]:
                ranges.add(starts[number], len(pieces[number]), crc.of(pieces[number]))
        whole = b"".join(pieces[first:last])
        assert ranges.crc(starts[first], len(whole)) == expected(whole)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 11), (5, 5), (0, 9), (2, 3)])
def test_a_range_that_chunks_do_not_tile(offset: int, nbytes: int) -> None:
    ranges = StoredRanges(CRC32)
    ranges.add(0, 5, 1)
    ranges.add(6, 4, 2)
    with pytest.raises(FormatError, match=f"do not tile the {nbytes} bytes at {offset} of a file"):
        ranges.crc(offset, nbytes)


def masked(crc: int) -> int:
    """As TensorFlow and LevelDB store a CRC32C."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def prefix_map() -> FileMap:
    """Files that are named by a prefix, as TensorFlow's: an index, and one file with the data of all tensors."""
    starts = dict(zip(DATA, np.cumsum([0, *map(len, DATA.values())]).tolist(), strict=False))
    data = f"{PREFIX}.data-00000-of-00001"

    def places(name: str, _: Index) -> tuple[Place, ...]:
        return (Place(data, starts[name]),)

    def finish(
        root: Location, _: Mapping[str, str], checksums: Iterable[ChunkChecksum]
    ) -> Mapping[str, bytes]:
        index = {each.name: [starts[each.name], masked(each.crc32c)] for each in checksums}
        (root / f"{PREFIX}.index").write(json.dumps(index).encode())
        return {}

    nbytes = sum(map(len, DATA.values()))
    shared = SharedFile(b"", nbytes)
    return FileMap(places=places, finish=finish, shared=(data,), shared_file=lambda _: shared)


def write_chunks(files: FileMap, root: Path) -> list[ChunkChecksum]:
    for name, value in DATA.items():
        (place,) = files.places(name, (0,))
        with (root / place.file).open("r+b") as file:
            file.seek(place.start)
            file.write(value)
    return [
        ChunkChecksum(name, (0,), len(value), crc32c(value))
        for name, value in DATA.items()
        if value
    ]


def test_files_below_a_prefix(tmp_path: Path) -> None:
    files = prefix_map()
    prepare_files(files, locate(tmp_path))
    checksums = write_chunks(files, tmp_path)
    assert finish_files(files, locate(tmp_path), {}, checksums) == {}
    names = [f"{PREFIX}.data-00000-of-00001", f"{PREFIX}.index"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    data = (tmp_path / names[0]).read_bytes()
    for name, (start, crc) in json.loads((tmp_path / names[1]).read_bytes()).items():
        assert data[start : start + len(DATA[name])] == DATA[name]
        assert crc == masked(crc32c(DATA[name]))
    assert files.keeps(names[0])
    assert not files.keeps(names[1])


def _sum_of(nbytes: int, stored: StoredRanges) -> bytes:
    return stored.crc(2, nbytes).to_bytes(4, "little")


def map_with_sum(crc: Crc) -> FileMap:
    """One file: ``<<``, the data of all tensors, its sum."""
    nbytes = sum(map(len, DATA.values()))
    insert = Insert(2 + nbytes, 4, partial(_sum_of, nbytes))
    shared = SharedFile(b"<<", nbytes + 6, (insert,), crc)
    before = prefix_map()

    def places(name: str, index: Index) -> tuple[Place, ...]:
        return (Place("data", 2 + before.places(name, index)[0].start),)

    return FileMap(
        places=places, finish=lambda *_: {}, shared=("data",), shared_file=lambda _: shared
    )


@pytest.mark.parametrize(("crc", "expected"), [(CRC32, zlib.crc32), (CRC32C, crc32c)])
def test_an_insert_is_written_at_the_end(crc: Crc, expected, tmp_path: Path) -> None:
    files = map_with_sum(crc)
    prepare_files(files, locate(tmp_path))
    assert (tmp_path / "data").stat().st_size == sum(map(len, DATA.values())) + 6
    checksums = write_chunks(files, tmp_path)
    prepare_files(files, locate(tmp_path))  # as a run that resumes does: chunks stay
    finish_files(files, locate(tmp_path), {}, checksums)
    whole = b"".join(DATA.values())
    stored = expected(whole).to_bytes(4, "little")
    assert (tmp_path / "data").read_bytes() == b"<<" + whole + stored


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    files = map_with_sum(CRC32)
    prepare_files(files, locate(tmp_path))
    checksums = write_chunks(files, tmp_path)
    with (tmp_path / "data").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(StorageError, match=r"data should have 4000 bytes at 7, but ends before"):
        finish_files(files, locate(tmp_path), {}, checksums)
