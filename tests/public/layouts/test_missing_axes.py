"""Axes that the new mesh lacks: refused with the remedy, or replicated when asked, by command, Python and server."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from reshard.cli.app import run

KERNEL = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
LOST = "the mesh (model=8) has no axis 'data'; what it split is replicated instead"
LAYOUT = {
    "mesh": {"axes": ["data", "model"], "shape": [2, 4]},
    "rules": [
        {"match": "kernel", "axes": [["data", "model"]]},
        {"match": "bias", "axes": ["data"]},
    ],
}

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    def put(value: np.ndarray, *axes: str | None) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

    folder = tmp_path_factory.mktemp("source") / "ckpt"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(
            folder, {"kernel": put(KERNEL, "data", "model"), "bias": put(KERNEL[0], "data")}
        )
    return folder


@pytest.mark.parametrize("command", ["plan", "convert"])
def test_the_error_names_the_remedy(
    source: Path, tmp_path: Path, command: str, capsys: Capture
) -> None:
    assert run([command, str(source), str(tmp_path / "out"), "--mesh", "model=8"]) == 1
    said = capsys.readouterr().err
    assert "keeps the source's axes [data] over the mesh (model=8)" in said
    assert "or replicate the dimensions that they split (--missing-axes replicate)" in said
    assert not (tmp_path / "out").exists()


def test_what_they_split_is_replicated(source: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    words = [str(source), str(out), "--mesh", "model=8", "--missing-axes", "replicate", "--json"]
    assert run(["plan", *words]) == 0
    planned = json.loads(capsys.readouterr().out)
    axes = {t["target"]: t["target_axes"] for t in planned["tensors"]}
    assert axes == {"kernel": [None, "model"], "bias": [None]}
    assert LOST in planned["warnings"]

    assert run(["convert", *words]) == 0
    assert LOST in json.loads(capsys.readouterr().out)["warnings"]
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(out)
    np.testing.assert_array_equal(restored["kernel"], KERNEL)
    assert restored["kernel"].sharding.spec == PartitionSpec(None, "model")
    assert restored["bias"].sharding.is_fully_replicated

    assert run(["convert", *words]) == 0
    assert json.loads(capsys.readouterr().out)["already_done"]


def test_of_a_layout_file(source: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(LAYOUT))
    words = [str(source), str(tmp_path / "out"), "--layout", str(file), "--mesh", "model=8"]
    assert run(["plan", *words]) == 1
    said = capsys.readouterr().err
    assert "rules[0] 'kernel'" in said
    assert "(--missing-axes replicate)" in said
    assert run(["plan", *words, "--missing-axes", "replicate", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    axes = {t["target"]: t["target_axes"] for t in planned["tensors"]}
    assert axes == {"kernel": ["model", None], "bias": [None]}
    assert LOST in planned["warnings"]


def test_from_python_also_for_several_targets(source: Path, tmp_path: Path) -> None:
    targets = [
        reshard.Target(tmp_path / "a", mesh="model=8", missing_axes="replicate"),
        reshard.Target(tmp_path / "b", mesh="data=8", missing_axes="replicate"),
    ]
    made = reshard.convert_all(source, targets)
    assert LOST in made.reports[0].warnings
    assert LOST not in made.reports[1].warnings
    assert reshard.verify(tmp_path / "a", tmp_path / "b").differences == 0
    with pytest.raises(reshard.LayoutError, match="missing_axes is 'drop'; expected 'error' or"):
        reshard.plan(source, tmp_path / "c", mesh="model=8", missing_axes="drop")


def test_nothing_is_said_where_no_axis_is_missing(source: Path, tmp_path: Path) -> None:
    planned = reshard.plan(
        source, tmp_path / "out", mesh="data=2,model=4", missing_axes="replicate"
    )
    assert not [w for w in planned.warnings if "has no axis" in w]
