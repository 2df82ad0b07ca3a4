"""Loose pieces as a grid of chunks: what a chunk gathers equals numpy's, and no byte is read twice."""

from __future__ import annotations

import itertools
import math
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.decode.chunk_reader import ChunkFacts, open_chunk
from reshard.errors import CorruptError, StorageError
from reshard.formats import loose_pieces
from reshard.formats.base import Reader
from reshard.formats.contents import RawPiece, SourceChunk
from reshard.formats.format import Opening
from reshard.formats.loose_pieces import (
    gathered_chunks,
    split_large,
    unsplit_grid,
    with_parts_joined,
)
from reshard.geometry.grid import Box, Grid
from reshard.geometry.row_major import span
from reshard.storage.location import locate
from tests.geometry.tilings import tilings
from tests.loose_pieces import PIECES, write_pieces
from tests.source_reads import Reads


def values_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.arange(1, math.prod(shape) + 1).astype(dtype).reshape(shape)


def decoded(reader: Reader, name: str, step: int) -> np.ndarray:
    """Every chunk, in ranges of ``step`` elements."""
    stored = reader.tensors[name]
    spec = stored.spec
    full = np.zeros(spec.shape, spec.dtype)
    for index in spec.storage.indices():
        box = spec.storage.box(index)
        chunk = SourceChunk(index, reader.locate(name, index), box, box.shape)
        data = np.zeros(box.size, spec.dtype)
        chunks = ChunkFacts(name, spec.dtype, stored.encoding, stored.fill)
        with closing(open_chunk(chunks, chunk)) as stream:
            for at in range(0, len(data), step):
                stream.readinto(data[at : at + step].data.cast("B"))
            assert stream.close_checked()
        full[box.slices] = data.reshape(box.shape)
    return full


@given(
    tilings(longest=9),
    st.sampled_from(["uint8", "int16", "float32", "int64", "complex128"]),
    st.integers(1, 60),
    st.sampled_from([1, 32, 1 << 20]),
    st.sampled_from([16, 1 << 20]),
    st.data(),
)
def test_chunks_hold_what_numpy_says_however_pieces_lie(
    tiling: tuple[tuple[int, ...], list[Box]],
    dtype: str,
    step: int,
    join_bytes: int,
    split_bytes: int,
    data: st.DataObject,
) -> None:
    shape, boxes = tiling
    row_major = tuple(range(len(shape)))
    orders = data.draw(st.sampled_from([st.just(row_major), st.permutations(row_major).map(tuple)]))
    values = values_of(shape, dtype)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loose_pieces, "MANY_CHUNKS", 1)
        patch.setattr(loose_pieces, "JOIN_BYTES", join_bytes)
        patch.setattr(loose_pieces, "SPLIT_BYTES", split_bytes)
        patch.setattr(loose_pieces, "AT_ONCE_BYTES", split_bytes)
        write_pieces(Path(folder), "w", values, [(box, data.draw(orders)) for box in boxes])
        np.testing.assert_array_equal(
            decoded(PIECES.open(locate(folder), Opening()), "w", step), values
        )


@given(tilings(longest=9), st.sampled_from([16, 1 << 20]))
def test_each_byte_is_read_once_in_rows_of_a_chunk(
    tiling: tuple[tuple[int, ...], list[Box]], split_bytes: int
) -> None:
    shape, boxes = tiling
    values = values_of(shape, "int32")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loose_pieces, "SPLIT_BYTES", split_bytes)
        write_pieces(Path(folder), "w", values, [(b, tuple(range(len(shape)))) for b in boxes])
        reader = PIECES.open(locate(folder), Opening())
        reads = Reads(patch)
        decoded(reader, "w", 1 << 20)
        for path in Path(folder).glob("*.bin"):
            size = path.stat().st_size
            assert reads.times_read(str(path.resolve()), 5, size) == (
                {1: size - 5} if size > 5 else {}
            )


