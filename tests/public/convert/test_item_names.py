"""Tensors of a checkpoint with several items keep their names in every output that holds a part of it."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.cli.app import run
from reshard.errors import CorruptError, FormatError, PlanError
from reshard.formats.slices.slice_file import digest_of

MODEL = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "layers": [np.ones(2), np.zeros(2)]}
EMA = {"w": np.full((4, 3), 7, np.float32), "step": 3}
PART = ["model/layers/0", "model/layers/1", "model/w"]


def by_manager(folder):
    with ocp.CheckpointManager(folder / "run") as manager:
        args = {
            name: ocp.args.StandardSave(tree) for name, tree in [("model", MODEL), ("ema", EMA)]
        }
        manager.save(5, args=ocp.args.Composite(meta=ocp.args.JsonSave({"a": 1}), **args))
        manager.wait_until_finished()
    return folder / "run" / "5"


def by_v1(folder):
    v1.save_checkpointables(folder / "five", {"model": MODEL, "ema": EMA})
    return folder / "five"


@pytest.fixture(scope="module", params=[by_manager, by_v1])
def several(request, tmp_path_factory):
    """A checkpoint of two trees, by stock Orbax."""
    return request.param(tmp_path_factory.mktemp("several"))


def names(path):
    return sorted(reshard.inspect(path).tensors)


def convert_part(source, target, **more):
    return reshard.convert(source, target, select=["^model/"], **more)


@pytest.mark.parametrize("style", ["v0", "v1"])
@pytest.mark.parametrize("ocdbt", [False, True])
def test_a_part_keeps_its_names_everywhere(several, tmp_path, style, ocdbt):
    report = convert_part(several, tmp_path / "part", style=style, ocdbt=ocdbt)
    assert sorted(t.target for t in report.tensors) == PART
    part = tmp_path / "part"
    assert names(part) == PART
    assert sorted(t.name for t in reshard.verify(part).tensors) == PART
    assert reshard.verify(part).differences == 0
    restored = reshard.restore(part, select=["^model/layers/"])
    assert list(restored) == ["model"]
    np.testing.assert_array_equal(restored["model"]["layers"][0], np.ones(2))
    stream = reshard.open_checkpoint(part).stream("model/w", "1:2,:")
    assert b"".join(stream) == MODEL["w"][1].tobytes()


@pytest.mark.parametrize("first", ["v0", "v1"])
@pytest.mark.parametrize("second", ["v0", "v1"])
def test_a_part_of_a_part_keeps_its_names(several, tmp_path, first, second):
    convert_part(several, tmp_path / "one", style=first)
    changes = {"drop": ["^model/layers/"], "rename": [("^model/w$", "model/kernel")]}
    report = reshard.convert(tmp_path / "one", tmp_path / "two", style=second, **changes)
    assert [(t.source, t.target) for t in report.tensors] == [("model/w", "model/kernel")]
    assert names(tmp_path / "two") == ["model/kernel"]
    assert (tmp_path / "two" / "model").is_dir()
    restored = reshard.restore(tmp_path / "two")
    np.testing.assert_array_equal(restored["model"]["kernel"], MODEL["w"])


def test_an_item_opened_by_itself_has_names_without_it(several, tmp_path):
    convert_part(several, tmp_path / "part")
    assert names(tmp_path / "part" / "model") == ["layers/0", "layers/1", "w"]
    assert reshard.verify(several / "model", tmp_path / "part" / "model").differences == 0
    reshard.convert(several / "model", tmp_path / "alone")
    assert names(tmp_path / "alone") == ["layers/0", "layers/1", "w"]


def test_a_rename_into_another_item(several, tmp_path):
    rename = [("^ema/", "model/")]
    reshard.convert(several, tmp_path / "moved", select=["^ema/"], rename=rename)
    assert names(tmp_path / "moved") == ["model/step", "model/w"]
    assert reshard.restore(tmp_path / "moved")["model"]["step"] == 3
    with pytest.raises(
        FormatError, match="begins with its item, which must be one of: model; to convert"
    ):
        reshard.convert(tmp_path / "moved", tmp_path / "no", rename=[("^model/", "")])


def test_several_targets_each_keep_their_names(several, tmp_path):
    targets = [reshard.Target(tmp_path / i, select=[f"^{i}/"]) for i in ("model", "ema")]
    reshard.convert_all(several, targets)
    assert names(tmp_path / "model") == PART
    assert names(tmp_path / "ema") == ["ema/step", "ema/w"]


def test_one_tree_by_other_software_has_no_item_in_its_names(tmp_path):
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(model=ocp.args.StandardSave(MODEL), m=ocp.args.JsonSave({}))
        manager.save(1, args=args)
    reshard.convert(tmp_path / "run" / "1", tmp_path / "out", select=["^w$"])
    assert names(tmp_path / "run" / "1") == ["layers/0", "layers/1", "w"]
    assert names(tmp_path / "out") == ["w"]
    assert b"item_names" not in (tmp_path / "out" / "slices.json").read_bytes()


def test_stock_orbax_restores_a_part_of_a_step(tmp_path):
    convert_part(by_manager(tmp_path), tmp_path / "out" / "5")
    with ocp.CheckpointManager(tmp_path / "out") as manager:
        assert manager.latest_step() == 5
        args = ocp.args.Composite(model=ocp.args.StandardRestore(), meta=ocp.args.JsonRestore())
        found = manager.restore(5, args=args)
    np.testing.assert_array_equal(found["model"]["w"], MODEL["w"])
    assert found["meta"] == {"a": 1}


def test_stock_v1_loads_a_part(tmp_path):
    convert_part(by_v1(tmp_path), tmp_path / "out")
    found = v1.load_checkpointables(tmp_path / "out")
    np.testing.assert_array_equal(found["model"]["w"], MODEL["w"])


def test_a_layout_file_and_rules_use_the_same_names(several, tmp_path):
    convert_part(several, tmp_path / "part")
    layout = {
        "mesh": {"axes": ["x"], "shape": [2]},
        "rules": [{"match": "^model/w$", "axes": ["x"]}],
    }
    again = reshard.convert(
        tmp_path / "part", tmp_path / "again", layout=layout, cast={"^model/w$": "bfloat16"}
    )
    assert again.warnings == ()
    w = reshard.inspect(tmp_path / "again").tensors["model/w"]
    assert (w.spec.dtype, w.spec.layout.axes) == ("bfloat16", ("x", None))
    with pytest.raises(PlanError, match="matches none of the 3 names"):
        reshard.plan(tmp_path / "part", tmp_path / "no", select=["^w$"])


def test_a_part_is_recognised_as_finished(several, tmp_path):
    assert not convert_part(several, tmp_path / "part").already_done
    again = convert_part(several, tmp_path / "part")
    assert again.already_done
    assert sorted(t.target for t in again.tensors) == PART


def test_a_fingerprint_keeps_the_names(several, tmp_path):
    convert_part(several, tmp_path / "part")
    found = reshard.fingerprint(tmp_path / "part", overwrite=True)
    assert sorted(found.tensors) == PART
    assert names(tmp_path / "part") == PART
    assert reshard.verify(tmp_path / "part").differences == 0


def test_without_its_record_a_part_is_any_tree(several, tmp_path):
    """Also what versions wrote that did not record it."""
    convert_part(several, tmp_path / "part")
    (tmp_path / "part" / "slices.json").unlink()
    assert names(tmp_path / "part") == ["layers/0", "layers/1", "w"]
    assert list(reshard.restore(tmp_path / "part")) == ["layers", "w"]


def test_a_record_that_says_nonsense_is_refused(several, tmp_path):
    convert_part(several, tmp_path / "part")
    path = tmp_path / "part" / "slices.json"
    body = path.read_bytes().replace(b'"item_names": true', b'"item_names": "yes"')
    body = body[: body.rindex(b': "') + 3]
    path.write_bytes(body + digest_of(body).encode() + b'"}\n')
    with pytest.raises(CorruptError, match="the file has a item_names of the wrong kind: yes"):
        reshard.inspect(tmp_path / "part")


def test_the_command_shows_one_set_of_names(several, tmp_path, capsys):
    part = str(tmp_path / "part")
    assert run(["convert", str(several), part, "--select", "^model/", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert run(["inspect", part, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    found = {t["target"] for t in made["tensors"]}
    assert found == {t["name"] for t in listed["tensors"]} == set(PART)
    assert {t["item"] for t in listed["tensors"]} == {"model"}


def test_live_saves_have_no_item_in_their_names(tmp_path):
    reshard.save(tmp_path / "c", {"model": {"w": jnp.ones(3)}})
    assert names(tmp_path / "c") == ["model/w"]
    assert list(reshard.restore(tmp_path / "c")) == ["model"]
