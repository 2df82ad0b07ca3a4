"""Quantised weights stay with their scales: whole copies are exact, and what would part them is refused before a byte moves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.errors import PlanError
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

UP, DOWN, KV = (
    f"model.layers.0.{name}.weight" for name in ("mlp.up_proj", "mlp.down_proj", "self_attn.kv_a_proj")
)  # fmt: skip
TEXT = "fp8, blocks of 128×128: 3 weights with scales, 2 as they are"
ABOUT_UP, ABOUT_DOWN = (
    f"'{name}' holds codes (fp8, blocks of 128×128), which mean nothing without '{name}_scale_inv'"
    for name in (UP, DOWN)
)
EXCEPT = {"float8_e4m3fn": "float8_e4m3fn", r"\bweight_scale_inv$": "float32"}


@pytest.fixture(scope="module")
def model(torch: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fp8") / "model"
    folder.mkdir()
    torch.ask("save_quantised", folder=str(folder))
    return folder


def refused(source: Path, target: Path, **options: Any) -> str:
    """What plan and convert say alike; nothing is written."""
    with pytest.raises(PlanError) as planned:
        reshard.plan(source, target, **options)
    with pytest.raises(PlanError) as converted:
        reshard.convert(source, target, **options)
    assert not target.exists()
    assert str(planned.value) == str(converted.value)
    return str(converted.value)


def moves(*names: str, **more: Any) -> dict[str, Any]:
    """A map that only moves tensors; "net" stands before their names."""
    return {"map": [{"from": name, "to": f"net.{name}", **more} for name in names]}


def split(rules: dict[str, list[str | None]], **mesh: int) -> dict[str, Any]:
    found = [{"match": match, "axes": axes} for match, axes in rules.items()]
    return {"mesh": mesh, "rules": found, "unmatched": "replicate"}


def test_both_halves_travel_whole(torch: Oracle, model: Path, tmp_path: Path) -> None:
    """Through Orbax and back, under other names and back, with the config: torch computes the same weights."""
    reshard.convert(model, tmp_path / "orbax", to="orbax", rename=[("^model", "m")])
    back = tmp_path / "back"
    reshard.convert(tmp_path / "orbax", back, to="safetensors", rename=[("^m", "model")])
    reshard.convert(model, tmp_path / "again", carry=True, file_bytes=100_000)
    assert (tmp_path / "again" / "config.json").read_bytes() == (model / "config.json").read_bytes()
    wanted = torch.ask("dequantised", folder=str(model))
    assert len(wanted) == 5
    assert torch.ask("dequantised", folder=str(back)) == wanted
    assert torch.ask("dequantised", folder=str(tmp_path / "again")) == wanted
    assert reshard.inspect(model).quantized == TEXT
    # Orbax has no config; the dimension of one block has no cut that would part it by shape alone.
    assert reshard.inspect(tmp_path / "orbax").quantized == (
        "fp8, blocks of 128×128: 2 weights with scales; fp8, blocks of 128: 1 weight with scales, 2 as they are"
    )


def test_a_cast_says_how_to_leave_them_out(torch: Oracle, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "bf16"
    assert refused(model, target, cast={"float": "bfloat16"}, carry=True) == (
        f"'{DOWN}' would be cast from float8_e4m3fn to bfloat16: {ABOUT_DOWN}, and a cast of either alters the weights. 6 tensors are in the way "
        f"('{DOWN}', '{DOWN}_scale_inv', '{UP}', …); give cast 'float8_e4m3fn=float8_e4m3fn' and cast '\\bweight_scale_inv$=float32' before the other casts, "
        "which leave them as they are (cast), or take the weights that they stand for "
        "(dequantize)"
    )
    reshard.convert(model, target, cast={**EXCEPT, "float": "bfloat16"}, carry=True)
    dtypes = {t.spec.name: t.spec.dtype for t in reshard.inspect(target).tensors.values()}
    assert dtypes["model.inv_freq"] == "bfloat16"
    assert torch.ask("dequantised", folder=str(target)) == torch.ask("dequantised", folder=str(model))  # fmt: skip
    said = refused(model, tmp_path / "a", cast={"_scale_inv$": "bfloat16"})
    assert said.startswith(f"'{DOWN}_scale_inv' would be cast from float32 to bfloat16: {ABOUT_DOWN}, and")  # fmt: skip
    assert "3 tensors are in the way" in said
    by_map = moves(UP, f"{UP}_scale_inv", cast="bfloat16")
    said = refused(model, tmp_path / "a", map=by_map, select=["up_proj"])
    assert said.startswith(f"'{UP}' would be cast from float8_e4m3fn to bfloat16: {ABOUT_UP}, and")


@pytest.mark.parametrize(
    ("rules", "kept", "missing"),
    [
        ({"drop": ["up_proj.*_scale_inv$"]}, UP, f"{UP}_scale_inv"),
        ({"select": ["norm", r"up_proj\.weight$"]}, UP, f"{UP}_scale_inv"),
        ({"drop": [r"up_proj\.weight$"]}, f"{UP}_scale_inv", UP),
        ({"map": moves(UP), "select": ["up_proj"], "drop": ["_inv$"]}, UP, f"{UP}_scale_inv"),
    ],
)  # fmt: skip
def test_one_half_alone(
    model: Path, tmp_path: Path, rules: dict[str, Any], kept: str, missing: str
) -> None:
    assert refused(model, tmp_path / "a", **rules) == (
        f"'{kept}' would be kept without '{missing}': {ABOUT_UP}; keep both, or leave both out (select, drop)"
    )


def test_pairs_may_be_left_out(model: Path, tmp_path: Path) -> None:
    reshard.convert(model, tmp_path / "a", drop=["kv_a_proj"], select=["layers"])
    assert set(reshard.inspect(tmp_path / "a").tensors) == {UP, f"{UP}_scale_inv", DOWN, f"{DOWN}_scale_inv"}  # fmt: skip


def test_names_that_no_longer_belong_together(model: Path, tmp_path: Path) -> None:
    said = refused(model, tmp_path / "a", rename=[(r"up_proj\.weight$", "gate.weight")])
    assert said == (
        f"'{UP}_scale_inv' would be written as '{UP}_scale_inv', but '{UP}' as 'model.layers.0.mlp.gate.weight', and readers look for both under "
        f"names that differ as '{UP}' and '{UP}_scale_inv' do: {ABOUT_UP}; rename both alike (rename)"
    )
    apart = {"map": [{"from": UP, "to": "up"}, {"from": f"{UP}_scale_inv", "to": "up_inverse"}]}
    said = refused(model, tmp_path / "a", map=apart, select=["up_proj"])
    assert said.startswith(
        f"'{UP}_scale_inv' would be written as 'up_inverse', but '{UP}' as 'up', and"
    )
    as_a_tree = [(r"layers\.0\.mlp\.(\w+)\.", r"layers/0/mlp/\1/")]
    assert reshard.plan(model, tmp_path / "a", rename=as_a_tree, to="orbax").quantized == TEXT


def test_a_map_moves_both_whole(torch: Oracle, model: Path, tmp_path: Path) -> None:
    reshard.convert(model, tmp_path / "a", map=moves(*reshard.inspect(model).tensors))
    found = torch.ask("dequantised", folder=str(tmp_path / "a"))
    wanted = torch.ask("dequantised", folder=str(model))
    assert found == {f"net.{name}": of for name, of in wanted.items()}
    turned = {
        "map": [
            {"from": UP, "to": "up", "shape": "a b -> b a"},
            {"from": f"{UP}_scale_inv", "to": "up_scale_inv", "shape": "a b -> b a"},
        ]
    }
    assert refused(model, tmp_path / "b", map=turned, select=["up_proj"]) == (
        f"'up' would have '{UP}' in part, in another order or as other numbers: {ABOUT_UP}; move both whole, by rules of the map with 'from' and "
        "'to' alone, or leave both out (drop)"
    )


CUT = (
    f"'{UP}' would be cut at 96 of 384 along dimension 1, inside a block of 128: {ABOUT_UP}, and a slice with a part of a block has no scale "
    "of its own; cut that dimension at multiples of 128 only, or leave it whole (layout)"
)
QUARTERS = split({r"up_proj\.weight$": [None, "tp"]}, tp=4)


@pytest.mark.parametrize("options", [{"to": "orbax"}, {"files": "ranks"}, {"files": "dcp"}, {"to": "dcp"}, {}])  # fmt: skip
def test_a_cut_inside_a_block(model: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    assert refused(model, tmp_path / "a", layout=QUARTERS, **options) == CUT


def test_cuts_between_blocks(torch: Oracle, model: Path, tmp_path: Path) -> None:
    layout = split({r"up_proj\.weight(_scale_inv)?$": [None, "tp"]}, tp=3)
    reshard.convert(model, tmp_path / "ranks", layout=layout, files="ranks")
    reshard.convert(tmp_path / "ranks", tmp_path / "whole", files="shards")
    wanted = torch.ask("dequantised", folder=str(model))
    assert torch.ask("dequantised", folder=str(tmp_path / "whole")) == wanted


def test_cuts_that_are_there_stay(model: Path, tmp_path: Path) -> None:
    """A copy keeps what its source recorded, and chunks are no cuts: every reader puts them together. Files for slices are new cuts."""
    plain = {name: np.array(a) for name, a in reshard.restore(model).items()}
    layout = reshard.LayoutMap(reshard.DeviceMesh((4,), ("tp",), jax.devices()[:4]))
    layout[r"up_proj\.weight$"] = (None, "tp")
    state = {name: array for name, array in plain.items() if "up_proj" in name}
    reshard.save(tmp_path / "orbax", state, layout=layout)
    reshard.convert(tmp_path / "orbax", tmp_path / "again", chunk_bytes=5000)
    assert reshard.verify(tmp_path / "orbax", tmp_path / "again").differences == 0
    said = refused(tmp_path / "orbax", tmp_path / "ranks", to="safetensors", files="ranks")
    assert said == CUT
    other = split({r"up_proj\.weight$": ["tp", None]}, tp=4)
    assert "would be cut at 64 of 256 along dimension 0" in refused(tmp_path / "orbax", tmp_path / "a", layout=other)  # fmt: skip


def test_partitions_are_cuts(model: Path, tmp_path: Path) -> None:
    layout = {"partitions": [{"match": "kv_a_proj.weight$", "fixed_shards": 2}]}
    said = refused(model, tmp_path / "a", layout=layout, to="orbax")
    assert said.startswith(f"'{KV}' would be cut at 288 of 576 along dimension 0, inside a block of 128: ")  # fmt: skip


def test_a_program_takes_codes_as_they_are(model: Path) -> None:
    """It may take one half and scale codes itself, but not by a cast that makes weights of codes."""
    state = reshard.restore(model, select=["up_proj"])
    assert state[UP].dtype == ml_dtypes.float8_e4m3fn
    assert set(reshard.restore(model, select=[r"up_proj\.weight$"])) == {UP}
    like = {UP: np.zeros((256, 384), np.float32)}
    said = (
        f"'{UP}' would be cast from float8_e4m3fn to bfloat16: {ABOUT_UP}, and a cast of either alters the weights. 1 tensor is in the way "
        f"('{UP}'); take them as they are stored (like, cast)"
    )
    with pytest.raises(PlanError) as onto:
        reshard.restore(model, like=like, unexpected="ignore")
    assert str(onto.value) == said.replace("bfloat16", "float32")
    with pytest.raises(PlanError) as cast:
        reshard.restore(model, select=[r"up_proj\.weight$"], cast={"float": "bfloat16"})
    assert str(cast.value) == said
    with pytest.raises(PlanError, match="in part, in another order or as other numbers"):
        reshard.restore(model, map={"map": [{"from": UP, "to": "up", "shape": "a b -> b a"}]}, select=[r"up_proj\.weight$"])  # fmt: skip


def test_shards_are_streamed_between_blocks(model: Path) -> None:
    opened = reshard.open_checkpoint(model)
    thirds = split({r"up_proj\.weight$": [None, "tp"]}, tp=3)
    assert opened.stream_shard(0, layout=thirds).nbytes > 256 * 128
    with pytest.raises(PlanError) as cut:
        opened.stream_shard(0, layout=QUARTERS)
    assert str(cut.value) == CUT
    with pytest.raises(PlanError, match=f"'{DOWN}' would be cast from float8_e4m3fn to bfloat16"):
        opened.stream_shard(0, cast={"float": "bfloat16"})


def test_a_delta_keeps_pairs(model: Path, tmp_path: Path) -> None:
    new = shutil.copytree(model, tmp_path / "new")
    with pytest.raises(PlanError) as raised:
        reshard.delta(model, new, tmp_path / "weight_v000001", select=[r"up_proj\.weight$"])
    assert str(raised.value) == (
        f"'{UP}' would be kept without '{UP}_scale_inv': {ABOUT_UP}; keep both, or leave both out (select, drop)"
    )


def test_plan_says_what_there_is(model: Path, tmp_path: Path) -> None:
    plan = reshard.plan(model, tmp_path / "a", to="orbax")
    assert plan.quantized == plan.to_dict()["quantized"] == TEXT
    reshard.save(tmp_path / "plain", {"w": np.ones((4, 4), "f4")})
    assert "quantized" not in reshard.plan(tmp_path / "plain").to_dict()
