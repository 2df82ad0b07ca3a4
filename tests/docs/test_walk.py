"""A first-time user walks through what once tripped them: a test for each line of that list.

Commands are typed in a shell and calls are those of ``import reshard``; checkpoints come from Flax NNX,
optax and stock Orbax, which also restore what comes out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from tests.docs.walk import Items, mesh, ok, save_run, shell, trained

pytestmark = pytest.mark.xdist_group("walk")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``run`` with steps 4 and 5 of an NNX training loop; ``items/5`` with the items model and ema."""
    made = tmp_path_factory.mktemp("walk")
    state = trained(mesh(4, 2))
    save_run(made / "run", {4: state, 5: state})
    save_run(made / "items", {5: Items(model=state["params"], ema=state["params"])})
    return made


def names(folder: Path, path: str) -> list[str]:
    """The tensors that ``inspect`` lists."""
    return [t["name"] for t in json.loads(ok(folder, f"reshard inspect {path} --json"))["tensors"]]


# -- Defects ------------------------------------------------------------------------------------------


def test_1_one_naming_scheme(folder: Path) -> None:
    kernels = [f"model/layers/{i}/kernel" for i in range(3)]
    ok(folder, "reshard convert items/5 d1 --select '^model/.*kernel'")
    assert names(folder, "d1") == kernels
    ok(folder, "reshard convert d1 d1-again --select '^model/layers/0/'")
    assert names(folder, "d1-again") == kernels[:1]
    assert list(reshard.restore(folder / "d1")) == ["model"]


@pytest.mark.parametrize(
    "rules",
    [
        "--select '^params/'",
        "--rename '^params/=weights/'",
        "--select '^params/' --cast '^params/=bfloat16'",
        "--drop '^opt_state/' --cast 'kernel$=float16' --rename '^params/=w/' --mesh data=2,model=4",
    ],
)
def test_2_verify_understands_what_convert_did(folder: Path, tmp_path: Path, rules: str) -> None:
    ok(folder, f"reshard convert run/5 {tmp_path / 'out'} {rules}")
    ok(folder, f"reshard verify run/5 {tmp_path / 'out'}")
    assert reshard.verify(folder / "run/5", tmp_path / "out").differences == 0


def test_2_verify_says_what_is_exact_and_what_is_rounded(folder: Path, tmp_path: Path) -> None:
    ok(folder, f"reshard convert run/5 {tmp_path / 'out'} --cast 'kernel$=bfloat16'")
    said = " ".join(ok(folder, f"reshard verify run/5 {tmp_path / 'out'}").split())
    assert "9 cast float32 → bfloat16" in said
    other = reshard.restore(tmp_path / "out")
    other["params"]["layers"][0]["bias"] += 1
    reshard.save(tmp_path / "other", other)
    asked = f"reshard verify run/5 {tmp_path / 'other'} --cast 'kernel$=bfloat16'"
    assert shell(folder, asked).code == 3


@pytest.mark.parametrize("kind", ["float", "float32"])
def test_3_all_floats(folder: Path, tmp_path: Path, kind: str) -> None:
    ok(folder, f"reshard convert run/5 {tmp_path / 'out'} --cast {kind}=bfloat16")
    state = reshard.restore(tmp_path / "out")
    assert state["params"]["layers"][0]["kernel"].dtype == ml_dtypes.bfloat16
    assert state["step"].dtype == np.int32


def test_3_float8_saturates_when_asked(tmp_path: Path) -> None:
    save_run(tmp_path / "run", {1: {"w": np.full((4, 4), 1e6, np.float32)}})
    ok(tmp_path, "reshard convert run/1 plain --cast float=float8_e4m3fn")
    ok(tmp_path, "reshard convert run/1 held --cast float=float8_e4m3fn:saturate")
    assert np.isnan(np.asarray(reshard.restore(tmp_path / "plain")["w"], np.float32)).all()
    assert (np.asarray(reshard.restore(tmp_path / "held")["w"], np.float32) == 448).all()
    ok(tmp_path, "reshard verify run/1 held")


