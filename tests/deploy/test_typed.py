"""A user's program against the installed wheel, under ``mypy --strict``: right calls pass, wrong ones are found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.deploy.deployed import Installation

pytestmark = pytest.mark.xdist_group("deploy")

PROGRAM = """
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import reshard
from reshard_server.client import Client


@dataclass
class State:
    step: int
    kernel: npt.NDArray[np.float32]


def loaded(state: State) -> State:
    return reshard.restore("run", like=state, step="latest", max_memory="1GiB")


def moved(source: str, layout: reshard.LayoutMap) -> int:
    planned = reshard.plan(source, "target", layout=layout)
    report: reshard.ConversionReport = reshard.convert(
        source, "target", layout=layout, max_memory="512MiB", progress=reshard.progress_bar()
    )
    names: list[str] = [tensor.target for tensor in report.tensors]
    return report.moved_bytes + planned.peak_bytes + len(names)


def described(path: str) -> list[str]:
    found = reshard.inspect(path)
    return [f"{name}: {info.spec.dtype} in {info.shards}" for name, info in found.tensors.items()]


def equal(a: str, b: str) -> bool:
    try:
        return reshard.verify(a, b).differences == 0
    except reshard.MissingError as error:
        print(error.filename)
        return False


def asked(url: str) -> str:
    with Client(url, "token") as client:
        return client.convert("data/a", "data/b", mesh="model=8").id


mesh = reshard.DeviceMesh((2, 4), ("data", "model"))
layouts = reshard.LayoutMap(mesh=mesh)
layouts["kernel"] = reshard.TensorLayout((None, "model"))
layouts["bias"] = ("model",)
"""

WRONG = {
    'reshard.convert("a", "b", max_memmory="1GiB")': 'Unexpected keyword argument "max_memmory"',
    'reshard.convert("a")': "Missing positional argument",
    'reshard.convert("a", "b").moved_byte': 'has no attribute "moved_byte"',
    'reshard.restore("a", like=1).nothing': '"int" has no attribute "nothing"',
    'reshard.restore("a", missing="kept")': 'No overload variant of "restore" matches',
    "reshard.TensorLayout(8)": 'Argument 1 to "TensorLayout" has incompatible type "int"',
    'reshard.verify("a", "b", progres=None)': 'Unexpected keyword argument "progres"',
    "reshard.no_such_name": 'has no attribute "no_such_name"',
}


@pytest.fixture(scope="module")
def checked(image: Installation, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """What mypy says of the program with all wrong lines behind it, and the lines of the file."""
    program = tmp_path_factory.mktemp("typed") / "program.py"
    lines = [*PROGRAM.splitlines(), *WRONG]
    program.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(image.python), "--no-incremental",
         "--cache-dir", str(program.parent), "--config-file=", str(program)],
        capture_output=True, text=True, cwd=program.parent, timeout=300,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout, lines


def test_a_right_program_passes(checked: tuple[str, list[str]]) -> None:
    said, _ = checked
    lines = {int(line) for line in re.findall(r"program\.py:(\d+): error", said)}
    right = set(range(1, len(PROGRAM.splitlines()) + 1))
    assert not lines & right, said


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_line_is_found(checked: tuple[str, list[str]], wrong: str) -> None:
    said, lines = checked
    number = lines.index(wrong) + 1
    told = [line for line in said.splitlines() if f"program.py:{number}: error" in line]
    assert any(WRONG[wrong] in line for line in told), said


def test_both_packages_of_the_wheel_say_that_they_are_typed(image: Installation) -> None:
    site = next(image.folder.glob("lib/python*/site-packages"))
    assert (site / "reshard" / "py.typed").is_file()
    assert (site / "reshard_server" / "py.typed").is_file()
