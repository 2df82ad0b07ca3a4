from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reshard.checksums import crc as crc_linear
from reshard.checksums import tensor_digest
from reshard.checksums.tensor_digest import (
    CRC32C,
    CRC64NVME,
    Crc,
    finish,
    linear_of_box,
)
from reshard.geometry.dtypes import DTYPES, numpy_dtype
from reshard.geometry.grid import Box, Grid

CRCS = [CRC64NVME, CRC32C]
both = pytest.mark.parametrize("crc", CRCS, ids=lambda crc: crc.name)


def plain(crc: Crc, data: bytes) -> int:
    from awscrt import checksums

    return getattr(checksums, crc.name)(data)


def random_array(shape: tuple[int, ...], itemsize: int, seed: int = 0) -> np.ndarray:
    data = np.random.default_rng(seed).bytes(math.prod(shape) * itemsize)
    return np.frombuffer(data, f"V{itemsize}").reshape(shape)


def as_dense(piece: np.ndarray) -> np.ndarray:
    return piece.copy()


def as_view(piece: np.ndarray) -> np.ndarray:
    return piece


def as_transposed(piece: np.ndarray) -> np.ndarray:
    return np.array(piece, order="F")


def as_window(piece: np.ndarray) -> np.ndarray:
    """The piece within a larger buffer, as a padded chunk holds it."""
    buffer = np.zeros([n + 3 for n in piece.shape], piece.dtype)
    window = buffer[(..., *(slice(1, 1 + n) for n in piece.shape))]
    window[...] = piece
    return window


def as_reversed(piece: np.ndarray) -> np.ndarray:
    flip = (..., *(slice(None, None, -1),) * piece.ndim)
    return piece[flip].copy()[flip]


MEMORY = [as_dense, as_view, as_transposed, as_window, as_reversed]


def test_gaps_between_runs_are_free_of_the_piece_before():
    """Both pieces are spread in the scratch of this thread, at other distances."""
    for columns, width in ((40, 25), (60, 25)):
        array, total = random_array((100, columns), 4), 0
        for box in (Box((0, 0), (100, width)), Box((0, width), (100, columns))):
            total ^= linear_of_box(CRC64NVME, array[box.slices], box, array.shape)
            assert tensor_digest.runs_of(box.shape, array.shape, 4).way == "wide"
        assert finish(CRC64NVME, total, array.nbytes) == plain(CRC64NVME, array.tobytes())


@st.composite
def cut_arrays(draw):
    shape = tuple(draw(st.lists(st.integers(0, draw(st.sampled_from([3, 12, 40]))), max_size=4)))
    cuts = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=3))}) for n in shape]
    grid = Grid(shape, tuple(map(tuple, cuts)))
    boxes = draw(st.permutations([grid.box(i) for i in grid.indices()]))
    forms = draw(st.lists(st.sampled_from(MEMORY), min_size=len(boxes), max_size=len(boxes)))
    return random_array(shape, draw(st.integers(1, 16)), draw(st.integers(0, 9))), boxes, forms


def gathered(crc, array, pieces):
    """The CRC of a tensor like ``array`` from pieces and their boxes."""
    total = 0
    for piece, box in pieces:
        total ^= linear_of_box(crc, piece, box, array.shape)
    return finish(crc, total, array.nbytes)


@both
@given(case=cut_arrays())
def test_shuffled_boxes_give_the_plain_crc(crc, case):
    array, boxes, forms = case
    pieces = [(form(array[box.slices]), box) for box, form in zip(boxes, forms, strict=True)]
    assert gathered(crc, array, pieces) == plain(crc, array.tobytes())


@both
@pytest.mark.parametrize("form", MEMORY, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("shape", "chunk", "itemsize"),
    [
        ((700, 800), (300, 200), 2),  # short gaps
        ((5000, 64), (5000, 3), 4),  # short runs
        ((9000, 128), (9000, 16), 16),  # more runs than are folded at once
        ((64, 40_000), (64, 10_000), 4),  # long runs, long gaps
        ((3, 200_000), (2, 100_000), 4),  # few runs
        ((6, 50, 7, 300), (4, 20, 7, 150), 4),  # several outer dimensions
        ((40, 30, 20, 10), (13, 11, 7, 3), 8),
        ((2, 3, 4, 90_000), (1, 2, 3, 50_000), 2),
        ((2_000_000,), (700_001,), 1),  # one run
    ],
    ids=str,
)
def test_every_way_of_summing(crc, shape, chunk, itemsize, form):
    array = random_array(shape, itemsize)
    grid = Grid.regular(shape, chunk)
    total = 0
    for box in map(grid.box, grid.indices()):
        total ^= linear_of_box(crc, form(array[box.slices]), box, shape)
    assert finish(crc, total, array.nbytes) == plain(crc, array.tobytes())