@pytest.mark.parametrize("order", [[7, 3, 1, 5, 0, 2, 4, 6], [4, 5, 6, 7]], ids=["mixed", "half"])
def test_4_a_kept_layout_is_kept_whole(tmp_path: Path, order: list[int]) -> None:
    devices = np.reshape([jax.devices()[i] for i in order], (-1, 2))
    on = Mesh(devices, ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    array = jax.device_put(np.ones((16, 16), np.float32), NamedSharding(on, PartitionSpec("data")))
    save_run(tmp_path / "run", {1: {"w": array}})
    ok(tmp_path, "reshard convert run/1 out/1 --cast w=bfloat16")
    with ocp.CheckpointManager(tmp_path / "out") as manager:
        restored = manager.restore(1, args=ocp.args.StandardRestore())["w"]
    assert [d.id for d in restored.sharding.mesh.devices.flat] == order
    assert restored.sharding.mesh.axis_types == on.axis_types


def test_5_a_key_that_matches_nothing_is_told(folder: Path) -> None:
    layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",), jax.devices()))
    layout["kernle"] = (None, "model")
    reports: list[Any] = []
    with pytest.warns(reshard.LayoutWarning, match="kernle"):
        reshard.restore(folder / "run/5", layout=layout)
    reshard.restore(folder / "run/5", layout=layout, report=reports.append)
    assert "kernle" in reports[0].warnings[0]
    strict = reshard.LayoutMap(layout.device_mesh, unmatched="error")
    strict["kernel"] = (None, "model")
    with pytest.raises(reshard.LayoutError, match="matches no key of the layout map"):
        reshard.restore(folder / "run/5", layout=strict)


def test_6_a_pruned_list_stays_a_list(tmp_path: Path) -> None:
    layers = [np.full((4, 4), i, np.float32) for i in range(12)]
    save_run(tmp_path / "run", {1: {"layers": layers}})
    pruned = " ".join(f"--rename '^layers/{9 + i}$=layers/{i}'" for i in range(3))
    ok(tmp_path, f"reshard convert run/1 out/1 --select '^layers/(9|10|11)$' {pruned}")
    target = {"layers": [np.zeros((4, 4), np.float32)] * 3}
    with ocp.CheckpointManager(tmp_path / "out") as manager:
        found = manager.restore(1, args=ocp.args.StandardRestore(target))["layers"]
    assert [int(layer[0, 0]) for layer in found] == [9, 10, 11]


def test_7_numpy_that_no_rule_names_stays_numpy(tmp_path: Path) -> None:
    state = {"w": np.ones((16, 16), np.float32), "iterator": np.array([1 << 40])}
    save_run(tmp_path / "run", {1: state})
    layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",), jax.devices()))
    layout["^w$"] = ("model", None)
    found = reshard.restore(tmp_path / "run/1", layout=layout)
    assert isinstance(found["w"], jax.Array)
    assert isinstance(found["iterator"], np.ndarray)
    assert found["iterator"].dtype == np.int64


def test_8_layout_and_storage_are_two_things(folder: Path) -> None:
    said = json.loads(ok(folder, "reshard plan run/5 out --mesh data=2,model=4 --json"))
    tensor = next(t for t in said["tensors"] if t["target"] == "params/layers/0/kernel")
    assert (tensor["target_shards"], tensor["target_shard_shape"]) == ([1, 4], [64, 16])
    assert (tensor["target_chunks"], tensor["target_chunk_shape"]) == (1, [64, 64])
    assert "shards: what each device holds" in ok(folder, "reshard plan run/5 out --mesh model=4")


def test_9_a_folder_of_checkpoints_is_no_run(tmp_path: Path) -> None:
    for number in (7, 8):
        reshard.save(tmp_path / "zoo" / f"something_{number}", {"w": np.ones(4, np.float32)})
    reshard.save(tmp_path / "zoo" / "other_1", {"w": np.ones(4, np.float32)})
    said = shell(tmp_path, "reshard inspect zoo").said
    assert "training run" not in said
    assert "something_7" in said


def test_9_a_backslash_is_a_name(tmp_path: Path) -> None:
    save_run(tmp_path / "run", {1: {"a\\b": np.ones(4, np.float32)}})
    assert names(tmp_path, "run/1") == ["a\\b"]


def test_9_only_what_is_stored_is_offered(folder: Path) -> None:
    said = shell(folder, "reshard convert run/5 out --cast step=nothing").said
    assert "bfloat16" in said
    assert "uint4" not in said


def test_9_nobody_needs_to_read_what_is_said(folder: Path, tmp_path: Path) -> None:
    assert shell(folder, f"reshard convert run/5 {tmp_path / 'piped'} | true").code == 0
    assert names(folder, str(tmp_path / "piped")) == names(folder, "run/5")


def test_9_a_missing_argument_is_no_value(folder: Path) -> None:
    missing = shell(folder, "reshard convert run/5")
    assert missing.code == 2
    assert "Invalid value" not in missing.said


def test_10_numpy_stays_numpy_in_shards() -> None:
    for dtype in (np.float64, np.int64):
        rows = [np.arange(6, dtype=dtype).reshape(3, 2)] * 2
        table = reshard.ShardedVariable(rows)
        assert np.asarray(table).dtype == dtype
        assert table.shape.as_list() == [6, 2]
    assert reshard.ShardedVariable([[[1.0, 2.0]], [[3.0, 4.0]]]).shape == (2, 2)


# -- What people ask for first ----------------------------------------------------------------------------


def test_axes_that_the_new_mesh_lacks(folder: Path, tmp_path: Path) -> None:
    refused = shell(folder, f"reshard convert run/5 {tmp_path / 'out'} --mesh data=8")
    assert refused.code == 1
    assert "--missing-axes replicate" in refused.said
    ok(folder, f"reshard convert run/5 {tmp_path / 'out'} --mesh data=8 --missing-axes replicate")


def test_a_mesh_in_yaml_as_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text("mesh: {data: 2, model: 4}\nrules:\n- {match: kernel, axes: [null, model]}\n")
    ok(folder, f"reshard layout {file} run/5")


def test_which_of_two_matching_keys_counts(folder: Path, tmp_path: Path) -> None:
    """The first rule of a file; a LayoutMap refuses, as Keras' does, unless it is told to take the first."""
    file = tmp_path / "two.yaml"
    file.write_text(
        "mesh: {model: 8}\nrules:\n- {match: kernel, axes: [null, model]}\n"
        "- {match: layers, axes: [model]}\n"
    )
    ok(folder, f"reshard convert run/5 {tmp_path / 'out'} --layout {file}")
    kernel = reshard.inspect(tmp_path / "out").tensors["params/layers/0/kernel"]
    assert kernel.spec.layout.axes == (None, "model")
    for ambiguous in ("error", "first"):
        layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",)), ambiguous=ambiguous)
        layout["kernel"] = (None, "model")
        layout["layers"] = ("model",)
        if ambiguous == "first":
            assert reshard.plan(folder / "run/5", layout=layout).tasks
        else:
            with pytest.raises(reshard.LayoutError, match="first"):
                reshard.plan(folder / "run/5", layout=layout)


def test_which_step(folder: Path, tmp_path: Path) -> None:
    assert names(folder, "run --step 4") == names(folder, "run --step latest")
    assert names(folder, "run/5") == names(folder, "run --step 5")
    ok(folder, f"reshard convert run --step latest {tmp_path / 'out'}")
    ok(folder, f"reshard verify run --step 5 {tmp_path / 'out'}")
    refused = shell(folder, "reshard inspect run --step 6")
    assert refused.code == 1
    assert "4 and 5" in refused.said or "4, 5" in refused.said
    assert reshard.restore(folder / "run", step="latest")["step"] == 1


def test_a_step_that_stock_orbax_takes(tmp_path: Path) -> None:
    reshard.save(tmp_path / "run", {"w": np.arange(4.0)}, step=5)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.latest_step() == 5
        found = manager.restore(5, args=ocp.args.StandardRestore())
    assert found["w"].tolist() == [0, 1, 2, 3]


def test_what_changed(folder: Path, tmp_path: Path) -> None:
    state = reshard.restore(folder / "run/5")
    state["params"]["layers"][1]["kernel"][3, 4] += 0.5
    reshard.save(tmp_path / "changed", state)
    done = shell(folder, f"reshard diff run/5 {tmp_path / 'changed'}")
    assert done.code == 3
    assert "params/layers/1/kernel" in done.said
    assert "params/layers/0/kernel" not in done.said
    assert shell(folder, "reshard diff run/4 run/5").code == 0


def test_the_notice_about_checksums_comes_once(folder: Path, tmp_path: Path) -> None:
    said = shell(folder, f"reshard convert run/5 {tmp_path / 'out'}").said
    assert said.count("no checksum") == 1


def test_a_keras_model_made_in_the_scope_is_used_at_once() -> None:
    import keras

    layouts = reshard.LayoutMap(reshard.DeviceMesh((2, 4), ("data", "model"), jax.devices()))
    layouts["up.kernel"] = (None, "model")
    with reshard.layout_map_scope(layouts):
        inputs = keras.Input((32,))
        hidden = keras.layers.Dense(64, name="up")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(8, name="down")(hidden))
        model.compile("adam", "mse")
    x = np.ones((16, 32), np.float32)
    model.fit(x, x[:, :8], verbose=0)
    assert model.predict(x, verbose=0).shape == (16, 8)
    assert model.get_layer("up").kernel.value.sharding.spec == PartitionSpec(None, "model")


