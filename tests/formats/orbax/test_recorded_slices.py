"""Digests and layouts that a reader takes from ``slices.json``."""

from __future__ import annotations

import numpy as np
import pytest

from reshard.errors import CorruptError
from reshard.formats.orbax.reader import open_orbax
from reshard.formats.slices.slice_file import SliceEntry, SliceFile, render_slices
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.storage.location import locate
from tests.formats.orbax.by_hand import write_item, zarr2

LAYOUT = TensorLayout((None, "m"), DeviceMesh((2,), ("m",)))


@pytest.fixture
def item(tmp_path):
    array = np.zeros((3, 4), np.int8)
    return write_item(tmp_path / "c", {"x": (array, zarr2((3, 4))), "y": (array, zarr2((3, 4)))})


def record(item, shape, **more):
    entry = SliceEntry(("x",), "int8", shape, **more)
    (item / "slices.json").write_bytes(render_slices(SliceFile({"x": entry})))


def test_digests_and_layouts_are_taken_over(item):
    record(item, (3, 4), layout=LAYOUT, parts=(1, 2), digest="0123456789abcdef")
    tensors = open_orbax(locate(item).view()).tensors
    assert tensors["x"].digest == "0123456789abcdef"
    assert tensors["x"].spec.layout == LAYOUT
    assert tensors["y"].digest is None


def test_a_record_of_another_tensor_is_refused(item):
    record(item, (4, 4), parts=(1, 1))
    with pytest.raises(CorruptError) as caught:
        open_orbax(locate(item).view())
    assert (
        "slices.json records 'x' as int8 of shape [4, 4], but the stored array is int8 of shape [3, 4]; remove"
        in str(caught.value)
    )


def test_no_record_is_needed_where_there_is_no_file(item):
    assert open_orbax(locate(item).view()).tensors["x"].digest is None
