"""Which checkpoint: steps of real training runs and items of real checkpoints, by the library and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.cli.app import run as command
from reshard.errors import (
    NotACheckpointError,
    PlanError,
    ReshardError,
    StorageError,
    TargetExistsError,
)
from reshard.storage.local.transaction import LocalTransaction
from tests.formats.training_runs import save_runs, weights
from tests.orbax_trees import put

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    save_runs(root)
    return root


def values(path: Path, **which: Any) -> np.ndarray:
    found: np.ndarray = reshard.restore(path, **which)["w"]
    return found


@pytest.mark.parametrize(
    ("run", "folders"),
    [
        ("plain", {1: "1", 2: "2", 10: "10"}),
        ("padded", {1: "00000001", 2: "00000002", 10: "00000010"}),
        ("prefixed", {1: "ckpt_1", 2: "ckpt_2", 10: "ckpt_10"}),
        ("both", {1: "my_ckpt_0001", 2: "my_ckpt_0002", 10: "my_ckpt_0010"}),
    ],
)
def test_a_step_of_a_run_however_its_folder_is_called(
    runs: Path, run: str, folders: dict[int, str]
) -> None:
    assert reshard.inspect(runs / run, step=2).uri == f"{runs / run}/{folders[2]}"
    assert reshard.inspect(f"{runs / run}/", step="latest").uri == f"{runs / run}/{folders[10]}"
    assert values(runs / run, step=np.int64(1))[0, 1] == 1
    assert values(runs / run, step=jnp.asarray(10))[0, 1] == 10


def test_steps_of_v1_and_urls(runs: Path) -> None:
    assert values(runs / "v1", step=0)[0, 1] == 0
    assert reshard.inspect(f"file://{runs}/v1", step="latest").uri == f"{runs}/v1/3"
    assert list(reshard.open_checkpoint(runs / "v1", step=3, item="state").tensors) == ["w"]


def test_every_function_reads_the_step_and_the_item(runs: Path, tmp_path: Path) -> None:
    run, which = runs / "items", {"step": "latest", "item": "model"}
    path = f"{run}/5/model"
    assert reshard.inspect(run, **which).uri == path
    assert [t.source for t in reshard.preview_layout(run, None, mesh="data=8,model=1", **which).tensors] == ["w"]  # fmt: skip
    assert reshard.plan(run, tmp_path / "out", **which).source == path
    assert reshard.convert(run, tmp_path / "out", mesh="data=2,model=4", **which).source == path
    goals = [reshard.Target(tmp_path / "a"), reshard.Target(tmp_path / "b")]
    assert reshard.plan_all(run, goals, **which).source == path
    assert [r.source for r in reshard.convert_all(run, goals, **which).reports] == [path, path]
    found = reshard.verify(run, tmp_path / "out", **which)
    assert (found.a, found.differences, found.tensors[0].status) == (path, 0, "equal")
    assert list(reshard.open_checkpoint(run, **which).tensors) == ["w"]
    np.testing.assert_array_equal(values(run, **which), np.asarray(weights(5)["w"]))


def test_a_fingerprint_of_one_item(tmp_path: Path) -> None:
    v1.save_checkpointables(tmp_path / "c", {"model": weights(1), "ema": weights(2)})
    found = reshard.fingerprint(tmp_path / "c", item="model")
    assert (found.uri, found.written) == (
        f"{tmp_path}/c/model",
        (f"{tmp_path}/c/model/slices.json",),
    )
    assert reshard.verify(tmp_path / "c", item="model").differences == 0


def test_an_item_of_a_recorded_checkpoint_is_not_recorded_alone(tmp_path: Path) -> None:
    v1.save_checkpointables(tmp_path / "c", {"model": weights(1), "ema": weights(2)})
    reshard.fingerprint(tmp_path / "c")
    with pytest.raises(TargetExistsError, match="is there already and was left untouched"):
        reshard.fingerprint(tmp_path / "c", item="model")
    with pytest.raises(
        TargetExistsError, match=r"is an item of .*record the whole checkpoint anew"
    ):
        reshard.fingerprint(tmp_path / "c", item="model", overwrite=True)
    assert reshard.verify(tmp_path / "c").differences == 0


REFUSED: list[tuple[str, dict[str, Any], type[ReshardError], str]] = [
    ("plain", {}, NotACheckpointError,
     "{run} is a training run's folder with steps 1, 2, 10; choose one with step=N or step='latest'"),
    ("items", {"item": "model"}, NotACheckpointError,
     "{run} is a training run's folder with step 5; choose one with step=N or step='latest'"),
    ("plain", {"step": 7}, NotACheckpointError,
     "{run} has no step 7; it is a training run's folder with steps 1, 2, 10; choose one with"),
    ("plain/2", {"step": 2}, PlanError,
     "{run} is a checkpoint, not the folder of a training run, but a step is given; leave step 2 out (step), or give "),
    ("", {"step": "latest"}, NotACheckpointError,
     "{run} contains no committed step; expected the folder of a training run"),
    ("none", {"step": 1}, StorageError, "{run} does not exist: expected a training run's folder; check the path"),
    ("plain", {"step": "2"}, PlanError, "step is '2'; expected the number of a step, or 'latest'"),
    ("plain", {"step": True}, PlanError, "step is True; expected"),
    ("plain", {"step": -1}, PlanError, "step is -1; expected"),
    ("plain", {"step": 2.0}, PlanError, "step is 2.0; expected"),
    ("plain", {"step": 2, "item": 3}, PlanError, "item is 3; expected the name of an item"),
    ("items", {"step": 5, "item": "optimizer"}, NotACheckpointError,
     "{run}/5 has no item 'optimizer'; it has the items 'ema', 'model'"),
    ("items/5", {"item": "../5/model"}, NotACheckpointError, "{run} has no item '../5/model'; it has"),
    ("items", {"step": 5, "item": "data"}, NotACheckpointError,
     "the item 'data' of {run}/5 is not a tree of tensors (saved by JsonCheckpointHandler); it has the items 'ema'"),
    ("items/5/model", {"item": "model"}, PlanError,
     "{run} is a single tree without items, so it has no item 'model'; leave the item out (item)"),
    ("", {"item": "model"}, NotACheckpointError, "{run} is not a checkpoint, so it has no item 'model'"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "which", "error", "text"), REFUSED)
def test_refusals(
    runs: Path, run: str, which: dict[str, Any], error: type[ReshardError], text: str
) -> None:
    path = str(runs / run) if run else str(runs)
    for function in (reshard.inspect, reshard.open_checkpoint, reshard.verify, reshard.restore):
        with pytest.raises(error) as caught:
            function(path, **which)
        assert text.format(run=path) in str(caught.value)


@pytest.mark.parametrize("ocdbt", [False, True])
@pytest.mark.parametrize("style", ["v0", "v1"])
def test_an_item_is_a_checkpoint_by_itself(
    runs: Path, tmp_path: Path, style: Any, ocdbt: bool
) -> None:
    """What is made of an item of a converted step, which has digests; stock Orbax restores all of it."""
    step, out = tmp_path / "step", tmp_path / "out"
    reshard.convert(runs / "items", step, step=5, style=style, ocdbt=ocdbt)
    found = reshard.inspect(step, item="ema")
    digests = {n: t.digest for n, t in found.tensors.items()}
    assert set(digests) == {"w", "key"}
    assert all(digests.values())
    assert next(t for t in found.tensors.values() if t.is_key).spec.name == "key"
    layout = found.tensors["w"].spec.layout
    assert layout is not None
    assert (layout.axes, layout.device_mesh.shape) == (("data", "model"), (4, 2))
    assert reshard.verify(step, item="ema").differences == 0

    report = reshard.convert(step, out, item="ema", mesh="data=2,model=4", check="readback")
    assert {t.source: t.target_digest for t in report.tensors} == digests
    target = {"w": weights(6)["w"], "key": jax.random.key(0)}
    restored = ocp.StandardCheckpointer().restore(out, target)
    np.testing.assert_array_equal(restored["w"], weights(6)["w"])
    assert jax.random.key_data(restored["key"]).tolist() == [0, 7]
    loaded = v1.load(out)
    np.testing.assert_array_equal(loaded["w"], weights(6)["w"])
    assert loaded["w"].sharding.spec == jax.sharding.PartitionSpec("data", "model")
    assert loaded["w"].sharding.mesh.shape == {"data": 2, "model": 4}


def test_a_tree_keeps_its_own_metadata_and_not_the_steps(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(
            model=ocp.args.PyTreeSave(weights(), custom_metadata={"of": "the tree"}),
            ema=ocp.args.PyTreeSave(weights()),
        )
        manager.save(1, args=args, custom_metadata={"of": "the step"})
    reshard.convert(tmp_path / "run", tmp_path / "out", step=1, item="model")
    tree = json.loads((tmp_path / "out" / "_METADATA").read_text())
    assert tree["custom_metadata"] == {"of": "the tree"}
    step = json.loads((tmp_path / "out" / "_CHECKPOINT_METADATA").read_text())
    assert step["custom_metadata"] == {}


def told(capsys: Capture, *words: str) -> Any:
    assert command([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_command_reads_the_step_and_the_item(
    runs: Path, tmp_path: Path, capsys: Capture
) -> None:
    run, out = str(runs / "items"), str(tmp_path / "out")
    which, path = ("--step", "latest", "--item", "model"), f"{runs}/items/5/model"
    layout = tmp_path / "l.yaml"
    layout.write_text("mesh: {axes: [model], shape: [8]}\nrules: [{match: w, axes: [model]}]\n")
    assert told(capsys, "inspect", run, *which)["uri"] == path
    assert told(capsys, "layout", str(layout), run, *which)["source"] == path
    assert told(capsys, "plan", run, out, *which)["source"] == path
    assert told(capsys, "convert", run, out, *which, "--layout", str(layout))["source"] == path
    several = told(capsys, "convert", run, *which, "--target", f"data=1,model=8={out}2")
    assert several["source"] == several["reports"][0]["source"] == path
    assert told(capsys, "verify", run, out, "--step", "5", "--item", "model")["a"] == path
    assert command(["convert", run, f"{out}3", "--step", "5", "--item", "ema"]) == 0
    assert f"converting {runs}/items/5/ema → {out}3: " in capsys.readouterr().err
    again = [*which, "--step", "5"]
    assert told(capsys, "fingerprint", run, *again)["uri"] == path
    (runs / "items" / "5" / "model" / "slices.json").unlink()


def test_the_path_of_a_step_that_is_not_there_names_those_that_are(
    runs: Path, capsys: Capture
) -> None:
    assert command(["inspect", str(runs / "plain" / "3")]) == 1
    assert capsys.readouterr().err == (
        f"error: {runs}/plain/3 does not exist, and the run has steps 1, 2, 10: expected the directory of a checkpoint; "
        "check the path\n"
    )
    assert command(["inspect", str(runs / "plain" / "other")]) == 1
    assert "plain/other does not exist: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 1, "is a training run's folder with steps 1, 2, 10; choose one with --step N or --step latest"),
        (("--step", "3"), 1, "has no step 3; it is a training run's folder with steps 1, 2, 10"),
        (("--step", "x"), 2, "--step 'x': expected the number of a step, or latest"),
        (("--step", "2", "--item", "m"), 1, "has no item 'm'; it has the item 'default'"),
    ],
)  # fmt: skip
def test_refusals_of_the_command(
    runs: Path, words: tuple[str, ...], code: int, text: str, capsys: Capture
) -> None:
    assert command(["inspect", str(runs / "plain"), *words]) == code
    assert text in capsys.readouterr().err


def test_a_checkpoint_itself_has_no_step(runs: Path, capsys: Capture) -> None:
    assert command(["inspect", str(runs / "plain" / "2"), "--step", "2"]) == 1
    assert "leave step 2 out (--step), or give the folder" in capsys.readouterr().err


def test_b_is_named_by_its_path(runs: Path) -> None:
    with pytest.raises(NotACheckpointError) as caught:
        reshard.verify(runs / "plain", runs / "padded", step=1)
    expected = f"holds steps of a training run, so name one of them: {runs}/padded/00000010"
    assert expected in str(caught.value)


def test_a_newer_latest_step_is_reported_on_resume(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped, another step is saved, and the same command would read that one."""
    run, out = tmp_path / "run", tmp_path / "out"
    state = {f"w{n}": put(np.arange(1 << 16, dtype=np.float32) + n) for n in range(8)}
    with ocp.CheckpointManager(run) as manager:
        manager.save(1, args=ocp.args.StandardSave(state))

    real, calls = LocalTransaction.append, []

    def stopping(self: LocalTransaction, finished: Any) -> None:
        real(self, finished)
        calls.append(finished)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalTransaction, "append", stopping)
        with pytest.raises(KeyboardInterrupt):
            reshard.convert(run, out, step="latest", item="default", workers=1)
    with ocp.CheckpointManager(run) as manager:
        manager.save(2, args=ocp.args.StandardSave(state))
    words = ["convert", str(run), str(out), "--item", "default", "--workers", "1"]
    assert command([*words, "--step", "latest"]) == 1
    error = capsys.readouterr().err
    assert f"to '{out}' was of step 1 of '{run}', and this one is of step 2; " in error
    assert "resume it by --step 1, or start over (--restart)" in error
    assert told(capsys, *words, "--step", "1")["resumed_bytes"] > 0


def test_tensors_are_found_by_name(tmp_path: Path) -> None:
    reshard.save(tmp_path / "ckpt", {"b": np.ones((4, 2)), "a": {"c": np.arange(3)}})
    found = reshard.inspect(tmp_path / "ckpt")
    assert list(found.tensors) == [leaf.name for leaf in found.leaves]
    assert found.tensors["b"].spec.shape == (4, 2)
    assert "a/c" in found.tensors
