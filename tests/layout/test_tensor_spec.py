from __future__ import annotations

from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec


def spec(layout: TensorLayout | None = None, chunk: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec("w", (10, 4), "bfloat16", Grid.regular((10, 4), (4, 4)), chunk, layout)


def test_bytes() -> None:
    assert (spec().itemsize, spec().nbytes) == (2, 80)


def test_slices_are_the_layouts_and_not_the_chunks() -> None:
    assert spec().slices == Grid.whole((10, 4))
    assert spec(TensorLayout(("x",))).slices == Grid.whole((10, 4))
    mesh = DeviceMesh((5,), ("x",))
    assert spec(TensorLayout(("x",), mesh)).slices == Grid.regular((10, 4), (2, 4))


def test_stored_shape_counts_padding() -> None:
    assert spec().stored_shape((2, 0)) == (2, 4)
    assert spec(chunk=(4, 4)).stored_shape((2, 0)) == (4, 4)
