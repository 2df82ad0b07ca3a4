from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.cli.views.layout import Frame, draw, draw_mesh
from reshard.geometry.grid import Grid
from reshard.layout.axes import Axis
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.shard_picture import ShardPicture
from reshard.layout.tensor_layout import TensorLayout, device_boxes
from tests.cli.specimens import SERVED, TRAINED


def picture(
    shape: tuple[int, ...], axes: tuple[Axis, ...], mesh: DeviceMesh, frame: Frame
) -> list[str]:
    layout = TensorLayout(axes, mesh)
    return [line.plain for line in draw(ShardPicture(layout.grid(shape).parts, layout), frame)]


def test_rows_and_columns() -> None:
    assert picture((16, 8), ("data", "model"), TRAINED, Frame(17, 7)) == [
        "┌───────┬───────┐",
        "│   0   │   1   │",
        "├───────┼───────┤",
        "│   2   │   3   │",
        "├───────┼───────┤",
        "│   4   │   5   │",
        "├───────┼───────┤",
        "│   6   │   7   │",
        "└───────┴───────┘",
    ]


def test_the_same_tensor_has_the_same_height_in_columns() -> None:
    lines = picture((16, 8), (None, "model"), SERVED, Frame(33, 7))
    assert len(lines) == 9
    assert lines[4] == "│ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │"
    assert lines[1] == "│   │   │   │   │   │   │   │   │"


def test_replicas_are_listed() -> None:
    lines = picture((16, 8), ("model", None), TRAINED, Frame(20, 3))
    assert [line.strip("│ ") for line in (lines[1], lines[3])] == ["0,2,4,6", "1,3,5,7"]
    assert picture((4,), (None,), SERVED, Frame(20, 1))[1].strip("│ ") == "0…7 ×8"


def test_plain_ascii() -> None:
    lines = picture((8,), (None,), SERVED, Frame(14, 1, is_ascii=True))
    assert lines[0] == lines[2] == "+------------+"
    assert lines[1].strip("| ") == "0-7 x8"
    everything = picture((256, 256), ("data", "model"), DeviceMesh((64, 64), ("data", "model")),
                         Frame(30, 7, is_ascii=True))  # fmt: skip
    assert "".join(everything).isascii()


def test_thousands_of_devices_are_summarised() -> None:
    mesh = DeviceMesh((128, 128), ("data", "model"))
    lines = picture((4096, 4096), ("data", "model"), mesh, Frame(36, 7))
    assert len(lines) == 17
    assert max(map(len, lines)) <= 36
    assert lines[1] == "│  0   │  1   │  2   │  …   │ 127  │"
    assert lines[13] == "│  ⋮   │  ⋮   │  ⋮   │  …   │  ⋮   │"
    assert lines[15] == "│16256 │16257 │16258 │  …   │16383 │"


def test_a_million_devices_are_drawn_at_once() -> None:
    mesh = DeviceMesh((1 << 10, 1 << 10), ("data", "model"))
    lines = picture((1 << 20,), (("data", "model"),), mesh, Frame(40, 1))
    assert "1048575" in lines[1]


def test_three_split_dimensions_fold_into_rows() -> None:
    mesh = DeviceMesh((2, 2, 4), ("x", "y", "z"))
    lines = picture((4, 8, 16), ("x", "y", "z"), mesh, Frame(33, 7))
    numbers = [[int(n) for n in line.strip("│").split("│")] for line in lines[1::2]]
    assert numbers == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_uneven_parts_are_numbered() -> None:
    parts = Grid((10,), ((0, 4, 7, 10),)).parts
    assert draw(ShardPicture(parts), Frame(19, 1))[1].plain == "│  0  │  1  │  2  │"


def test_nothing_to_draw() -> None:
    empty = ShardPicture(Grid.whole((0, 4)).parts)
    assert [line.plain for line in draw(empty, Frame(20, 7))] == ["(empty)"]


def test_a_mesh_is_its_own_picture() -> None:
    assert [line.plain for line in draw_mesh(DeviceMesh((2, 2), ("a", "b")), Frame(9, 1))] == [
        "┌───┬───┐", "│ 0 │ 1 │", "├───┼───┤", "│ 2 │ 3 │", "└───┴───┘",
    ]  # fmt: skip


def test_devices_have_different_colours() -> None:
    layout = TensorLayout(("model",), SERVED)
    spans = draw(ShardPicture((8,), layout), Frame(33, 1))[1].spans
    colours = [str(span.style) for span in spans if "on" in str(span.style)]
    assert len(set(colours)) == len(colours) == 8


axes_of = st.permutations(["x", "y", "z"]).flatmap(
    lambda names: st.tuples(st.just(names), st.integers(0, 3), st.integers(0, 3)).map(
        lambda t: (tuple(t[0][: t[1]]), tuple(t[0][t[1] : t[1] + t[2]]))
    )
)


@given(st.tuples(*[st.integers(1, 3)] * 3), axes_of)
def test_holders_are_those_that_the_layout_says(
    sizes: tuple[int, int, int], axes: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    mesh = DeviceMesh(sizes, ("x", "y", "z"))
    layout = TensorLayout(axes, mesh)
    shape = (math.prod(sizes), math.prod(sizes))
    boxes = device_boxes(layout, shape)
    grid = layout.grid(shape)
    picture = ShardPicture(grid.parts, layout)
    assert picture.coordinate(mesh.size - 1) == {
        "x": sizes[0] - 1,
        "y": sizes[1] - 1,
        "z": sizes[2] - 1,
    }
    for number, index in enumerate(itertools.islice(grid.indices(), 30)):
        expected = [d for d, box in enumerate(boxes) if box == grid.box(index)]
        found = picture.holders(index)
        assert list(found.first) == expected[:4]
        assert (found.last, found.count) == (expected[-1], len(expected))
        assert {picture.shard(device) for device in expected} == {number}


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(12, 100),
    st.integers(1, 15),
)
def test_pictures_are_rectangles(parts: list[int], width: int, height: int) -> None:
    lines = draw(ShardPicture(tuple(parts)), Frame(width, height))
    assert len({line.cell_len for line in lines}) == 1
    assert len(lines) <= max(height + 2, 17) + 1


@pytest.mark.parametrize("width", [30, 38, 60])
def test_pictures_keep_to_their_frame(width: int) -> None:
    mesh = DeviceMesh((100, 100), ("data", "model"))
    assert max(map(len, picture((1000, 1000), ("data", "model"), mesh, Frame(width, 7)))) <= width
