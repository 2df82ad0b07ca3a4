"""Checkpoints, an interrupted run and a service's records that an earlier version wrote are read today."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.database import open_database
from reshard_server.settings import Settings

import reshard
from tests.checkpoint_files import files_without_times
from tests.earlier.files import LAYOUT, LIMITS, STAGED, load_records, tree, unpack
from tests.equal import assert_same
from tests.orbax_trees import expected_arrays
from tests.server.live import live

DIGESTS = {
    "params/layer_0/columns": "c838ccf66d45fe77",
    "params/layer_0/rows": "0840e9e13286532a",
    "params/layer_1/columns": "e7556d4ebb6d080f",
}
"""Of some of the tensors, as they were recorded."""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return unpack(tmp_path)


def test_slice_metadata_of_version_1_is_read(earlier: Path) -> None:
    for name in ("source", "orbax"):
        document = json.loads((earlier / name / "slices.json").read_text())
        assert (document["format"], document["version"]) == ("reshard.slices", 1)
        found = {n: document["tensors"][n]["crc64nvme"] for n in DIGESTS}
        assert found == DIGESTS
        assert reshard.verify(earlier / name).differences == 0
    tensor = reshard.inspect(earlier / "orbax").tensors["params/layer_1/columns"]
    assert tensor.spec.layout is not None
    assert tensor.spec.layout.axes == (None, "x")


@pytest.mark.parametrize("name", ["source", "orbax", "ranks"])
def test_checkpoints_of_each_format_hold_what_was_saved(name: str, earlier: Path) -> None:
    reports: list[reshard.RestoreReport] = []
    restored = reshard.restore(earlier / name, report=reports.append)
    expected = expected_arrays(without_others(tree()))
    found = expected_arrays(without_others(restored))
    assert found.keys() == expected.keys()
    for leaf, array in expected.items():
        assert_same(found[leaf], array, leaf)
    assert reports[0].verified == reports[0].tensors == len(expected)
    assert reshard.verify(earlier / "source", earlier / "orbax").differences == 0


def without_others(tree: dict[str, object]) -> dict[str, object]:
    """The tensors of a tree; safetensors have no other leaves."""
    return {name: leaf for name, leaf in tree.items() if name not in ("note", "none")}


@pytest.mark.parametrize("to", ["orbax", "safetensors"])
def test_checkpoints_of_each_format_are_converted(to: str, earlier: Path) -> None:
    for name in ("source", "orbax", "ranks"):
        target = earlier / f"{name}-{to}"
        report = reshard.convert(earlier / name, target, to=to, select=["^params|^step"], **LIMITS)
        found = {tensor.target: tensor.target_digest for tensor in report.tensors}
        assert DIGESTS.items() <= found.items()


def kept(earlier: Path) -> dict[str, bytes]:
    """What the interrupted run left, without the lock, which names the process that looks at it."""
    return {n: data for n, data in files_without_times(earlier / STAGED).items() if n != "lock"}


def test_the_interrupted_run_is_refused_and_kept(earlier: Path) -> None:
    """Its journal counts moves, and has other sums."""
    before = kept(earlier)
    with pytest.raises(
        reshard.ResumeError,
        match=r"recorded by another version of reshard: .* has version 1, expected 3; resume with that version, or start over "
        r"\(restart\)$",
    ):
        reshard.convert(earlier / "source", earlier / "interrupted", layout=LAYOUT, **LIMITS)
    assert kept(earlier) == before


def test_the_interrupted_run_can_be_started_over(earlier: Path) -> None:
    options = {"layout": LAYOUT, "restart": True, **LIMITS}
    report = reshard.convert(earlier / "source", earlier / "interrupted", **options)
    assert report.resumed_bytes == 0
    assert not (earlier / STAGED).exists()
    assert reshard.verify(earlier / "source", earlier / "interrupted").differences == 0


def test_the_records_have_what_ended_and_what_waits(tmp_path: Path) -> None:
    load_records(tmp_path / "state")
    db = open_database(Settings(state=tmp_path / "state"))
    listed = conversions.page(db, Filters(), 10).conversions
    states = {one.request.target: one.state for one in listed}
    assert states == {
        "data/succeeded": "succeeded", "data/failed": "failed", "data/first": "queued", "data/second": "queued",
    }  # fmt: skip
    (ended,) = (one.id for one in listed if one.state == "succeeded")
    succeeded = conversions.get(db, ended)
    assert succeeded is not None and succeeded.result is not None
    found = {t["target"]: t["target_digest"] for t in succeeded.result[0]["tensors"]}
    assert DIGESTS.items() <= found.items()
    db.dispose()


def test_what_waits_is_carried_out(tmp_path: Path) -> None:
    load_records(tmp_path / "state")
    reshard.save(tmp_path / "data" / "source", {"w": np.arange(64.0)})
    with live(tmp_path) as server, server.client("root") as client:
        for _ in range(600):
            listed = client.get("/v1/conversions").json()["conversions"]
            if all(one["done"] for one in listed):
                break
            threading.Event().wait(0.1)
        ended = {one["request"]["target"]: one["state"] for one in listed}
    assert ended["data/first"] == ended["data/second"] == "succeeded"
    for name in ("first", "second"):
        assert (tmp_path / "data" / name / "_METADATA").exists()
