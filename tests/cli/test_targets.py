"""Several targets on the command line: their names, the table and the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.cli.target_options import NamedTarget, targets_of
from tests.orbax_trees import save_pytree

LAYOUT = "mesh: {axes: [m], shape: [4]}\nrules: [{match: w, axes: [null, m]}]\n"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("serving.yaml=served", NamedTarget("served", layout="serving.yaml")),
        ("a=b/c.yaml=served", NamedTarget("served", layout="a=b/c.yaml")),
        (r"a.yaml=step\=100/x", NamedTarget("step=100/x", layout="a.yaml")),
        ("model=8=served", NamedTarget("served", mesh="model=8")),
        ("data=4,model=2=out/b", NamedTarget("out/b", mesh="data=4,model=2")),
        ("=copy", NamedTarget("copy")),
    ],
)
def test_a_target_is_a_layout_or_a_mesh_and_a_place(text, target):
    assert targets_of(None, None, None, [text]) == [target]


def test_a_layout_file_that_is_named_like_a_mesh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model=8").write_text(LAYOUT)
    assert targets_of(None, None, None, ["model=8=a"]) == [NamedTarget("a", layout="model=8")]


@pytest.mark.parametrize("words", [["plan"], ["plan", "T"], ["convert", "T"]])
def test_a_format_whose_files_need_an_ending(words, tmp_path, capsys):
    """Options are checked before a target is named, which may have none."""
    reshard.save(tmp_path / "c", {"w": np.ones(3)})
    target = tmp_path / "t.weights.h5"
    command, *named = [str(target) if word == "T" else word for word in words]
    assert run([command, str(tmp_path / "c"), *named, "--to", "keras"]) == 0
    assert target.exists() == (command == "convert")
    if named:
        assert run([command, str(tmp_path / "c"), str(tmp_path / "t"), "--to", "keras"]) == 1
        assert f"{str(tmp_path / 't')!r} should have a name that ends in .weights.h5" in capsys.readouterr().err  # fmt: skip


@pytest.mark.parametrize("command", ["convert", "plan"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["src", "dst", "--target", "=a"], "DST 'dst' is given together with --target"),
        (
            ["src", "--layout", "f", "--target", "=a"],
            "--layout 'f' is given together with --target",
        ),
        (
            ["src", "--mesh", "x=2", "--target", "=a"],
            "--mesh 'x=2' is given together with --target",
        ),
        (["src", "--target", "served"], "--target 'served': expected LAYOUT=DST, such as serving"),
        (["src", "--target", "a.yaml="], "--target 'a.yaml=': expected LAYOUT=DST"),
    ],
)
def test_what_is_no_target_is_a_usage_error(command, words, text, capsys):
    assert run([command, *words, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UsageError"
    assert text in error["message"]


@pytest.fixture
def words(tmp_path):
    """The end of a command to two targets; each has its own layout."""
    values = np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32)
    save_pytree(tmp_path / "src", {"w": values, "step": 3}, use_ocdbt=False)
    (tmp_path / "l.yaml").write_text(LAYOUT)
    targets = [f"{tmp_path}/l.yaml={tmp_path}/a", f"={tmp_path}/b"]
    return [
        str(tmp_path / "src"),
        *(w for t in targets for w in ("--target", t)),
        "--cast",
        "w=bfloat16",
    ]


def test_all_targets_are_made_and_shown(words, tmp_path, capsys):
    assert run(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("total: 2 tensors") == 2
    assert "for 2 targets; reads 128 KiB, each byte once" in " ".join(out.split())
    assert run(["convert", *words]) == 0
    out, err = capsys.readouterr()
    assert f"→ {tmp_path}/a" in " ".join(out.split())
    assert f"→ {tmp_path}/b" in " ".join(out.split())
    assert "together: read " in out
    assert err.count("converting ") == 2
    for name in "ab":
        tensors = list(reshard.inspect(tmp_path / name).tensors.values())
        assert tensors[1].spec.dtype == "bfloat16"
    assert run(["convert", *words]) == 0
    assert capsys.readouterr().out.count("nothing to do:") == 2


def test_json_has_a_report_for_each(words, tmp_path, capsys):
    assert run(["plan", *words, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [plan["target"] for plan in planned["plans"]] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert planned["repeated_bytes"] == 0
    assert run(["convert", *words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [report["target"] for report in made["reports"]] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert (
        made["read_bytes"] == made["reports"][0]["read_bytes"] == made["reports"][1]["read_bytes"]
    )
    documented = Path("docs/reference/json-output.md").read_text()
    for key in {*planned, *made} - {"command"}:
        assert f"`{key}`" in documented
