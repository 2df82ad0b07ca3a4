"""The command line on real checkpoints of stock Orbax, nothing replaced."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from reshard.cli.app import run
from tests.orbax_trees import put, save_standard

Capture = pytest.CaptureFixture[str]

KERNEL = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
SERVING = """\
mesh: {axes: [model], shape: [8]}
rules: [{match: kernel, axes: [null, model]}]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = [{"kernel": put(KERNEL + i, "data", "model")} for i in range(3)]
    tree = {"params": {"layers": layers}, "step": put(np.int32(7))}
    return save_standard(tmp_path_factory.mktemp("cli") / "trained", tree)


@pytest.fixture
def serving(tmp_path: Path) -> str:
    file = tmp_path / "serving.yaml"
    file.write_text(SERVING)
    return str(file)


def test_inspect(trained: Path, capsys: Capture) -> None:
    assert run(["inspect", str(trained), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kernel = next(t for t in found["tensors"] if t["name"] == "params/layers/1/kernel")
    assert (kernel["shape"], kernel["axes"]) == ([64, 64], ["data", "model"])
    assert found["nbytes"] == 3 * 64 * 64 * 4 + 4
    assert run(["inspect", str(trained)]) == 0
    assert "params/layers/{0…2}/kernel" in capsys.readouterr().out


def test_convert_restore_verify(
    trained: Path, serving: str, tmp_path: Path, capsys: Capture
) -> None:
    served = tmp_path / "served"
    words = ["convert", str(trained), str(served), "--layout", serving, "--verify", "readback"]
    assert run([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {t["proof"] for t in report["tensors"]} == {"proved"}
    assert all(t["source_digest"] == t["target_digest"] for t in report["tensors"])

    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(served)
    for i, layer in enumerate(restored["params"]["layers"]):
        np.testing.assert_array_equal(layer["kernel"], KERNEL + i)
        assert layer["kernel"].sharding.spec == jax.sharding.PartitionSpec(None, "model")

    assert run(["verify", str(trained), str(served)]) == 0
    assert "equal: 4 of 4 tensors" in capsys.readouterr().out
    assert run(["verify", str(served)]) == 0
    assert "as recorded: 4 of 4 tensors" in capsys.readouterr().out
    assert run(words) == 0
    assert "nothing to do: " in capsys.readouterr().out
    assert run([*words, "--drop", "step"]) == 1
    assert "exists already and was left untouched" in capsys.readouterr().err


def test_verify_names_what_differs(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    other = save_standard(
        tmp_path / "other",
        {
            "params": {"layers": [{"kernel": put(KERNEL)} for _ in range(3)]},
            "step": put(np.int32(7)),
        },
    )
    assert run(["verify", str(trained), str(other)]) == 3
    out = capsys.readouterr().out
    assert "params/layers/1/kernel" in out
    assert "params/layers/0/kernel" not in out
    assert "different: 2 of 4 tensors" in out


def test_changes_on_the_way(trained: Path, serving: str, tmp_path: Path, capsys: Capture) -> None:
    served = tmp_path / "served"
    words = ["convert", str(trained), str(served), "--layout", serving, "--select", "layers/[01]/"]
    changes = ["--cast", "kernel=bfloat16", "--rename", r"^params/layers/(\d+)/=model/block\1/"]
    assert run([*words, *changes]) == 0
    out = capsys.readouterr().out
    assert "params/layers/0/kernel → model/block0/kernel" in out
    assert "float32 → bfloat16" in out
    assert run(["inspect", str(served), "--json"]) == 0
    names = [t["name"] for t in json.loads(capsys.readouterr().out)["tensors"]]
    assert names == ["model/block0/kernel", "model/block1/kernel"]


def test_a_rule_that_matches_nothing_is_refused(
    trained: Path, serving: str, tmp_path: Path, capsys: Capture
) -> None:
    served = tmp_path / "served"
    assert run(["convert", str(trained), str(served), "--layout", serving, "--drop", "typo"]) == 1
    assert "drop 'typo' matches none of the 4 names" in capsys.readouterr().err
    assert not served.exists()


def test_plan_and_layout_touch_nothing(
    trained: Path, serving: str, tmp_path: Path, capsys: Capture
) -> None:
    before = sorted(tmp_path.iterdir())
    assert (
        run(["plan", str(trained), str(tmp_path / "served"), "--layout", serving, "--shares"]) == 0
    )
    assert "source shards 8 of 16×32 → target shards 8 of 64×8" in capsys.readouterr().out
    assert run(["layout", serving, str(trained)]) == 0
    assert "8 of 64×8, 2.00 KiB each" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_a_plan_distinguishes_layout_and_chunks(
    trained: Path, serving: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "cut.yaml"
    file.write_text("partitions: [{match: '0/kernel', fixed_shards: 3}]\n")
    words = ["plan", str(trained), str(tmp_path / "served"), "--json"]
    assert run([*words, "--layout", serving]) == 0
    tensors = {t["target"]: t for t in json.loads(capsys.readouterr().out)["tensors"]}
    kernel, step = tensors["params/layers/1/kernel"], tensors["step"]
    assert (kernel["source_shards"], kernel["source_shard_shape"]) == ([4, 2], [16, 32])
    assert (kernel["target_shards"], kernel["target_shard_shape"]) == ([1, 8], [64, 8])
    # 2 KiB each: all eight share one chunk.
    assert (kernel["target_chunks"], kernel["target_chunk_shape"]) == (1, [64, 64])
    assert (step["source_shards"], step["target_shard_shape"]) == ([], [])
    assert run([*words, "--layout", str(file)]) == 0
    tensors = {t["target"]: t for t in json.loads(capsys.readouterr().out)["tensors"]}
    cut, whole = tensors["params/layers/0/kernel"], tensors["params/layers/1/kernel"]
    assert (cut["target_shards"], cut["target_shard_shape"]) == ([3, 1], [22, 64])
    assert (whole["target_shards"], whole["target_shard_shape"]) == (None, None)


def test_a_small_shard_shares_its_chunk_and_a_large_one_takes_several(
    tmp_path: Path, capsys: Capture
) -> None:
    tree = {
        "small": put(KERNEL, "data", "model"),
        "large": put(np.zeros((2048, 1024), np.float32), "model"),
    }
    trained = save_standard(tmp_path / "trained", tree)
    assert run(["plan", str(trained), str(tmp_path / "x"), "--chunk-bytes", "2MiB", "--json"]) == 0
    found = {t["target"]: t for t in json.loads(capsys.readouterr().out)["tensors"]}
    assert (found["small"]["target_shards"], found["small"]["target_chunks"]) == ([4, 2], 1)
    assert (found["large"]["target_shards"], found["large"]["target_chunks"]) == ([2, 1], 4)