def test_a_layout_from_what_there_is(folder: Path, tmp_path: Path) -> None:
    assert "2 of 64×32" in ok(folder, "reshard layout run/5")
    starter = ok(folder, "reshard layout run/5 --starter --mesh model=8 --missing-axes replicate")
    (tmp_path / "starter.yaml").write_text(starter)
    ok(folder, f"reshard layout run/5 --layout {tmp_path / 'starter.yaml'}")
    ok(folder, f"reshard layout {tmp_path / 'starter.yaml'} run/5")
    ok(folder, f"reshard convert run/5 {tmp_path / 'out'} --layout {tmp_path / 'starter.yaml'}")
    kernel = reshard.inspect(tmp_path / "out").tensors["params/layers/0/kernel"]
    assert kernel.spec.layout.axes == (None, "model")


def test_layouts_that_jax_users_hold(folder: Path) -> None:
    on = mesh(2, 4)
    layout = reshard.LayoutMap(on)
    layout["kernel"] = PartitionSpec(None, "model")
    by_map = reshard.restore(folder / "run/5", layout=layout)
    target = jax.tree.map(lambda leaf: leaf.sharding, by_map)
    by_tree = reshard.plan(folder / "run/5", folder / "nowhere", layout=target)
    assert by_tree.tasks
    assert by_map["params"]["layers"][0]["kernel"].sharding.spec == PartitionSpec(None, "model")
    assert reshard.plan(folder / "run/5", folder / "nowhere", mesh=on).tasks


