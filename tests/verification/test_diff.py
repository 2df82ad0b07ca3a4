"""Two stored checkpoints compared element by element: any chunks, codecs and budgets, against numpy."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.engine import read_boxes
from reshard.engine.decode import box_plan, box_stream
from reshard.engine.limits import Limits
from reshard.errors import CorruptError, MemoryBudgetError, PlanError, StorageError
from reshard.formats.contents import Container, Leaf
from reshard.geometry.dtypes import numpy_dtype
from reshard.layout.changes import Changes
from reshard.verification import diff as engine_diff
from reshard.verification import elements, pair_blocks
from reshard.verification.diff import diff_readers
from tests.engine.stores import RAW, RAW_CRC, ZSTD, ZSTD_CRC, Store, tensor

LIMITS = Limits(64 << 20, 2)
CODECS = (RAW, RAW_CRC, ZSTD, ZSTD_CRC)
MIB = 1 << 20


class Readable(Store):
    """A store that is a Reader of one tree."""

    container = Container("v0", ())
    metadata_bytes = 0
    warnings = ()


def diff(a, b, limits=LIMITS, changes=None, progress=None):
    return diff_readers(a, b, Changes() if changes is None else changes, limits, progress)


def store_of(folder, name, values, chunk, encoding, dtype):
    store = Readable(Path(folder) / name, name)
    store.add(tensor("w", values.shape, chunk, dtype), values, encoding)
    return store


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    chunks = [tuple(draw(st.integers(1, n + 2)) for n in shape) for _ in range(2)]
    dtypes = draw(
        st.sampled_from(
            [("float32", "float32"), ("bfloat16", "float32"), ("int8", "int8"), ("complex128", "complex128"), ("int64", "float64")]
        )
    )  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    a = rng.integers(-4, 5, shape).astype(np.float32)
    b = np.where(
        rng.random(shape) < draw(st.sampled_from((0, 0.1, 1))), rng.integers(-4, 5, shape), a
    )
    arrays = [
        np.asarray(values).astype(numpy_dtype(d)) for values, d in zip((a, b), dtypes, strict=True)
    ]
    return shape, chunks, dtypes, arrays, draw(st.tuples(*[st.sampled_from(CODECS)] * 2))


@given(cases(), st.data())
def test_any_chunks_codecs_and_bands_beside_numpy(case, data):
    shape, chunks, dtypes, arrays, codecs = case
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_plan, "BAND_BYTES", data.draw(st.sampled_from([1, 40, 300, 1 << 20])))
        patch.setattr(elements, "SLAB_ELEMENTS", data.draw(st.sampled_from([1, 7, 1000])))
        patch.setattr(
            pair_blocks, "open_files_per_task", lambda _: data.draw(st.sampled_from([0, 6, 999]))
        )
        stores = [
            store_of(folder, name, *rest)
            for name, *rest in zip("ab", arrays, chunks, codecs, dtypes, strict=True)
        ]
        seen = []
        found = diff(*stores, progress=seen.append).tensors["w"]
    a, b = (x.astype(np.complex128) for x in arrays)
    unlike = a != b
    assert (found.shape_a, found.dtype_a, found.dtype_b) == (shape, *dtypes)
    assert found.elements == np.count_nonzero(unlike)
    assert found.is_difference == (bool(unlike.any()) or dtypes[0] != dtypes[1])
    sizes = np.abs(a - b)
    if unlike.any():
        assert found.largest == sizes.max()
        assert found.index == np.unravel_index(sizes.argmax(), shape)
        norm = np.linalg.norm(a.ravel())
        expected = np.linalg.norm((a - b).ravel()) / norm if norm else math.inf
        assert found.relative == pytest.approx(expected, rel=1e-12)
    else:
        assert (found.largest, found.index, found.relative) == (None, None, 0.0)
    total = sum(x.nbytes for x in arrays)
    assert not seen or (seen[-1].moved_bytes, seen[-1].total_bytes) == (total, total)


@pytest.fixture
def pair(tmp_path):
    """Three tensors, by rows and by columns, zstd and raw."""
    a, b = Readable(tmp_path / "a", "A"), Readable(tmp_path / "b", "B")
    for name in ("v", "w", "x"):
        values = np.random.default_rng(ord(name)).normal(size=(12, 9)).astype(np.float32)
        a.add(tensor(name, (12, 9), (5, 9)), values, ZSTD_CRC)
        b.add(tensor(name, (12, 9), (12, 2)), values, RAW_CRC)
    return a, b


def test_equal_tensors_in_other_chunks_are_equal(pair):
    found = diff(*pair)
    assert found.differences == 0
    assert [t.status for t in found.tensors.values()] == ["equal"] * 3
    assert repr(found) == "DiffReport('A', 'B': 0 of 3 tensors and 0 of 0 other leaves differ)"


def test_tensors_that_cannot_be_compared_are_listed(pair):
    a, b = pair
    b.tensors["v"] = replace(b.tensors["v"], spec=tensor("v", (9, 12), (9, 2)))
    b.tensors["w"] = replace(b.tensors["w"], is_key=True)
    del b.tensors["x"]
    b.others = (Leaf("x", (), "", False, {"string": "adam"}), Leaf("y", (), "", False))
    found = diff(a, b)
    assert {n: (t.status, t.detail, t.elements) for n, t in found.tensors.items()} == {
        "v": ("different", "shape [12, 9] in A, [9, 12] in B", None),
        "w": ("different", "a PRNG key in B only", None),
    }
    assert {n: (x.status, x.a, x.b) for n, x in found.leaves.items()} == {
        "x": ("different", "float32 of shape [12, 9]", "'adam'"),
        "y": ("only in B", None, "empty"),
    }
    assert found.differences == 4


def test_what_one_side_lacks_is_named(pair):
    a, b = pair
    del a.tensors["v"], b.tensors["w"]
    found = diff(a, b).tensors
    assert [(n, t.status) for n, t in found.items()] == [
        ("w", "only in A"), ("x", "equal"), ("v", "only in B"),
    ]  # fmt: skip
    assert (found["w"].shape_a, found["w"].shape_b) == ((12, 9), None)


def test_select_and_drop_look_at_the_names_of_both(pair):
    a, b = pair
    del a.tensors["v"]
    assert list(diff(a, b, changes=Changes(("v|w",), ("w",))).tensors) == ["v"]
    with pytest.raises(PlanError, match="select 'typo' matches none of the 3 names"):
        diff(a, b, changes=Changes(("typo",)))


def test_bits_of_keys(pair):
    for store in pair:
        store.tensors["w"] = replace(store.tensors["w"], is_key=True)
    found = diff(*pair).tensors["w"]
    assert (found.status, found.compared_as, found.relative) == ("equal", "bits", None)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("band_bytes", [40, 1 << 20])
@pytest.mark.parametrize("open_files", [0, 999])
def test_a_flipped_bit_is_damage_with_a_name(pair, side, band_bytes, open_files, monkeypatch):
    monkeypatch.setattr(pair_blocks, "open_files_per_task", lambda _: open_files)
    monkeypatch.setattr(box_plan, "BAND_BYTES", band_bytes)
    path = pair[side].path
    sound = path.read_bytes()
    for at in range(0, len(sound), max(1, len(sound) // 20)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        extents = [
            (name, index)
            for (name, index), e in pair[side].extents.items()
            if e is not None and e.inline is None and e.offset <= at < e.offset + e.length
        ]
        if extents:
            name, index = extents[0]
            with pytest.raises(CorruptError) as error:
                diff(*pair)
            assert f"tensor {name!r}, chunk {list(index)}" in str(error.value)


def test_a_file_that_is_gone(pair):
    pair[1].path.unlink()
    with pytest.raises(StorageError, match=r"tensor 'v', chunk .* cannot read"):
        diff(*pair)


def test_padding_is_checked_too(tmp_path):
    values = np.ones((5, 5), np.float32)
    a = store_of(tmp_path, "a", values, (3, 4), RAW_CRC, "float32")
    b = store_of(tmp_path, "b", values, (5, 5), RAW, "float32")
    data = bytearray(a.path.read_bytes())
    corner = a.extents["w", (1, 1)]
    data[corner.offset + corner.length - 5] ^= 1  # the last byte before the checksum
    a.path.write_bytes(bytes(data))
    with pytest.raises(CorruptError, match=r"chunk \[1, 1\]: its CRC32C"):
        diff(a, b)


def test_a_budget_that_is_too_small_names_one_that_works(pair):
    with (
        mock.patch.object(engine_diff, "read_boxes", side_effect=AssertionError),
        pytest.raises(MemoryBudgetError) as error,
    ):
        diff(*pair, limits=Limits(1 * MIB, 2))
    smallest = error.value.smallest_bytes
    assert str(error.value) == (
        f"to compare 'v' of shape [12, 9] needs at least {smallest >> 20} MiB of buffers (zstd chunks of 5×9 in A "
        f"and raw chunks of 12×2 in B), but 1 MiB are allowed; allow max_memory of {smallest >> 20}MiB"
    )
    assert diff(*pair, limits=Limits(smallest, 2)).differences == 0


def test_chunks_are_decoded_once_where_memory_allows(tmp_path):
    values = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    a = store_of(tmp_path, "a", values, (128, 1024), ZSTD, "float32")
    b = store_of(tmp_path, "b", values, (1024, 64), ZSTD, "float32")
    opened = []

    class Counted(box_stream.ChunkReader):
        def __init__(self, stored, chunk, *more, **named):
            opened.append(chunk.index)
            super().__init__(stored, chunk, *more, **named)

    with mock.patch.object(box_stream, "ChunkReader", Counted):
        assert diff(a, b).differences == 0
        assert len(opened) == 8 + 16
        opened.clear()
        assert diff(a, b, Limits(16 * MIB, 2)).differences == 0
        assert 8 + 16 < len(opened) < 8 + 16 * 40


def test_the_order_of_tasks_changes_nothing(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(600, 500)).astype(np.float32)
    a = store_of(tmp_path, "a", values, (60, 500), ZSTD, "float32")
    b = store_of(tmp_path, "b", values * np.float32(1.01), (60, 100), RAW, "float32")
    with mock.patch.object(read_boxes, "BATCH_UNITS", 1):
        found = [diff(a, b, Limits(512 * MIB, n)).tensors["w"] for n in (1, 2, 5)]
    assert found[0] == found[1] == found[2]
    assert found[0].relative == pytest.approx(0.01, rel=1e-5)
