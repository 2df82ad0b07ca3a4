"""``reshard rules``: a map is learned from what a script makes of probes, and held against it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard import rules
from reshard.cli.app import run
from tests.cli import trusted_script
from tests.docs.examples import HELP, help_examples
from tests.docs.walk import ok

Array = npt.NDArray[Any]
Capture = pytest.CaptureFixture[str]


def tiny(path: Path, embed: int, layers: int, heads: int, head: int, hidden: int) -> Path:
    shapes = {
        "embed": (11, embed),
        "q": (embed, layers, heads, head),
        "wi": (layers, embed, hidden),
        "wg": (layers, embed, hidden),
    }
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path)
    return path


def example(folder: Path, *sizes: int) -> tuple[Path, Path]:
    """A model of these sizes, probed and converted by the script."""
    folder.mkdir()
    probes, out = folder / "probes", folder / "out"
    out.mkdir()
    for probe in rules.probe(tiny(folder / "tiny.safetensors", *sizes), probes):
        trusted_script.script(Path(probe), out / Path(probe).name)
    return probes, out


def typed(*words: object) -> int:
    return run([str(word) for word in words])


def test_two_examples_tell_everything(tmp_path: Path, capsys: Capture) -> None:
    first, second = example(tmp_path / "a", 6, 3, 4, 5, 7), example(tmp_path / "b", 8, 5, 6, 9, 10)
    assert typed("rules", "infer", *first, *second) == 0
    said = capsys.readouterr()
    assert said.err == ""
    map_file = tmp_path / "map.yaml"
    map_file.write_text(said.out)
    for probes, out in (first, second):
        assert typed("rules", "check", map_file, probes, out) == 0
        assert "equal: " in capsys.readouterr().out
    random = {
        name: np.random.default_rng(0).standard_normal(array.shape).astype(np.float32)
        for name, array in load_file(tiny(tmp_path / "c.safetensors", 12, 2, 3, 4, 13)).items()
    }
    save_file(random, tmp_path / "full.safetensors")
    trusted_script.script(tmp_path / "full.safetensors", tmp_path / "theirs.safetensors")
    reshard.convert(tmp_path / "full.safetensors", tmp_path / "ours.safetensors", map=map_file)
    assert not reshard.verify(
        tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    ).differences


def test_names_from_a_config(tmp_path: Path, capsys: Capture) -> None:
    probes, out = example(tmp_path / "a", 6, 3, 4, 5, 7)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"hidden": 6, "layers": 3, "model_type": "x", "eps": 1e-6}))
    assert typed("rules", "infer", probes, out, "--config", config, "--size", "ff=7") == 0
    assert "shape: 'layers hidden ff -> ff hidden'" in capsys.readouterr().out


def test_of_two_maps_that_fit_by_shape_check_tells_the_wrong_one(
    tmp_path: Path, capsys: Capture
) -> None:
    probes, out = example(tmp_path / "a", 6, 3, 4, 5, 7)
    right = rules.infer(probes, out).text
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(right.replace("from: wi", "from: X").replace("from: wg", "from: wi").replace("from: X", "from: wg"))  # fmt: skip
    assert typed("rules", "check", wrong, probes, out) == 3
    assert (
        "layers.0.gate: the stored bits differ from what the map makes" in capsys.readouterr().out
    )
    assert typed("rules", "check", wrong, probes, out, "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "rules check"
    assert all(one["differences"] == 6 for one in document["runs"])


def test_the_examples_of_the_help(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their script only writes down what it is asked; commands of reshard without a pipe run in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_script").write_text('#!/bin/sh\necho "$1 $2" >> asked')
    (tmp_path / "their_script").chmod(0o755)

    def do(line: str) -> None:
        if not line.startswith("reshard ") or "|" in line:
            ok(tmp_path, line)
            asked = tmp_path / "asked"
            for pair in asked.read_text().splitlines() if asked.exists() else ():
                trusted_script.convert(*map(Path, pair.split()))
            asked.unlink(missing_ok=True)
            return
        command, _, file = line.partition(" > ")
        assert typed(*shlex.split(command)[1:]) == 0, line
        said = capsys.readouterr().out
        if file:
            Path(file).write_text(said)

    for name, sizes in (("tiny", (9, 3, 4, 8, 11)), ("tiny2", (10, 5, 6, 12, 13))):
        (tmp_path / name).mkdir()
        tiny(tmp_path / name / "model.safetensors", *sizes)
    (tmp_path / "tiny" / "config.json").write_text('{"hidden_size": 9, "num_hidden_layers": 3}')
    probe, run_script, *of_one = HELP["rules"]
    of_group = help_examples("rules")
    for line in (probe, run_script):
        do(line)
        do(line.replace("tiny", "tiny2").replace("probes", "probes2").replace("out", "out2"))
    real = {
        name: np.random.default_rng(ord(name[-1])).standard_normal(array.shape, np.float32)
        for name, array in load_file(tmp_path / "tiny" / "model.safetensors").items()
    }
    save_file(real, tmp_path / "tiny" / "model.safetensors")
    reshard.convert(tmp_path / "tiny", tmp_path / "ckpt" / "1000", to="orbax")
    do("./their_script tiny hf")
    shutil.copy("tiny/config.json", "hf")
    for line in (*of_one, *of_group["infer"], *of_group["check"]):
        do(line)
        assert ".q', shape: " in (tmp_path / "llama.yaml").read_text(), line
    save_file({**real, "opt_state/mu": real["q"]}, tmp_path / "tiny" / "model.safetensors")
    for line in of_group["probe"]:
        shutil.rmtree("probes")
        do(line)


def test_axes_that_are_too_short_for_a_pair_are_named(tmp_path: Path, capsys: Capture) -> None:
    short = tiny(tmp_path / "short.safetensors", 6, 3, 4, 5, 7)
    trusted_script.script(short, tmp_path / "made.safetensors")
    assert typed("rules", "infer", "--pair", short, tmp_path / "made.safetensors") == 3
    assert (
        "layers.0.q is not explained: no source tensor matches it. Axes of fewer than 8 elements are not searched, because short lines "
        "match by chance; probe a tiny model"
    ) in " ".join(capsys.readouterr().err.split())


def test_what_is_not_explained_is_named(tmp_path: Path, capsys: Capture) -> None:
    probes, out = example(tmp_path / "a", 6, 3, 4, 5, 7)
    for file in out.iterdir():
        made = load_file(file)
        made["embed.weight"] = made["embed.weight"] * made["embed.weight"]
        save_file(made, file)
    assert typed("rules", "infer", probes, out) == 3
    assert "not explained: embed.weight is not explained: " in capsys.readouterr().err
    assert typed("rules", "infer", probes, out, "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["problems"]
    assert found["command"] == "rules infer"


def missing_output(probes: Path, out: Path) -> None:  # noqa: ARG001  all take the same
    (out / "run2.safetensors").unlink()


def other_tensors(probes: Path, out: Path) -> None:  # noqa: ARG001  all take the same
    made = load_file(out / "run1.safetensors")
    save_file({**made, "more": made["embed.weight"]}, out / "run1.safetensors")


def other_shape(probes: Path, out: Path) -> None:  # noqa: ARG001  all take the same
    made = load_file(out / "run1.safetensors")
    save_file({**made, "embed.weight": made["embed.weight"][:3].copy()}, out / "run1.safetensors")


def no_probes(probes: Path, out: Path) -> None:  # noqa: ARG001  all take the same
    for file in list(probes.iterdir())[1:]:
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (missing_output, "has no 'run2.safetensors'; put what the script makes of "),
        (other_tensors, "has other tensors than the output of the first probe, such as 'more'; "),
        (other_shape, "'embed.weight' in "),
        (no_probes, "has 1 probes, and at least 4 are made; name the folder that reshard rules probe wrote"),
    ],
)  # fmt: skip
def test_examples_that_are_no_examples(
    tmp_path: Path, capsys: Capture, damage: Callable[[Path, Path], None], said: str
) -> None:
    probes, out = example(tmp_path / "a", 6, 3, 4, 5, 7)
    damage(probes, out)
    assert typed("rules", "infer", probes, out) == 1
    assert said in capsys.readouterr().err


def test_probes_of_orbax_keep_lists_and_are_orbax(tmp_path: Path, capsys: Capture) -> None:
    tree = {"layers": [{"w": np.zeros((3, 4), np.float32)} for _ in range(2)], "step": np.int32(3)}
    reshard.save(tmp_path / "tiny", tree)
    assert typed("rules", "probe", tmp_path / "tiny", tmp_path / "probes", "--drop", "^step$") == 0
    paths = capsys.readouterr().out.split()
    assert paths == [str(tmp_path / "probes" / f"run{n}") for n in range(len(paths))]
    restored = reshard.restore(paths[0])
    assert isinstance(restored["layers"], list)
    assert "step" not in restored
    numbers = np.concatenate([np.asarray(layer["w"]).ravel() for layer in restored["layers"]])
    assert len(set(numbers)) == numbers.size


def test_files_beside_the_weights_are_copied(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    tiny(tmp_path / "tiny" / "model.safetensors", 6, 3, 4, 5, 7)
    (tmp_path / "tiny" / "config.json").write_text("{}")
    for path in rules.probe(tmp_path / "tiny", tmp_path / "probes"):
        assert (Path(path) / "config.json").read_text() == "{}"
        assert list(Path(path).glob("*.safetensors"))


def test_a_folder_that_exists_is_not_filled(tmp_path: Path, capsys: Capture) -> None:
    source = tiny(tmp_path / "tiny.safetensors", 6, 3, 4, 5, 7)
    assert typed("rules", "probe", source, tmp_path) == 1
    assert "exists; choose another, or remove it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: Capture) -> None:
    source = tiny(tmp_path / "tiny.safetensors", 6, 3, 4, 5, 7)
    assert typed("rules", "probe", source, source / "probes", "--json") == 1
    said = json.loads(capsys.readouterr().out)["error"]
    assert f"cannot make the folder '{source}/probes'" in str(said)


def test_dtypes_that_hold_no_probe(tmp_path: Path, capsys: Capture) -> None:
    save_file({"mask": np.zeros(4, bool)}, tmp_path / "a.safetensors")
    assert typed("rules", "probe", tmp_path / "a.safetensors", tmp_path / "probes") == 1
    assert "'mask' is bool, whose elements hold no digit of a probe; leave it out (--drop), or cast it first" in capsys.readouterr().err  # fmt: skip
    assert not (tmp_path / "probes").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "each PROBES needs an OUT; name both folders of each model"),
        (["a", "b", "--config", "none.json"], "--config 'none.json' cannot be read as JSON: "),
        (["a", "b", "--size", "x"], "--size 'x': expected NAME=N, such as heads=32"),
        (
            ["a", "b", "--size", "n=2", "--size", "n=2", "--size", "n=4"],
            "--size gives n as 2 and as 4; give it once",
        ),
    ],
)
def test_words_that_make_no_sense(words: list[str], said: str, capsys: Capture) -> None:
    assert typed("rules", "infer", *words) == 2
    assert said in capsys.readouterr().err