def test_which_item(folder: Path) -> None:
    assert "layers/0/kernel" in names(folder, "items --step 5 --item ema")
    assert list(reshard.restore(folder / "items", step=5, item="ema")) == ["layers"]
    target = reshard.restore(folder / "items/5/ema")
    with pytest.raises(reshard.TreeError, match="item="):
        reshard.restore(folder / "items/5", like=target)


def test_plan_needs_no_target(folder: Path) -> None:
    assert "total:" in ok(folder, "reshard plan run/5 --mesh data=2,model=4")
    assert reshard.plan(folder / "run/5").tasks


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", ["inspect run/5", "plan run/5 out --mesh data=2,model=4"])
def test_tables_fit(folder: Path, command: str, columns: int) -> None:
    said = shell(folder, f"reshard {command}", COLUMNS=str(columns)).out.splitlines()
    assert max(map(len, said)) <= columns
    rows = [line for line in said if "layers" in line]
    assert all(line.split()[0].endswith(("kernel", "bias")) for line in rows)


def test_what_calls_return_is_read_easily(folder: Path, tmp_path: Path) -> None:
    tensors = reshard.inspect(folder / "run/5").tensors
    assert tensors["params/layers/0/kernel"].spec.shape == (64, 64)
    (tmp_path / "out").mkdir()
    report = reshard.convert(folder / "run/5", tmp_path / "out")
    assert len(str(report).splitlines()) < 10
    assert len(repr(report)) < 2000
