"""Weighted sums beside their definition, one element at a time; the mistakes that they notice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.checksums import weighted_sums
from reshard.checksums.weighted_sums import (
    MODULUS,
    Along,
    weighted_sum,
    weighted_sum_along,
    weights_of,
)
from reshard.geometry.grid import Box

ITEMSIZES = (1, 2, 4, 8, 16)


def random_elements(shape: tuple[int, ...], itemsize: int) -> np.ndarray[Any, Any]:
    octets = np.random.default_rng(7).integers(0, 256, (*shape, itemsize), np.uint8)
    return octets.view("c16" if itemsize == 16 else f"u{itemsize}")[..., 0]


def by_definition(elements: np.ndarray[Any, Any], box: Box) -> int:
    """The sum over all elements and words of word, weight of the word, and weights of the indices."""
    total = 0
    for index in np.ndindex(*elements.shape):
        octets = elements[index].tobytes()
        place = [i + start for i, start in zip(index, box.start, strict=True)]
        weights = [int(weights_of(dim, i, i + 1)[0]) for dim, i in enumerate(place)]
        for number in range(math.ceil(len(octets) / 4)):
            word = int.from_bytes(octets[4 * number : 4 * number + 4], "little")
            own = weighted_sums._scalar(weighted_sums._WORDS, number)
            total += word * own * math.prod(weights)
    return total % MODULUS


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("start", [(0, 0, 0), (5, 3, 65_534)], ids=["at 0", "in a long dimension"])
def test_every_element_counts_by_its_place(itemsize: int, start: tuple[int, ...]) -> None:
    elements = random_elements((3, 5, 4), itemsize)
    box = Box.full(elements.shape).shift(start)
    expected = by_definition(elements, box)
    for order in "C", "F":
        assert weighted_sum(np.asarray(elements, order=order), box) == expected
    wide = np.zeros((3, 9, 11), elements.dtype)
    wide[:, 2:7, 1:9:2] = elements
    assert weighted_sum(wide[:, 2:7, 1:9:2], box) == expected


def test_a_scalar_and_an_empty_box() -> None:
    assert weighted_sum(random_elements((), 4), Box((), ())) == by_definition(
        random_elements((), 4), Box((), ())
    )
    assert weighted_sum(random_elements((3, 0), 4), Box((0, 0), (3, 0))) == 0


@given(st.permutations(range(4)), st.integers(0, 3), st.sampled_from(ITEMSIZES))
def test_boxes_add_up_in_any_order_of_axes(order: list[int], dim: int, itemsize: int) -> None:
    """As a source does: it has the axes of the target in another order, and reads it in parts."""
    elements = random_elements((6, 40, 7, 30), itemsize)
    turned = np.ascontiguousarray(elements.transpose(order))
    along = [
        Along((order.index(d),), weights_of(d, 10, 10 + n)) for d, n in enumerate(elements.shape)
    ]
    box = Box.full(elements.shape).shift((10,) * 4)
    whole = weighted_sum_along(turned, along)
    assert whole == weighted_sum(elements, box)
    cut = elements.shape[dim] // 3
    first, second = np.split(elements, [cut], axis=dim)
    ends = [(*box.stop[:dim], 10 + cut, *box.stop[dim + 1 :])]
    starts = [(*box.start[:dim], 10 + cut, *box.start[dim + 1 :])]
    parts = weighted_sum(first, Box(box.start, ends[0])) + weighted_sum(
        second, Box(starts[0], box.stop)
    )
    assert parts % MODULUS == whole


@pytest.mark.parametrize("shape", [(200_000,), (3, 70_000), (70_000, 3), (33, 2, 2500), (2, 2, 2)])
def test_long_passes_are_cut(shape: tuple[int, ...]) -> None:
    elements = random_elements(shape, 2)
    weights = [weights_of(d, 0, n) for d, n in enumerate(shape)]
    outer = elements.astype(np.uint64)
    for dim, along in enumerate(weights):
        outer = outer * along.reshape(-1, *(1,) * (len(shape) - dim - 1))
    of_word = weighted_sums._scalar(weighted_sums._WORDS, 0)
    expected = int(outer.sum(dtype=np.uint64)) * of_word % MODULUS
    assert weighted_sum(elements, Box.full(shape)) == expected


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_one_bit_and_a_swap_are_noticed(itemsize: int) -> None:
    elements = random_elements((16, 9), itemsize)
    box = Box.full(elements.shape)
    right = weighted_sum(elements, box)
    for bit in range(8 * itemsize):
        flipped = elements.copy()
        flipped.reshape(-1)[bit : bit + 1].view(np.uint8)[bit // 8] ^= 1 << bit % 8
        assert weighted_sum(flipped, box) != right
    swapped = elements.copy()
    swapped[[2, 5]] = swapped[[5, 2]]
    assert weighted_sum(swapped, box) != right
    assert weighted_sum(elements, box.shift((1, 0))) != right


def test_weights_are_odd_and_differ() -> None:
    """Neighbours, dimensions and the tables of a long dimension share none."""
    kinds = [weights_of(0, 0, 140_000), weights_of(1, 0, 140_000), weights_of(2, 65_000, 66_000)]
    every = np.concatenate(kinds)
    assert (every & np.uint64(1)).all()
    assert len(np.unique(every)) == len(every)
