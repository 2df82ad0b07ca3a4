"""``reshard merge``: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.cli.app import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ckpt")
    for step in (1, 2, 4):
        weights = np.full((2, 3), step, ml_dtypes.bfloat16)
        reshard.save(folder / f"{step}000", {"w": weights, "count": np.int32(step)})
    return folder


def words(*given: object) -> list[str]:
    return ["merge", *map(str, given)]


def test_it_says_what_was_averaged_with_which_weights(steps: Path, capsys: Capture) -> None:
    out = steps.parent / "told"
    assert run(words(steps, out, "--last", 2, "--from", 1)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "averaged 1 tensor of 2 checkpoints, each with the weight 0.5; copied 1" in said
    assert run(words(steps, out, "--last", 2, "--from", 1)) == 0
    assert "nothing to do" in capsys.readouterr().out
    found = reshard.restore(out)
    assert (found["w"][0, 0], found["count"]) == (3, 2)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (("--weights", "1,0,3"), 3.25),
        (("--weights", "minus-sqrt"), 1 * (1 / 3) ** 0.5 + 2 * ((2 / 3) ** 0.5 - (1 / 3) ** 0.5) + 4 * (1 - (2 / 3) ** 0.5)),
        (("--ema", "0.5"), 2.75),
    ],
)  # fmt: skip
def test_weights(
    steps: Path, tmp_path: Path, capsys: Capture, given: tuple[str, ...], value: float
) -> None:
    ckpts = [steps / f"{n}000" for n in (1, 2, 4)]
    more = ("--from", 3, "--dtype", "float32", "--json", "--select", "w")
    assert run(words(*ckpts, tmp_path / "out", *given, *more)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "merge"
    assert report["merged"].startswith("averaged 1 tensor of 3 checkpoints, with the weights ")
    assert reshard.restore(tmp_path / "out")["w"][0, 0] == np.float32(value)


def test_a_range_maps_and_task_arithmetic(steps: Path, tmp_path: Path) -> None:
    by = tmp_path / "renamed.yaml"
    by.write_text("map:\n  - {from: w, to: v}\n  - {from: count, to: n}\n")
    path = f"{steps}/{{1000..2000..1000}}={by}"
    more = ("--base", f"{steps}/4000={by}", "--scale", 0.5, "--from", 2)  # fmt: skip
    assert run(words(path, tmp_path / "a=b", *more, "--quiet")) == 0
    found = reshard.restore(tmp_path / "a=b")
    assert (found["v"][0, 0], found["n"]) == (4 + 0.5 * (-3 - 2), 2)
    assert run(words(tmp_path / "a=b", tmp_path / "again", "--quiet")) == 0


def test_refusals_name_options(steps: Path, tmp_path: Path, capsys: Capture) -> None:
    pair, out = (steps / "1000", steps / "2000"), tmp_path / "out"
    for given, code, message in (
        ((*pair, out), 3, "by its number from 1 (--from)"),
        ((*pair, out, "--weights", "1"), 1, "give a weight for each (--weights)"),
        ((*pair, out, "--weights", "1,x"), 1, "'1,x'; expected a finite number for each checkpoint, or one of 'linear', 'minus-sqrt'"),
        ((steps, out, "--last", 9), 1, "or ask for fewer (--last)"),
        ((*pair, out, "--scale", "2"), 1, "leave it out (--scale), or name that (--base)"),
        ((*pair, steps / "2000"), 1, "is the source itself; choose another target"),
        ((out,), 2, "alone was given; expected the checkpoints and, last, the one target: reshard merge run/9000 run/10000 averaged"),
        ((*pair, "--target", "=x"), 2, "--target was given; expected the checkpoints and, last, the one target"),
    ):  # fmt: skip
        assert run(words(*given)) == code, message
        assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
