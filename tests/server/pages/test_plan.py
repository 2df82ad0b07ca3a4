"""Pictures of plans: shards on devices, drawn and in words, and the text if no picture can be made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.pages import plan_pictures as plan_wording
from reshard_server.pages.plan_pictures import MOST_DEVICES, drawn_side, origin_text, percent_text

import reshard
from reshard.layout.device_mesh import DeviceMesh
from tests.server.pages.browser import Browser
from tests.server.served import Served


def tensor(devices: int) -> dict[str, Any]:
    """Rows over the devices become columns over them."""
    mesh = {"axes": ["x"], "shape": [devices]}
    pairs = [(t, s, 1 / devices) for t in range(devices) for s in range(devices)]
    return {
        "source_mesh": mesh, "source_axes": ["x", None], "source_parts": [devices, 1], "target_mesh": mesh,
        "target_axes": [None, "x"], "target_parts": [1, devices], "partition": None, "shares": pairs,
    }  # fmt: skip


def test_a_box_is_filled_by_where_its_bytes_lay() -> None:
    found = drawn_side(tensor(2), "target").devices[1]
    assert (found.number, found.shard, found.place) == (1, 1, "x=1")
    assert found.origin == "50 % from shard 0, 50 % from shard 1"
    assert [(p.colour, p.label) for p in found.pieces] == [("c0", "0"), ("c1", "1")]
    assert found.pieces[0].x == found.x
    assert sum(p.width for p in found.pieces) == found.width
    source = drawn_side(tensor(2), "source").devices[1]
    assert (source.origin, [p.label for p in source.pieces]) == ("shard 1", ["1"])


def test_a_large_mesh_is_cut() -> None:
    found = drawn_side({**tensor(3), "target_mesh": {"axes": ["x"], "shape": [4096]}}, "target")
    assert (len(found.devices), found.total) == (MOST_DEVICES, 4096)
    assert found.width < 700
    small = drawn_side(tensor(64), "target")
    assert len(small.devices) == small.total == 64
    assert all(p.label == "" for d in small.devices for p in d.pieces)
    assert small.devices[0].origin.endswith("from shard 15 and 48 more")


def test_without_a_mesh_there_is_a_box_for_each_shard() -> None:
    split = {**tensor(2), "partition": {"strategy": "fixed_shards", "fixed_shards": 6, "axis": 0}}
    found = drawn_side({**split, "target_parts": [6, 1], "shares": None}, "target")
    assert (found.is_mesh, found.total) == (False, 6)
    assert found.devices[5].origin == "unknown"
    whole = drawn_side({**tensor(2), "source_axes": None, "source_parts": [1, 1]}, "source")
    assert (whole.is_mesh, whole.total) == (False, 1)


def test_shares_in_words() -> None:
    assert [percent_text(s) for s in (1, 0.5, 1 / 3, 0.125, 0.001)] == [
        "100 %", "50 %", "33 %", "12 %", "0.1 %"
    ]  # fmt: skip
    assert origin_text([]) == "unknown"


@pytest.mark.parametrize(
    ("resplit", "of", "text"),
    [
        (0, 5, "Every tensor keeps the shards that it has in the source."),
        (1, 1, "The only tensor (1.00 KiB) is split differently."),
        (2, 2, "All 2 tensors (1.00 KiB) are split differently."),
        (1, 2, "1 of 2 tensors (1.00 KiB of 2.00 KiB) is split differently; the others keep their shards."),
        (2, 1200, "2 of 1,200 tensors (1.00 KiB of 2.00 KiB) are split differently; the others keep their shards."),
    ],
)  # fmt: skip
def test_what_changes_in_words(resplit: int, of: int, text: str) -> None:
    counts = {"tensors": resplit, "nbytes": 1024, "of_nbytes": 2048}
    assert plan_wording.resplit_text({"resplit": counts, "totals": {"tensors": of}}) == text


@pytest.mark.parametrize(
    ("reads_from", "shards", "is_resplit", "text"),
    [
        ([1, 1], [8, 1], False, "Each of 8 devices reads one of the source's 8 shards."),
        ([1, 1], [4, 1], True, "Each of 8 devices reads a part of one of the source's 4 shards."),
        ([1, 1], [1, 1], True, "Each of 8 devices reads a part of the source's only shard."),
        ([1, 1], [1, 1], False, "Each of 8 devices reads the source's only shard."),
        ([2, 2], [4, 2], True, "Each of 8 devices reads from 2 of the source's 8 shards."),
        ([1, 3], [4, 2], True, "Each of 8 devices reads from 1 to 3 of the source's 8 shards."),
        ([8, 8], [8, 1], True, "Each of 8 devices reads from all 8 shards of the source."),
    ],
)
def test_where_devices_read_from_in_words(
    reads_from: list[int], shards: list[int], is_resplit: bool, text: str
) -> None:
    tensor = {"reads_from": reads_from, "source_parts": shards, "is_resplit": is_resplit}
    assert plan_wording.reads_text(tensor, 8, is_mesh=True) == text
    alone = plan_wording.reads_text({**tensor, "reads_from": [2, 2]}, 1, is_mesh=False)
    assert alone.startswith("The only shard reads from")


LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}],
}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint whose kernel is split by rows over a mesh of 4 devices."""
    layout = reshard.LayoutMap(DeviceMesh((2, 2), ("data", "model")))
    layout["kernel"] = (("data", "model"), None)
    path = tmp_path / "data" / "sharded"
    kernel = np.arange(64, dtype=np.float32).reshape(8, 8)
    reshard.save(path, {"kernel": kernel, "bias": np.zeros(3, np.float32)}, layout=layout)
    return path


