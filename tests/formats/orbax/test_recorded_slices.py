"""Digests and layouts from ``slices.json``, whose reader is replaced here by a plain record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest

from reshard.errors import CorruptError
from reshard.formats.orbax.reader import open_orbax
from reshard.layout.mesh import DeviceMesh, TensorLayout
from tests.formats.orbax.by_hand import write_item, zarr2

LAYOUT = TensorLayout((None, "m"), DeviceMesh((2,), ("m",)))


@dataclass
class Entry:
    shape: tuple[int, ...]
    dtype: str = "int8"
    layout: TensorLayout | None = None
    digest: str | None = None


@dataclass
class File:
    tensors: dict[str, Entry]


@pytest.fixture
def item(tmp_path):
    array = np.zeros((3, 4), np.int8)
    path = write_item(tmp_path / "c", {"x": (array, zarr2((3, 4))), "y": (array, zarr2((3, 4)))})
    (path / "slices.json").write_text("{}")
    return path


def recorded(monkeypatch, tensors):
    module = ModuleType("reshard.formats.slices")
    module.read_slices = lambda directory: File(tensors) if directory.name == "c" else None
    monkeypatch.setitem(sys.modules, "reshard.formats.slices", module)


def test_digests_and_layouts_are_taken_over(item, monkeypatch):
    recorded(monkeypatch, {"x": Entry((3, 4), layout=LAYOUT, digest="0123456789abcdef")})
    tensors = open_orbax(str(item)).tensors
    assert tensors["x"].digest == "0123456789abcdef"
    assert tensors["x"].spec.layout == LAYOUT
    assert tensors["y"].digest is None


def test_a_record_of_another_tensor_is_refused(item, monkeypatch):
    recorded(monkeypatch, {"x": Entry((4, 4))})
    with pytest.raises(CorruptError) as caught:
        open_orbax(str(item))
    assert (
        "slices.json records 'x' as int8 of shape [4, 4], but stored is int8 of shape [3, 4]; remove"
        in str(caught.value)
    )


def test_no_record_is_asked_for_where_there_is_no_file(item):
    (item / "slices.json").unlink()
    assert open_orbax(str(item)).tensors["x"].digest is None
