"""Streams of slices, compared with numpy: every form of checkpoint, any box, dtype, range and budget."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.engine.decode import box_plan
from reshard.errors import (
    CorruptError,
    LayoutError,
    MemoryBudgetError,
    PlanError,
    SourceChangedError,
    StorageError,
    TreeError,
)
from reshard.geometry.grid import Box
from tests.orbax_trees import (
    dtype_tree,
    expected_arrays,
    mesh,
    put,
    save_modes,
    save_pytree,
    small_tree,
)
from tests.restoring.recorded import record

MIB = 1 << 20
LINE = mesh((8,), ("x",))


def octets(array):
    return np.ascontiguousarray(array).tobytes()


@st.composite
def boxes(draw, shape):
    pairs = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
    return Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """``small_tree`` in every form in which stock Orbax saves it, opened."""
    root = tmp_path_factory.mktemp("forms")
    return [reshard.open_checkpoint(save(root / name, small_tree())) for name, save in save_modes()]


ARRAYS = expected_arrays(small_tree())


@pytest.mark.parametrize("number", range(len(save_modes())), ids=[i for i, _ in save_modes()])
def test_every_tensor_of_every_form_is_streamed_whole(forms, number):
    opened = forms[number]
    assert opened.tensors.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        stream = opened.stream(name)
        assert (stream.shape, stream.dtype) == (array.shape, str(array.dtype))
        found = b"".join(stream)
        assert (found, len(found)) == (octets(array), stream.nbytes), name


@given(data=st.data())
def test_any_box_of_any_form_with_any_bands_is_what_numpy_cuts_out(forms, data):
    opened = data.draw(st.sampled_from(forms))
    name = data.draw(st.sampled_from(sorted(ARRAYS)))
    array = ARRAYS[name]
    box = data.draw(boxes(array.shape))
    with small_buffers(data):
        stream = opened.stream(name, box)
        whole = octets(array[box.slices])
        assert b"".join(stream) == whole
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(whole) + 2)] * 2)))
        assert b"".join(stream.read(start, stop)) == whole[start:stop]


@contextmanager
def small_buffers(data):
    """Bands and buffers of a few bytes, and chunks that may not stay open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_plan, "BAND_BYTES", data.draw(st.sampled_from([1, 8, 60, 500, 5000])))
        patch.setattr(box_plan, "MOST_OPEN", data.draw(st.sampled_from([0, 1, 2, 256])))
        yield


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """One tensor of three dimensions, cut along all of them, in several codecs."""
    root = tmp_path_factory.mktemp("cut")
    array = np.random.default_rng(0).normal(size=(8, 24, 40)).astype(np.float32)
    tree = {"w": put(array, "a", "b", "c", on=mesh((2, 2, 2), ("a", "b", "c")))}
    forms = {
        "zstd": {},
        "raw": {"use_ocdbt": False, "use_compression": False},
        "zarr3": {"use_zarr3": True, "chunk_byte_size": 500},
    }
    paths = [save_pytree(root / name, tree, **options) for name, options in forms.items()]
    return array, [reshard.open_checkpoint(path) for path in paths]


@given(data=st.data())
def test_three_dimensions_cut_along_all_of_them(cut, data):
    array, opened = cut
    box = data.draw(boxes(array.shape))
    dtype = data.draw(st.sampled_from([None, "float64", "bfloat16"]))
    with small_buffers(data):
        stream = data.draw(st.sampled_from(opened)).stream("w", box, dtype)
        expected = array[box.slices].astype(
            np.dtype(getattr(ml_dtypes, dtype or "", dtype or "f4"))
        )
        whole = octets(expected)
        assert b"".join(stream) == whole
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
        assert b"".join(stream.read(start, stop)) == whole[start:stop]


