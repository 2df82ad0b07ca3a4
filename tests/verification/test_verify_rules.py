"""``verify`` uses the rules that a checkpoint records, and proves them tensor by tensor."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.cli.app import run
from reshard.errors import PlanError
from tests.orbax_trees import put, save_standard
from tests.verification.slice_records import rewrite
from tests.verification.training_state import PARAMS, STATE

RULES = {
    "select": ["^params/", "^key$"],
    "drop": ["scale$"],
    "rename": [("^params/", "model/")],
    "cast": {"kernel$": "bfloat16"},
}


def told(found):
    return {
        t.name: (t.status, t.source, t.comparison, t.source_dtype, t.target_dtype)
        for t in found.tensors
    }


MADE = {
    "model/dense/kernel": ("equal", "params/dense/kernel", "cast", "float32", "bfloat16"),
    "model/dense/bias": ("equal", "params/dense/bias", "exact", "float32", "float32"),
    "key": ("equal", "key", "exact", "uint32", "uint32"),
}


def change_bit(checkpoint, part):
    """Flips a bit in the middle of the largest file whose path holds ``part``, but keeps all records true."""
    files = [p for p in checkpoint.rglob("*") if p.is_file() and part in str(p)]
    path = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("options", [{}, {"ocdbt": True}, {"style": "v1"}, {"compression": "zstd"}])
def test_what_rules_made_needs_no_flags(trained, tmp_path, options):
    reshard.convert(trained, tmp_path / "b", **RULES, **options)
    found = reshard.verify(trained, tmp_path / "b")
    assert told(found) == MADE
    assert (found.differences, found.warnings[:-1], found.rules and found.rules.from_) == (
        0,
        (),
        "recorded",
    )
    assert found.rules.cast == (("kernel$", "bfloat16"),)
    everything = set(reshard.inspect(trained).tensors)
    assert set(found.dropped) == everything - {t.source for t in found.tensors}
    assert len(found.dropped) == 9


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("tensor", ["kernel", "bias"])
def test_a_changed_bit_is_found_on_either_side(trained, tmp_path, side, tensor):
    paths = {"a": tmp_path / "a", "b": tmp_path / "b"}
    reshard.convert(trained, paths["a"])
    reshard.convert(paths["a"], paths["b"], **RULES)
    assert reshard.verify(paths["a"], paths["b"]).differences == 0
    name = {"a": "params", "b": "model"}[side]
    change_bit(paths[side], f"{name}.dense.{tensor}/c")
    found = reshard.verify(paths["a"], paths["b"])
    assert {t.name: t.status for t in found.tensors if t.is_difference} == {
        f"model/dense/{tensor}": "damaged"
    }


def test_rules_of_a_layout_file_count(trained, tmp_path):
    layout = {
        "mesh": {"axes": ["x"], "shape": [4]},
        "rules": [{"match": "kernel$", "axes": ["x"]}],
        "select": ["^params/"],
        "cast": [{"match": "kernel$", "dtype": "float16"}],
    }
    reshard.convert(trained, tmp_path / "b", layout=layout, rename=[("^params/", "")])
    found = reshard.verify(trained, tmp_path / "b")
    assert found.differences == 0
    assert {t.name: (t.source, t.comparison) for t in found.tensors} == {
        "dense/kernel": ("params/dense/kernel", "cast"),
        "dense/bias": ("params/dense/bias", "exact"),
        "scale": ("params/scale", "exact"),
    }
    assert found.rules.select == ("^params/",)


def test_a_part_of_several_items(tmp_path):
    trees = {
        "model": {"w": put(PARAMS["dense"]["kernel"])},
        "ema": {"w": put(PARAMS["dense"]["kernel"])},
    }
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        manager.save(5, args=ocp.args.Composite(**args))
    v1.save_checkpointables(tmp_path / "v1", trees)
    for number, source in enumerate([tmp_path / "run" / "5", tmp_path / "v1"]):
        b = tmp_path / f"b{number}"
        reshard.convert(source, b, select=["^model/"], cast={".": "bfloat16"})
        found = reshard.verify(source, b)
        assert told(found) == {"model/w": ("equal", "model/w", "cast", "float32", "bfloat16")}
        assert (found.dropped, found.differences) == (("ema/w",), 0)
        moved = tmp_path / f"moved{number}"
        reshard.convert(source, moved, select=["^ema/"], rename=[("^ema/", "model/")])
        found = reshard.verify(source, moved)
        assert told(found) == {"model/w": ("equal", "ema/w", "exact", "float32", "float32")}
        assert found.dropped == ("model/w",)


def test_several_targets_each_record_their_rules(trained, tmp_path):
    goals = [
        reshard.Target(tmp_path / "half", cast={"kernel$": "bfloat16"}, select=["^params/"]),
        reshard.Target(tmp_path / "step", select=["^step$"]),
    ]
    reshard.convert_all(trained, goals)
    for goal in goals:
        assert reshard.verify(trained, goal.target).differences == 0
    assert told(reshard.verify(trained, tmp_path / "step")) == {
        "step": ("equal", "step", "exact", "int64", "int64")
    }


def test_two_made_alike_are_compared_directly(trained, tmp_path):
    for name in ("one", "two"):
        reshard.convert(trained, tmp_path / name, **RULES)
    found = reshard.verify(tmp_path / "one", tmp_path / "two")
    assert (found.differences, found.rules, found.dropped, found.warnings) == (0, None, (), ())
    assert {t.comparison for t in found.tensors} == {"exact"}


def test_two_that_swap_names_alike_are_compared_directly(tmp_path):
    source = save_standard(tmp_path / "a", {"u": np.zeros(3), "v": np.ones(3)})
    swap = [("^u$", "v"), ("^v$", "u")]
    for name in ("one", "two"):
        reshard.convert(source, tmp_path / name, rename=swap)
    assert reshard.verify(tmp_path / "one", tmp_path / "two").differences == 0
    assert reshard.verify(source, tmp_path / "one").differences == 0
    assert reshard.verify(source, tmp_path / "one", rename=[]).differences == 2


def test_a_chain_has_no_record_and_flags_do_it(trained, tmp_path):
    reshard.convert(trained, tmp_path / "b", select=["^params/"], rename=[("^params/", "")])
    reshard.convert(
        tmp_path / "b", tmp_path / "c", cast={"kernel$": "float16"}, rename=[("^dense/", "d/")]
    )
    assert reshard.verify(tmp_path / "b", tmp_path / "c").differences == 0
    lost = reshard.verify(trained, tmp_path / "c")
    assert lost.differences
    assert any("was made of another tree than that of" in w for w in lost.warnings)
    found = reshard.verify(
        trained,
        tmp_path / "c",
        select=["^params/"],
        rename=[("^params/dense/", "d/"), ("^params/", "")],
        cast={"kernel$": "float16"},
    )
    assert (found.differences, found.rules and found.rules.from_) == (0, "given")


def test_swapped_source_and_target_are_reported(trained, tmp_path):
    reshard.convert(trained, tmp_path / "b", **RULES)
    found = reshard.verify(tmp_path / "b", trained)
    assert found.differences
    text = f"reshard verify {trained} {tmp_path / 'b'} compares them by the rules"
    assert any(text in warning for warning in found.warnings)


def test_another_step_of_the_same_tree_differs(trained, tmp_path):
    later = jax.tree.map(lambda x: x + 1 if isinstance(x, np.ndarray | float | int) else x, STATE)
    other = save_standard(
        tmp_path / "a", jax.tree.map(lambda x: put(x) if isinstance(x, np.ndarray) else x, later)
    )
    reshard.convert(trained, tmp_path / "b", **RULES)
    found = reshard.verify(other, tmp_path / "b")
    assert {t.name: t.status for t in found.tensors} == {
        "model/dense/kernel": "different",
        "model/dense/bias": "different",
        "key": "equal",
    }


def test_given_rules_take_the_place_of_recorded_ones(trained, tmp_path):
    reshard.convert(trained, tmp_path / "b", **RULES)
    found = reshard.verify(
        trained, tmp_path / "b", select=["^params/"], rename=[("^params/", "model/")]
    )
    assert {t.name: (t.status, t.detail) for t in found.tensors} == {
        "model/dense/kernel": ("different", "dtype float32 in A, bfloat16 in B"),
        "model/dense/bias": ("equal", ""),
        "params/scale": ("only in A", "B has no tensor 'model/scale'"),
        "key": ("only in B", "the rules leave out 'key' of A"),
    }
    other = reshard.verify(trained, tmp_path / "b", **{**RULES, "cast": {"kernel$": "float16"}})
    assert [t.detail for t in other.tensors if t.is_difference] == [
        "dtype float32 in A, cast to float16, bfloat16 in B"
    ]
    with pytest.raises(PlanError, match=r"select '\^nothing' matches none of the"):
        reshard.verify(trained, tmp_path / "b", select=["^nothing"])
    with pytest.raises(PlanError, match="but there is no B; name it, or leave them out"):
        reshard.verify(trained, select=["^params/"])


def test_a_tensor_lost_after_the_conversion_is_found(trained, tmp_path):
    """Its tree was cut and the record made anew, so that nothing but the count tells."""
    reshard.convert(trained, tmp_path / "b", select=["^params/"])
    path = tmp_path / "b" / "_METADATA"
    document = json.loads(path.read_bytes())
    (key,) = [k for k in document["tree_metadata"] if "bias" in k]
    del document["tree_metadata"][key]
    path.write_text(json.dumps(document))
    shutil.rmtree(tmp_path / "b" / "params.dense.bias")
    reshard.fingerprint(tmp_path / "b", overwrite=True)
    found = reshard.verify(trained, tmp_path / "b")
    assert found.damage == (f"{tmp_path / 'b'} has 2 tensors, but records that 3 were made",)


def test_a_fingerprint_keeps_the_record(trained, tmp_path):
    reshard.convert(trained, tmp_path / "b", **RULES)
    reshard.fingerprint(tmp_path / "b", overwrite=True)
    assert told(reshard.verify(trained, tmp_path / "b")) == MADE


def test_without_a_record_names_are_compared(trained, tmp_path):
    """As what versions wrote that recorded no rules."""
    reshard.convert(trained, tmp_path / "b", select=["^params/"])
    rewrite(tmp_path / "b" / "slices.json", lambda document: document.pop("made"))
    found = reshard.verify(trained, tmp_path / "b")
    assert {t.status for t in found.tensors if t.is_difference} == {"only in A"}
    assert reshard.verify(trained, tmp_path / "b", select=["^params/"]).differences == 0


@pytest.mark.parametrize("files", ["one", "shards", "ranks", "dcp"])
def test_every_form_of_safetensors_records_its_rules(trained, tmp_path, files):
    """A single file has its record in its header, and not beside it."""
    rules = {"drop": ["^opt/", "^key$"], "rename": [("^params/", "model/")]}
    mesh = reshard.DeviceMesh((2,), ("x",))
    target = tmp_path / "t"
    reshard.convert(trained, target, to="safetensors", files=files, mesh=mesh, **rules)
    found = reshard.verify(trained, target)
    assert found.differences == 0
    assert {t.source for t in found.tensors if t.name.startswith("model/")} == {
        "params/dense/kernel", "params/dense/bias", "params/scale",
    }  # fmt: skip


def test_the_command(trained, tmp_path, capsys):
    source, b = str(trained), str(tmp_path / "b")
    flags = ["--select", "^params/", "--rename", "^params/=model/", "--cast", "kernel$=bfloat16"]
    assert run(["convert", source, b, *flags]) == 0
    capsys.readouterr()
    assert run(["verify", source, b, "--all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "rules that B records: select ^params/, rename ^params/=model/, cast kernel$=bfloat16"
        in shown
    )
    assert "left out by the rules: 9 tensors of A: " in shown
    assert "equal: 3 of 3 tensors (2 exact, 1 cast float32 → bfloat16) and" in shown
    assert run(["verify", source, b, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rules"] == {
        "from": "recorded", "select": ["^params/"], "drop": [], "rename": [["^params/", "model/"]],
        "cast": [["kernel$", "bfloat16"]],
    }  # fmt: skip
    assert len(document["dropped"]) == 9
    (kernel,) = [t for t in document["tensors"] if t["name"] == "model/dense/kernel"]
    assert (kernel["source"], kernel["comparison"]) == ("params/dense/kernel", "cast")
    assert (kernel["source_dtype"], kernel["target_dtype"]) == ("float32", "bfloat16")
    assert run(["verify", source, b, *flags[:4]]) == 3
    assert "dtype float32 in A, bfloat16 in B" in " ".join(capsys.readouterr().out.split())
    assert run(["verify", source, b, *flags]) == 0
    assert run(["verify", source, "--select", "^params/"]) == 1
