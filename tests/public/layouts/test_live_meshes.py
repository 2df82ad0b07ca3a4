"""A mesh of live devices converts like its record: its axes, and device ids where the order matters."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import pytest

import reshard
from reshard.formats.orbax.write_metadata import sharding_value
from reshard.formats.slices.slice_file import SliceEntry, SliceFile, render_slices
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import SameAxes, layout_of, split
from tests.orbax_trees import save_standard, small_tree

LIVE = DeviceMesh((8,), ("model",), jax.devices())
TURNED = DeviceMesh((8,), ("model",), jax.devices()[::-1])
WITH_IDS = DeviceMesh((8,), ("model",), device_ids=range(7, -1, -1))
FILES = ("slices.json", "_sharding", "_METADATA")


def layouts_over(mesh: DeviceMesh) -> reshard.LayoutMap:
    layouts = reshard.LayoutMap(mesh)
    layouts["kernel"] = (None, "model")
    return layouts


def recorded(path: Path) -> dict[str, bytes]:
    return {found.name: found.read_bytes() for found in path.rglob("*") if found.name in FILES}


@pytest.mark.parametrize(("live", "abstract"), [(LIVE, LIVE.abstract), (TURNED, WITH_IDS)])
def test_a_live_layout_map_records_what_its_abstract_one_does(
    tmp_path: Path, live: DeviceMesh, abstract: DeviceMesh
) -> None:
    source = save_standard(tmp_path / "source", small_tree())
    found = []
    for name, mesh in (("live", live), ("abstract", abstract)):
        layouts = layouts_over(mesh)
        planned = reshard.plan(source, tmp_path / name, layout=layouts)
        assert pickle.loads(pickle.dumps(planned)) is not None
        reshard.convert(source, tmp_path / name, layout=layouts)
        found.append(recorded(tmp_path / name))
    assert set(found[0]) == set(FILES)
    assert found[0] == found[1]


@pytest.mark.parametrize("live", [LIVE, TURNED])
def test_neither_file_holds_devices(live: DeviceMesh) -> None:
    layout = TensorLayout((None, "model"), live)
    assert sharding_value(layout, 2) == sharding_value(layout.recorded, 2)
    assert ("device_mesh" in sharding_value(layout, 2)) == (live is TURNED)

    def rendered(*layouts: TensorLayout) -> bytes:
        entries = [
            SliceEntry((str(i),), "int8", (8, 8), one, parts=(1, 8))
            for i, one in enumerate(layouts)
        ]
        return render_slices(SliceFile({e.name: e for e in entries}, {}))

    assert rendered(layout, layout.recorded) == rendered(layout.recorded, layout.recorded)


@pytest.mark.parametrize(("live", "abstract"), [(LIVE, LIVE.abstract), (TURNED, WITH_IDS)])
def test_what_the_engine_plans_with_is_abstract(live: DeviceMesh, abstract: DeviceMesh) -> None:
    def tensor(layout: TensorLayout | None = None) -> Any:
        return TensorSpec("kernel", (8, 16), "int8", Grid.whole((8, 16)), layout=layout)

    layouts = layout_of(layouts_over(live), None)
    assert split(tensor(), tensor(), layouts).layout == TensorLayout((None, "model"), abstract)
    assert split(tensor(), tensor(), layout_of(reshard.LayoutMap(live), None)).layout == (
        TensorLayout((None, None), abstract)
    )
    assert layout_of(None, live) == SameAxes(abstract)