@pytest.mark.usefixtures("sharded")
def test_a_conversions_plan(served: Served, ann: Browser) -> None:
    new = served.create(source="data/sharded", target="data/out", layout=LAYOUT)
    page = ann.go(f"/conversions/{new}/plan?target=0")
    assert ann.status == 200, page.text
    for words in (
        "Plan: data/sharded → data/out", "Both meshes, for kernel", "mesh data=2, model=2, axes [[data, model], null]",
        "mesh x=4, axes [null, x]", "device 2 (x=2): 25 % from shard 0, 25 % from shard 1",
        "2 x=2 shard 2 25 % from shard 0, 25 % from shard 1, 25 % from shard 2, 25 % from shard 3",
        "1 data=0, model=1 shard 1", "Source mesh", "Each of the 4 boxes shows from which shards of the source its bytes come.",
    ):  # fmt: skip
        assert words in page.text, words
    assert ann.answer.text.count("<svg") == ann.answer.text.count('role="img"') == 2
    (bias,) = [x for x in page.links if x.endswith("tensor=bias")]
    page = ann.go(bias)
    assert "Both meshes, for bias" in page.text
    assert "device 3 (x=3): 100 % from shard 0" in page.text
    assert ann.go(f"/conversions/{new}/plan?target=1").headings[0][1] == "There is nothing here"


def test_it_has_the_layout_of_when_it_was_accepted(
    served: Served, ann: Browser, sharded: Path
) -> None:
    served.ask("PUT", "/v1/layouts/l", json={"layout": LAYOUT})
    new = served.create(source="data/sharded", target="data/out", layout="l")
    other = {**LAYOUT, "mesh": {"axes": ["x"], "shape": [2]}}
    assert served.ask("PUT", "/v1/layouts/l", json={"layout": other}).status_code == 201
    shutil.copytree(sharded, sharded.parent / "out")
    assert "mesh x=4, axes [null, x]" in ann.go(f"/conversions/{new}/plan").text
    served.ask("DELETE", "/v1/layouts/l")
    assert "mesh x=4, axes [null, x]" in ann.go(f"/conversions/{new}/plan").text


def test_a_source_that_is_gone(served: Served, ann: Browser, sharded: Path) -> None:
    new = served.create(source="data/sharded", target="data/out", layout=LAYOUT)
    shutil.rmtree(sharded)
    page = ann.go(f"/conversions/{new}/plan")
    assert ann.status == 404
    assert "The plan cannot be shown" in page.text
    assert "the source is gone, or your token may no longer use its root" in page.text


def test_a_source_that_is_no_checkpoint(served: Served, ann: Browser, tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir()
    page = ann.go(f"/conversions/{served.create()}/plan")
    assert ann.status == 422
    assert "The plan cannot be shown" in page.text and "the source is gone" not in page.text


def test_too_many_shares_are_not_told(served: Served, ann: Browser, tmp_path: Path) -> None:
    layout = reshard.LayoutMap(DeviceMesh((512,), ("x",)))
    layout["kernel"] = ("x", None)
    kernel = np.zeros((512, 512), np.float32)
    reshard.save(tmp_path / "data" / "wide", {"kernel": kernel}, layout=layout)
    turned = {
        "mesh": {"axes": ["x"], "shape": [512]},
        "rules": [{"match": ".", "axes": [None, "x"]}],
    }
    new = served.create(source="data/wide", target="data/out", layout=turned)
    page = ann.go(f"/conversions/{new}/plan")
    assert ann.status == 200, page.text
    assert "There are too many pairs of shards to show where the bytes come from" in page.text
    assert f"The first {MOST_DEVICES} of 512 devices are shown" in page.text
    assert len(ann.answer.content) < 200_000


def test_the_tensor_that_moves_most_comes_first(
    served: Served, ann: Browser, tmp_path: Path
) -> None:
    """A larger one keeps its shards, and a smaller one moves less."""
    layout = reshard.LayoutMap(DeviceMesh((4,), ("x",)))
    layout["."] = ("x", None)
    sizes = {"largest": (64, 64), "moves": (32, 32), "smaller": (16, 16)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in sizes.items()}
    reshard.save(tmp_path / "data" / "three", arrays, layout=layout)
    rules = [{"match": "largest", "axes": ["x", None]}, {"match": ".", "axes": [None, "x"]}]
    turned = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": rules}
    new = served.create(source="data/three", target="data/out", layout=turned)
    page = ann.go(f"/conversions/{new}/plan")
    for words in (
        "2 of 3 tensors (5.00 KiB of 21.0 KiB) are split differently; the others keep their shards. "
        "Each of 4 devices reads from all 4 shards of the source. (the tensor that moves most, moves )",
        "Both meshes, for moves",
    ):  # fmt: skip
        assert words in page.text, page.text
    page = ann.go(f"/conversions/{new}/plan?tensor=largest")
    assert "Each of 4 devices reads one of the source's 4 shards. ( largest )" in page.text
    kept = {**turned, "rules": [{"match": ".", "axes": ["x", None]}]}
    new = served.create(source="data/three", target="data/out", layout=kept)
    page = ann.go(f"/conversions/{new}/plan")
    assert "Every tensor keeps the shards that it has in the source." in page.text
    assert "(the largest tensor, largest )" in page.text