@pytest.mark.parametrize("form", MEMORY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(form, dtype):
    array = np.arange(24 * 16, dtype=np.uint8).astype(numpy_dtype(dtype)).reshape(24, 16)
    grid = Grid.regular((24, 16), (7, 9))
    total = 0
    for box in grid.boxes():
        total ^= linear_of_box(CRC64NVME, form(array[box.slices]), box, (24, 16))
    assert finish(CRC64NVME, total, array.nbytes) == plain(CRC64NVME, array.tobytes())


def test_the_cases_above_take_every_way():
    ways = {
        tensor_digest.runs_of(box, shape, size).way
        for shape, box, size in [
            ((700, 800), (300, 200), 2),
            ((5000, 1064), (5000, 3), 4),
            ((64, 40_000), (64, 10_000), 4),
            ((2_000_000,), (700_001,), 1),
        ]
    }
    assert ways == {"wide", "short", "each", "one"}


@both
@pytest.mark.parametrize("way", ["wide", "short", "each"])
def test_the_ways_agree(crc, way):
    from reshard.checksums.tensor_digest import _linear

    rows = np.random.default_rng(1).integers(0, 256, (3, 700, 48), np.uint8)
    spread = np.zeros((3, 1000, 96), np.uint8)
    spread[:, :700, :48] = rows
    expected = crc.linear(spread.reshape(-1)[: 2 * 96_000 + 699 * 96 + 48])
    assert _linear(crc, rows, (96_000, 96), way) == expected


@both
def test_scalar_and_empty_tensors(crc):
    scalar = np.array(1.5, np.float32)
    assert gathered(crc, scalar, [(scalar, Box((), ()))]) == plain(crc, scalar.tobytes())
    assert finish(crc, 0, 0) == plain(crc, b"")
    assert linear_of_box(crc, np.zeros((0, 3), np.int8), Box((2, 0), (2, 3)), (5, 3)) == 0


@both
def test_one_flipped_bit_or_a_swapped_pair_of_pieces_changes_the_value(crc):
    array = random_array((32, 64), 4)
    left, right = Box((0, 0), (32, 32)), Box((0, 32), (32, 64))
    swapped = [(array[left.slices], right), (array[right.slices], left)]
    assert gathered(crc, array, swapped) != plain(crc, array.tobytes())
    flipped = bytearray(array.tobytes())
    flipped[1234] ^= 4
    wrong = np.frombuffer(bytes(flipped), "V4").reshape(32, 64)
    found = gathered(crc, wrong, [(wrong[box.slices], box) for box in (left, right)])
    assert found == plain(crc, bytes(flipped)) != plain(crc, array.tobytes())


def test_a_piece_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 3\) cannot be at \[0:2, 0:4\]"):
        linear_of_box(CRC64NVME, np.zeros((2, 3)), Box((0, 0), (2, 4)), (4, 4))


def test_contributions_of_several_threads_merge():
    array = random_array((4096, 256), 4)
    grid = Grid.regular(array.shape, (512, 100))
    boxes = [grid.box(i) for i in grid.indices()]

    def work(k: int) -> int:
        for _ in range(3):  # the last round counts: scratches are reused in between
            part = 0
            for box in boxes[k::4]:
                part ^= linear_of_box(CRC64NVME, array[box.slices], box, array.shape)
        return part

    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(work, range(4)))
    total = parts[0] ^ parts[1] ^ parts[2] ^ parts[3]
    assert finish(CRC64NVME, total, array.nbytes) == plain(CRC64NVME, array.tobytes())


@both
@given(data=st.binary(max_size=300), cut=st.integers(0, 300), gap=st.integers(0, 1 << 40))
@example(data=b"", cut=0, gap=0)
def test_linear_parts_shift_and_xor(crc, data, cut, gap):
    head, tail = data[:cut], data[cut:]
    assert crc.linear(data) == crc.shift(crc.linear(head), len(tail)) ^ crc.linear(tail)
    assert crc.shift(crc.shift(1, gap), 9) == crc.shift(1, gap + 9)
    assert finish(crc, crc.linear(data), len(data)) == plain(crc, data)


@both
@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 17, 300, 5000])
def test_fold_is_horner(crc, count):
    rng = np.random.default_rng(count)
    values = rng.integers(0, crc.ones, count, f"u{crc.width // 8}", endpoint=True)
    expected = 0
    for value in values.tolist():
        expected = crc.shift(expected, 12345) ^ value
    assert crc_linear.fold(crc, values, 12345) == expected
    many = crc_linear.fold_last(crc, np.stack([values, values]), 12345)
    assert many.tolist() == [expected, expected]


def test_tables_are_bounded_and_read_only():
    rows = np.ones((64, 4000), np.uint8)
    for extra in range(2 * crc_linear.TABLE_CACHE):
        linear_of_box(CRC32C, rows, Box((0, 0), rows.shape), (64, 40_000 + extra))
    info = crc_linear._fold_table.cache_info()
    assert info.currsize == info.maxsize == crc_linear.TABLE_CACHE
    assert not crc_linear._fold_table(CRC32C, 40_000).flags.writeable


def test_merged_runs_are_as_long_as_they_can_be():
    assert tensor_digest.runs_of((4, 2, 8), (4, 3, 8), 2).counts == (4,)
    assert tensor_digest.runs_of((4, 2, 8), (4, 3, 8), 2).run_bytes == 32
    assert tensor_digest.runs_of((2, 3, 8), (4, 3, 8), 2).counts == ()
    assert tensor_digest.runs_of((2, 3, 4), (4, 3, 8), 2).counts == (6,)
    assert tensor_digest.runs_of((1, 1, 4), (4, 3, 8), 2).counts == ()


def test_import_does_not_load_awscrt():
    code = "import sys, reshard.checksums.tensor_digest; sys.exit('awscrt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
