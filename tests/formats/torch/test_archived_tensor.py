"""Tensors in archives: their dtypes, shapes and orders of axes; what is not plain numbers without gaps is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError
from reshard.formats.torch.pickle_interpreter import read_pickle
from reshard.formats.torch.saved_values import (
    TENSOR_NAMES,
    ArchivedTensor,
    archived_tensor,
    dtype_of,
)
from tests.dcp_files import rebuilt
from tests.pickled import Call, Global, Ordered, Reference, pickled


def found(call: Any) -> ArchivedTensor:
    return archived_tensor(read_pickle(pickled(call), TENSOR_NAMES, "it"), "it")


def refusal(call: Any) -> str:
    with pytest.raises(FormatError) as error:
        found(call)
    return str(error.value)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float64", "complex64", "uint16", "float8_e5m2"])  # fmt: skip
def test_dtypes(dtype: str) -> None:
    tensor = found(rebuilt(dtype, (2, 3), (3, 1)))
    itemsize = np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
    assert tensor == ArchivedTensor(dtype, (2, 3), (), "data/0", 0, 6 * itemsize)


@given(st.lists(st.integers(0, 4), max_size=5), st.randoms())
def test_an_order_of_axes_is_what_numpy_makes_of_the_strides(shape: list[int], rng: Any) -> None:
    order = list(range(len(shape)))
    rng.shuffle(order)
    stored = np.arange(int(np.prod(shape)), dtype=np.int32).reshape([shape[dim] for dim in order])
    array = stored.transpose(np.argsort(order)) if shape else stored
    stride = tuple(s // 4 for s in array.strides)
    tensor = found(rebuilt("int32", array.shape, stride))
    axes = tensor.order or tuple(range(array.ndim))
    again = stored.reshape([array.shape[dim] for dim in axes]).transpose(np.argsort(axes))
    assert (again == array).all() if shape else again == array


@pytest.mark.parametrize(
    ("shape", "stride", "order", "strides"),
    [
        ((2, 3), (4, 1), (0, 1), (4, 1)),
        ((2, 3), (0, 1), (1, 0), (0, 1)),
        ((1, 3), (2**60, 2), (0, 1), (0, 2)),
        ((3,), (0,), (0,), (0,)),
        ((2, 0), (7, 9), (), ()),
    ],
)
def test_views_with_gaps_and_elements_used_again(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    order: tuple[int, ...],
    strides: tuple[int, ...],
) -> None:
    tensor = found(rebuilt("int32", shape, stride, count=7))
    assert (tensor.order, tensor.strides) == (order, strides)


def test_the_offset_counts_elements() -> None:
    tensor = found(rebuilt("int32", (2,), (1,), offset=3, count=5))
    assert (tensor.offset, tensor.record_bytes, tensor.nbytes) == (12, 20, 8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (rebuilt("int32", (2, 3), (4, 1), count=6), "it: int32 of shape [2, 3] at byte 0 does not fit its storage of 24 bytes; restore the file from a copy"),
        (rebuilt("int32", (3, 2), (0, 2), offset=1, count=3), "it: int32 of shape [3, 2] at byte 4 does not fit its storage of 12 bytes; restore the file from a copy"),
        (rebuilt("int32", (2,), (2**60,), count=6), "it: int32 of shape [2] at byte 0 does not fit its storage of 24 bytes; restore the file from a copy"),
        (rebuilt("int32", (2, 3), (1,)), "it has the shape [2, 3] and the strides [1]"),
        (rebuilt("int32", (2, 3), (3, 1), count=5), "it: int32 of shape [2, 3] at byte 0 does not fit its storage of 20 bytes; restore the file from a copy"),
        (rebuilt("int32", (2,), (1,), offset=4, count=5), "it: int32 of shape [2] at byte 16 does not fit its storage of 20 bytes; restore the file from a copy"),
        (rebuilt("int32", (2,), (1,), offset=-1, count=5), "it: the offset should be of numbers from 0 to 2^60, but is (-1,)"),
        (rebuilt("int32", (2**40, 2**40), (2**40, 1), count=1), "it: int32 of shape [1099511627776, 1099511627776] at byte 0 does not fit its storage of 4 bytes; restore the file from a copy"),
        (rebuilt("int32", (1,) * 33, (1,) * 33), "it: the shape has 33 dimensions; at most 32 are supported"),
        (rebuilt("int32", (2,), (1,), more=({"conj": True},)), "it is stored with the mark 'conj', so that its bytes are not its values; save it after resolve_conj() and resolve_neg()"),
        (rebuilt("uint16", (2,), (1,), more=({"neg": True},)), "it is stored with the mark 'neg', so that its bytes are not its values; save it after resolve_conj() and resolve_neg()"),
        (rebuilt("int32", (2,), (1,), more=({}, {})), "it: _rebuild_tensor_v2 has 8 arguments; expected 6 or 7"),
        (Call(Global("torch._utils", "_rebuild_tensor_v2"), (None, 0, (), (), False, Ordered({}))), "it: its storage should be a Persistent, but is None"),
        (Call(Global("torch._utils", "_rebuild_tensor_v2"), (Reference((1, 2)), 0, (), (), False, Ordered({}))), "it: its storage is (1, 2); expected five parts"),
        (Call(Global("torch._utils", "_rebuild_tensor_v2"), (Reference(("storage", Global("torch.storage", "UntypedStorage"), "0", "cpu", 4)), 0, (), (), False, Ordered({}))), "it: its storage is UntypedStorage, which names no dtype"),
    ],
)  # fmt: skip
def test_what_is_no_plain_tensor_is_refused(call: Any, said: str) -> None:
    assert refusal(call) == said


def test_dtypes_that_are_not_read_are_named() -> None:
    for dtype, kind in (("qint8", "quantised"), ("complex32", "of a type that is not read")):
        with pytest.raises(FormatError) as error:
            dtype_of(f"torch.{dtype}", "it")
        assert str(error.value) == (
            f"it is torch.{dtype}, {kind}; leave it out where it is saved, or save it as plain numbers (dequantize, to)"
        )


def test_a_size_is_no_other_object() -> None:
    with pytest.raises(
        CorruptError, match=r"the shape should be a torch\.Size, but is OrderedDict"
    ):
        found(rebuilt("int32", Ordered({}), (1,), count=1))