def test_a_turned_piece_is_read_once_however_little_is_taken_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = values_of((700, 900), "float32")
    boxes = [Box((0, 0), (700, 500)), Box((0, 500), (700, 900))]
    write_pieces(tmp_path, "w", values, [(box, (1, 0)) for box in boxes], files=1)
    reader = PIECES.open(locate(tmp_path), Opening())
    assert reader.tensors["w"].encoding.gathered == "at once"
    assert reader.tensors["w"].spec.storage.count == 2
    reads = Reads(monkeypatch)
    np.testing.assert_array_equal(decoded(reader, "w", 1000), values)
    path = str(tmp_path / "w-0.bin")
    assert reads.times_read(path, 5, 5 + values.nbytes) == {1: values.nbytes}
    assert len(reads.intervals[path]) <= 12


def test_pieces_that_form_a_grid_are_ranges_of_files(tmp_path: Path) -> None:
    values = values_of((1024, 1024), "float32")
    boxes = [Box((0, 0), (300, 1024)), Box((300, 0), (1024, 1024))]
    write_pieces(tmp_path, "w", values, [(box, (0, 1)) for box in boxes])
    reader = PIECES.open(locate(tmp_path), Opening())
    assert reader.tensors["w"].encoding.gathered == "no"
    assert reader.tensors["w"].spec.storage.cuts == ((0, 300, 1024), (0, 1024))
    extent = reader.locate("w", (1, 0))
    assert extent is not None
    assert extent.pieces is None
    assert (extent.path, extent.offset) == (f"{tmp_path}/w-1.bin", 5)
    assert reader.locate("w", (2, 0)) is None


def test_axes_of_length_one_turn_nothing() -> None:
    piece = RawPiece(Box((0, 0, 0), (1, 4, 6)), "p", 8, (1, 0, 2))
    laid_out = gathered_chunks((1, 4, 6), 4, [piece])
    assert laid_out.encoding.gathered == "no"
    assert laid_out.locate((0, 0, 0)).offset == 8


def loose(folder: Path) -> Reader:
    values = values_of((4, 6), "float32")
    boxes = [Box((0, 0), (4, 2)), Box((0, 2), (1, 6)), Box((1, 2), (4, 6))]
    write_pieces(folder, "w", values, [(box, (0, 1)) for box in boxes], files=3)
    return PIECES.open(locate(folder), Opening())


def test_a_file_that_is_cut_short_is_named_with_its_piece(tmp_path: Path) -> None:
    reader = loose(tmp_path)
    with (tmp_path / "w-2.bin").open("r+b") as file:
        file.truncate(30)
    with pytest.raises(CorruptError) as error:
        decoded(reader, "w", 1000)
    assert str(error.value) == (
        f"tensor 'w', chunk [0, 1]: the file of its piece [1:4, 2:6], {tmp_path}/w-2.bin, ends at byte 30; the source "
        "is damaged there: restore it from a replica or take another step"
    )


def test_a_file_that_is_gone_is_named_with_its_piece(tmp_path: Path) -> None:
    reader = loose(tmp_path)
    (tmp_path / "w-1.bin").unlink()
    with pytest.raises(StorageError) as error:
        decoded(reader, "w", 1000)
    assert f"piece [0:1, 2:6]: cannot read '{tmp_path}/w-1.bin': No such file" in str(error.value)


Tiling = tuple[tuple[int, ...], list[Box]]


@given(tilings())
def test_the_grid_has_every_cut_that_splits_no_box_and_no_other(tiling: Tiling) -> None:
    shape, boxes = tiling
    for dim, cuts in enumerate(unsplit_grid(shape, boxes).cuts):
        whole = {c for c in range(shape[dim] + 1) if not _splits(boxes, dim, c)}
        # A cut in the middle of nothing would be whole too; there is a box at every element.
        assert set(cuts) == whole


def _splits(boxes: list[Box], dim: int, cut: int) -> bool:
    return any(box.start[dim] < cut < box.stop[dim] for box in boxes)