def test_every_dtype_keeps_its_bits_and_narrow_ones_take_a_byte(tmp_path):
    tree = dtype_tree()
    opened = reshard.open_checkpoint(save_pytree(tmp_path / "c", tree, use_zarr3=True))
    for name, array in tree.items():
        stream = opened.stream(name, "1:4, 2:")
        assert b"".join(stream) == octets(array[1:4, 2:]), name
        assert stream.nbytes == 18 * array.dtype.itemsize


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float64", "float16"])
def test_casts_give_what_convert_writes(small, tmp_path, dtype):
    name = "params/layers/0"
    reshard.convert(small, tmp_path / "t", cast=[(f"^{name}$", dtype)])
    converted = b"".join(reshard.open_checkpoint(tmp_path / "t").stream(name))
    assert b"".join(reshard.open_checkpoint(small).stream(name, None, dtype)) == converted


def test_what_was_not_stored_is_filled_in(tmp_path):
    path = save_pytree(tmp_path / "c", {"z": np.zeros((64, 4), np.float32)}, use_ocdbt=False)
    metadata = (path / "_METADATA").read_text()
    (path / "_METADATA").write_text(
        metadata.replace('equal_to_fill_value": true', 'equal_to_fill_value": false')
    )
    for chunk in (path / "z").glob("[0-9]*"):
        chunk.unlink()
    assert b"".join(reshard.open_checkpoint(path).stream("z", "3:9")) == bytes(6 * 4 * 4)


