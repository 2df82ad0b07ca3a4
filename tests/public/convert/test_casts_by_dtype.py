"""Casts of every tensor of a dtype, through the public surface, on a training state with all that is in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training import train_state

import reshard
from reshard.cli.app import run
from tests.orbax_trees import put, save_manager

Capture = pytest.CaptureFixture[str]

LARGE = np.linspace(-1e4, 1e4, 64 * 8, dtype=np.float32).reshape(64, 8)
LARGE[0, :4] = [np.inf, -np.inf, np.nan, 448.0]


class State(train_state.TrainState):
    key: Any = None
    seen: Any = None


def trained() -> State:
    params = {
        "float": put(np.arange(6, dtype=np.float32)),
        "dense": {"kernel": put(LARGE, "data", "model")},
        "half": put(np.arange(8, dtype=ml_dtypes.bfloat16), "data"),
        "narrow": put(np.arange(8).astype(ml_dtypes.float8_e5m2)),
    }
    state = State.create(
        apply_fn=None, params=params, tx=optax.adam(1e-3), key=jax.random.key(3), seen=jnp.uint8(7)
    )
    return state.replace(step=jnp.int32(1000))


STATE = trained()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_manager(tmp_path_factory.mktemp("casts") / "ckpt", STATE)


def dtypes(path: Path) -> dict[str, str]:
    return {n: t.spec.dtype for n, t in reshard.inspect(path).tensors.items()}


def in_half(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def test_all_floats_and_nothing_else(source: Path, tmp_path: Path) -> None:
    before, target = dtypes(source), tmp_path / "3"
    report = reshard.convert(source, target, cast={"float": "bfloat16"}, check="readback")
    after = dtypes(target)
    kept = {n: d for n, d in before.items() if d in ("int32", "uint8", "uint32")}
    assert {"step", "opt_state/0/count", "seen", "key"} == set(kept)
    assert after == {n: kept.get(n, "bfloat16") for n in before}
    assert {t.proof for t in report.tensors} == {"proved"}
    cast = {t.target for t in report.tensors if t.cast is not None}
    assert cast == {n for n, d in before.items() if d not in (*kept.values(), "bfloat16")}
    adam, empty = STATE.opt_state
    opt_state = (adam._replace(mu=in_half(adam.mu), nu=in_half(adam.nu)), empty)
    wanted = STATE.replace(params=in_half(STATE.params), opt_state=opt_state)
    with ocp.CheckpointManager(target.parent) as manager:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, wanted)
        found = manager.restore(3, args=ocp.args.StandardRestore(shapes))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_the_word_and_the_name(source: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "3", select=["^params/"], cast={"(float)": "float16"})
    found = dtypes(tmp_path / "3")
    assert [n for n, d in found.items() if d == "float16"] == ["params/float"]


def test_one_dtype_on_the_command_line_and_in_a_file(
    source: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "casts.yaml"
    file.write_text("cast: [{match: float32, dtype: float16}, {match: int32, dtype: int64}]\n")
    assert run(["convert", str(source), str(tmp_path / "a"), "--layout", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    words = ["--cast", "float32=float16", "--cast", "int32=int64", "--json"]
    assert run(["convert", str(source), str(tmp_path / "b"), *words]) == 0
    other = json.loads(capsys.readouterr().out)
    assert [t["target_digest"] for t in report["tensors"]] == [
        t["target_digest"] for t in other["tensors"]
    ]
    found = dtypes(tmp_path / "a")
    assert found["params/dense/kernel"] == "float16"
    assert found["params/half"] == "bfloat16"
    assert found["step"] == "int64"
    assert found["key"] == "uint32"


@pytest.mark.parametrize("how", ["none", "zstd"])
def test_saturated_and_counted(source: Path, tmp_path: Path, how: str, capsys: Capture) -> None:
    target, name = tmp_path / "3", "params/dense/kernel"
    rule = "float=float8_e4m3fn:saturate"
    words = [str(source), str(target), "--select", "dense", "--cast", rule, "--compression", how]
    assert run(["convert", *words, "--verify", "readback", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    cast = {t["target"]: t["cast"] for t in report["tensors"]}[name]
    clipped = np.clip(LARGE, -448, 448)
    assert cast["saturated"] == np.count_nonzero(np.abs(LARGE) > 448)
    assert (cast["overflows"], cast["nans"]) == (0, 1)
    stored = reshard.restore(target, select=[name])["params"]["dense"]["kernel"]
    np.testing.assert_array_equal(
        stored.view("u1"), clipped.astype(ml_dtypes.float8_e4m3fn).view("u1")
    )
    live = reshard.restore(source, select=[name], cast=[tuple(rule.split("="))])
    np.testing.assert_array_equal(live["params"]["dense"]["kernel"].view("u1"), stored.view("u1"))
    as_stored = stored.view("u1").reshape(-1)
    np.testing.assert_array_equal(streamed(source, name, "float8_e4m3fn:saturate"), as_stored)
    assert (streamed(source, name, "float8_e4m3fn") != as_stored).any()
    for rules in ({}, {"select": ["dense"], "cast": [tuple(rule.split("="))]}):
        verdict = reshard.verify(source, target, **rules)
        assert verdict.differences == 0
        assert {t.comparison for t in verdict.tensors if t.source == name} == {"cast"}
    plain = reshard.verify(source, target, select=["dense"], cast={"float": "float8_e4m3fn"})
    assert name in {t.name for t in plain.tensors if t.status == "different"}
    assert run(["convert", *words, "--overwrite", "--restart"]) == 0
    text = capsys.readouterr().out
    assert "saturated" in text
    assert f"{cast['saturated']:,}" in text


def streamed(path: Path, name: str, dtype: str) -> np.ndarray[Any, Any]:
    """All bytes of a tensor in a dtype, as one stream gives them."""
    return np.frombuffer(b"".join(reshard.open_checkpoint(path).stream(name, None, dtype)), "u1")


def test_saturating_is_another_conversion(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "3"
    plain = {"float": "float8_e4m3fn"}
    lost = reshard.convert(source, target, cast=plain, select=["dense"])
    kernel = next(t for t in lost.tensors if t.target == "params/dense/kernel")
    assert kernel.cast is not None
    assert kernel.cast.overflows > 0
    assert kernel.cast.saturated == 0
    assert reshard.convert(source, target, cast=plain, select=["dense"]).already_done
    with pytest.raises(reshard.ReshardError, match="exists"):
        reshard.convert(source, target, cast={"float": "float8_e4m3fn:saturate"}, select=["dense"])


def test_the_refusal_on_a_training_state_names_what_works(
    source: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["convert", str(source), str(tmp_path / "3"), "--cast", ".=bfloat16"]) == 1
    text = " ".join(capsys.readouterr().err.split())
    assert "int to float is done only when asked for by name" in text
    assert "write 'float=bfloat16' for every float tensor and no other" in text


@pytest.mark.parametrize("dtype", ["uint4", "uint2", "float8_e4m3"])
def test_what_nothing_stores_is_refused_before_a_byte_moves(
    source: Path, tmp_path: Path, dtype: str
) -> None:
    with pytest.raises(reshard.PlanError, match=f"no checkpoint stores {dtype}"):
        reshard.plan(source, tmp_path / "3", cast={"float" if "float" in dtype else "int": dtype})