def test_boxes_of_a_grid_are_its_parts() -> None:
    grid = Grid((6, 8, 3), ((0, 1, 6), (0, 2, 5, 8), (0, 3)))
    boxes = [*grid.boxes(), Box((0, 0, 0), (0, 8, 3)), Box((6, 4, 0), (6, 4, 0))]
    assert unsplit_grid(grid.shape, boxes[::-1]) == grid


def test_slices_of_tensorflow_keep_the_cut_that_all_of_them_respect() -> None:
    boxes = [Box((0, 0, 0), (2, 40, 50)), Box((2, 0, 0), (3, 5, 50)), Box((2, 5, 0), (3, 40, 50))]
    assert unsplit_grid((3, 40, 50), boxes).cuts == ((0, 2, 3), (0, 40), (0, 50))


def test_a_tensor_without_elements_or_axes_is_one_part() -> None:
    assert unsplit_grid((0, 4), [Box((0, 0), (0, 4))]) == Grid.whole((0, 4))
    assert unsplit_grid((), [Box((), ())]) == Grid.whole(())


@given(tilings(), st.integers(1, 400))
def test_joined_parts_have_cuts_of_the_grid_and_are_about_as_large_as_wanted(
    tiling: Tiling, least: int
) -> None:
    grid = unsplit_grid(*tiling)
    found = with_parts_joined(grid, least)
    assert found.common(grid) == found
    for dim, (few, many) in enumerate(zip(found.largest, grid.largest, strict=True)):
        others = math.prod(found.largest[dim + 1 :]) * math.prod(grid.largest[:dim])
        assert few < max(many + 1, least // others + many)


def test_rows_are_joined_where_a_mesh_would_cut_them() -> None:
    rows = Grid.regular((96_000, 4), (1, 4))
    found = with_parts_joined(rows, 1000)
    assert found.parts == (6 << 6, 1)
    for devices in (2, 3, 8, 12, 48):
        shards = Grid.regular(rows.shape, (96_000 // devices, 4))
        assert found.refine(shards) == found


@given(tilings(longest=12), st.integers(1, 60), st.data())
def test_large_parts_are_split_into_contiguous_ranges_of_boxes(
    tiling: Tiling, most: int, data: st.DataObject
) -> None:
    shape, boxes = tiling
    order = data.draw(st.permutations(range(len(shape))))
    grid = unsplit_grid(shape, boxes)
    found = split_large(grid, most, order)
    assert found.refine(grid) == found
    assert math.prod(found.largest) <= most
    for box, part in itertools.product(boxes, found.boxes()):
        inside = box.intersect(part)
        if inside is not None:
            local = inside.relative_to(box.start).permute(order)
            assert span(local, box.permute(order).shape)[1] == inside.size


def test_parts_are_split_evenly_and_into_a_bounded_number() -> None:
    assert split_large(Grid.whole((10, 4)), 20, (0, 1)).cuts == ((0, 5, 10), (0, 4))
    assert split_large(Grid.whole((12, 4)), 16, (0, 1)).cuts == ((0, 2, 4, 6, 8, 10, 12), (0, 4))
    assert split_large(Grid.whole((10, 4)), 3, (0, 1)).cuts == (tuple(range(11)), (0, 2, 4))
    assert split_large(Grid((9,), ((0, 1, 9),)), 3, (0,)).cuts == ((0, 1, 3, 4, 6, 7, 9),)
    # A file with holes may claim a petabyte.
    assert split_large(Grid.whole((1 << 40, 1 << 10)), 1 << 20, (0, 1)).count <= 3 << 16


def test_100_000_boxes_take_little_time() -> None:
    boxes = [Box((n, 0), (n + 1, 4)) for n in range(99_999)]
    boxes += [Box((99_999, 0), (100_000, 1)), Box((99_999, 1), (100_000, 4))]
    grid = unsplit_grid((100_000, 4), boxes)
    assert grid.parts == (100_000, 1)
    assert with_parts_joined(grid, 1 << 18).parts == (2, 1)