def test_the_state_depends_on_the_request_and_on_the_files(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": put(np.zeros((16, 4)), "x", on=LINE)}, use_ocdbt=False)
    opened = reshard.open_checkpoint(path)
    states = [
        opened.stream("w", box, dtype).state
        for box in (None, "0:2", "2:4")
        for dtype in (None, "bfloat16")
    ]
    assert len(set(states)) == 6
    assert opened.stream("w", ":,0:4").state == states[0]
    other = next((path / "w").glob("7*"))
    other.write_bytes(other.read_bytes())
    assert opened.stream("w").state != states[0]
    assert opened.stream("w", "0:2").state == states[2]


def test_a_file_that_changes_under_a_stream_is_noticed(tmp_path):
    path = save_pytree(
        tmp_path / "c",
        {"w": put(np.zeros((16, 4)), "x", on=LINE)},
        use_ocdbt=False,
        use_compression=False,
    )
    stream = reshard.open_checkpoint(path).stream("w")
    other = next((path / "w").glob("7*"))
    other.write_bytes(other.read_bytes())
    with pytest.raises(SourceChangedError) as error:
        list(stream)
    assert str(error.value) == (
        "the files of 'w' were changed while it was read; ask for it again, and let nothing write into a checkpoint "
        "while it is read"
    )


def test_recorded_digests_are_known_up_front_and_compared(tmp_path):
    array = np.arange(4096, dtype=np.float32).reshape(64, 64)
    path = save_pytree(tmp_path / "c", {"w": array}, use_ocdbt=False, use_compression=False)
    record(path, {"w": array})
    opened = reshard.open_checkpoint(path)
    stream = opened.stream("w")
    assert re.fullmatch("[0-9a-f]{16}", stream.digest or "")
    assert b"".join(stream) == octets(array)
    assert opened.stream("w", "1:2").digest is None
    assert opened.stream("w", None, "bfloat16").digest is None
    (chunk,) = (path / "w").glob("[0-9]*")
    flipped = bytearray(chunk.read_bytes())
    flipped[1000] ^= 1
    chunk.write_bytes(flipped)
    found = []
    with pytest.raises(CorruptError, match=f"but {stream.digest} was recorded"):
        found.extend(opened.stream("w"))
    assert len(b"".join(found)) < array.nbytes  # never all of it


def test_damage_ends_the_stream_before_its_last_bytes(tmp_path):
    array = np.random.default_rng(1).normal(size=(2048, 1024)).astype(np.float32)
    path = save_pytree(tmp_path / "c", {"w": put(array, "x", on=LINE)}, use_ocdbt=False)
    last = next((path / "w").glob("7*"))
    last.write_bytes(last.read_bytes()[:-9])
    found = []
    with pytest.raises(CorruptError, match=re.escape("tensor 'w', chunk [7, 0]")):
        for piece in reshard.open_checkpoint(path).stream("w"):
            found.append(piece)  # noqa: PERF402  what came before an error counts
    assert 0 < len(b"".join(found)) < array.nbytes


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_checksum_of_a_raw_chunk_is_compared_where_all_of_it_passes(tmp_path, dtype):
    array = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    save_pytree(tmp_path / "saved", {"w": array})
    reshard.convert(tmp_path / "saved", tmp_path / "c", compression="none")
    chunk = max((tmp_path / "c").rglob("*"), key=lambda path: path.stat().st_size)
    flipped = bytearray(chunk.read_bytes())
    flipped[1000] ^= 1
    chunk.write_bytes(flipped)
    with pytest.raises(CorruptError, match="CRC32C is recorded as"):
        list(reshard.open_checkpoint(tmp_path / "c").stream("w", None, dtype))


REFUSED = [
    (("nope",), {}, TreeError, "has no tensor 'nope'; it has "),
    (("numpy", "0:9"), {}, LayoutError,
     "the slice [0:9, 0:3] reaches outside of 'numpy', which has the shape [5, 3]; choose a slice inside it"),
    (("numpy", "3:2"), {}, LayoutError, "the slice [3:2, 0:3] reaches outside of 'numpy'"),
    (("numpy", "1"), {}, LayoutError,
     "the slice of 'numpy' has '1' where start:stop was expected, as in '0:128,:'; one row is 5:6, and there are no "
     "steps and no negative numbers"),
    (("numpy", "::2"), {}, LayoutError, "has '::2' where start:stop was expected"),
    (("numpy", ":,:,:"), {}, LayoutError,
     "the slice ':,:,:' has 3 dimensions, but 'numpy' has the shape [5, 3]; give at most one start:stop for each"),
    (("numpy", 7), {}, LayoutError, "the slice of 'numpy' is 7; expected text such as '0:128,:', or a Box"),
    (("numpy", Box((0,), (1,))), {}, LayoutError, "the slice [0:1] reaches outside of 'numpy'"),
    (("numpy", "", "float77"), {}, PlanError, "no such dtype; expected one of: bool, "),
    (("key", "", "int32"), {}, PlanError, "which is a PRNG key: its bits have no numeric meaning"),
    (("numpy",), {"max_memory": "1KiB"}, MemoryBudgetError, "to stream 'numpy' takes "),
]  # fmt: skip


@pytest.mark.parametrize(("args", "more", "kind", "text"), REFUSED)
def test_refusals(small, args, more, kind, text):
    with pytest.raises(kind) as error:
        reshard.open_checkpoint(small).stream(*args, **more)
    assert text in str(error.value)


def test_the_budget_that_a_refusal_names_works(small):
    opened = reshard.open_checkpoint(small)
    with pytest.raises(MemoryBudgetError) as error:
        opened.stream("params/dense/kernel", max_memory=1)
    enough = error.value.smallest_bytes
    assert b"".join(opened.stream("params/dense/kernel", max_memory=enough)) == octets(
        ARRAYS["params/dense/kernel"]
    )


def test_a_checkpoint_that_is_gone_is_said_to_be(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": np.zeros(4)})
    opened = reshard.open_checkpoint(path)
    path.rename(tmp_path / "d")
    with pytest.raises(StorageError, match="is not there any more"):
        opened.stream("w")


def test_scalars_and_empty_tensors(tmp_path):
    tree = {"s": np.float32(2.5), "e": np.zeros((4, 1), np.int32)}
    opened = reshard.open_checkpoint(save_pytree(tmp_path / "c", tree))
    assert b"".join(opened.stream("s")) == octets(tree["s"])
    assert b"".join(opened.stream("e", "2:2")) == b""
    assert math.prod(opened.stream("e", "2:2").shape) == 0
