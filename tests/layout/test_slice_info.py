import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.grid import Box
from reshard.layout.tensor_spec import SaveSliceInfo


@st.composite
def infos(draw):
    shape = tuple(draw(st.lists(st.integers(0, 50), max_size=4)))
    start = tuple(draw(st.integers(0, n)) for n in shape)
    length = tuple(draw(st.integers(0, n - a)) for n, a in zip(shape, start, strict=True))
    return SaveSliceInfo("w", shape, start, length)


def test_spec_is_tensorflows():
    info = SaveSliceInfo("w", (4, 3, 5), (0, 1, 3), (4, 1, 2))
    assert info.spec == "4 3 5 0,4:1,1:3,2"
    assert SaveSliceInfo.from_spec("4 3 5 0,4:1,1:3,2", "w") == info
    assert info.box == Box((0, 1, 3), (4, 2, 5))


def test_a_dash_is_a_whole_dimension():
    assert SaveSliceInfo.from_spec("4 3 -:1,1", "w") == SaveSliceInfo("w", (4, 3), (0, 1), (4, 1))


def test_a_scalar_has_a_spec():
    info = SaveSliceInfo("step", (), (), ())
    assert info.spec == " "
    assert SaveSliceInfo.from_spec(info.spec, "step") == info


@given(infos())
def test_spec_round_trips(info):
    assert SaveSliceInfo.from_spec(info.spec, "w") == info
    assert SaveSliceInfo.from_box("w", info.full_shape, info.box) == info


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("4 3 0,4", "'4 3 0,4' names 2 dimensions but 1 slices"),
        ("4 x 0,4:0,1", "has 'x' where a number was expected"),
        ("4 0;4", "has '0;4' where offset,length was expected"),
        ("4 -1,2", "has '-1' where a number was expected"),
        ("4 1,4", "dimension 0 has 4 elements, but the slice is 1:5"),
        ("9" * 30 + " 0,1", "where a number was expected"),
        ("", "a slice spec is a shape, a space and slices"),
        (None, "a slice spec is a shape, a space and slices"),
    ],
)
def test_what_is_no_spec_is_refused(spec, words):
    with pytest.raises(LayoutError) as refusal:
        SaveSliceInfo.from_spec(spec, "w")
    assert words in str(refusal.value)


def test_any_sequence_of_whole_numbers():
    info = SaveSliceInfo("w", [4, 3], np.array([0, 1]), [4, np.int64(1)])
    assert info == SaveSliceInfo("w", (4, 3), (0, 1), (4, 1))
    assert hash(info) == hash(SaveSliceInfo.from_spec(info.spec, "w"))
    for shape in (None, (4.0, 3), ("a", "b"), 4):
        with pytest.raises(LayoutError, match="full_shape of a slice of 'w' must be whole numbers"):
            SaveSliceInfo("w", shape, (0, 0), (1, 1))


def test_ranks_must_agree():
    with pytest.raises(
        LayoutError, match="as many offsets and lengths as the tensor has dimensions"
    ):
        SaveSliceInfo("w", (4, 3), (0,), (4,))
