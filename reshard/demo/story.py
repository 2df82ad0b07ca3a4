"""The demo, step by step: every step is a command, echoed as you would type it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from reshard.errors import ReshardError, TargetExistsError
from reshard.version import how_to_install

NEEDED = {"jax": "jax", "optax": "optax", "orbax.checkpoint": "orbax-checkpoint"}

TRAINING, SERVING, LAYOUT_FILE = "train", "served", "serving.yaml"
TRAINED, SERVED = f"{TRAINING}/1000", f"{SERVING}/1000"

LAYOUT = """\
# Serving wants eight devices in a row: each has an eighth of every matrix.
mesh: {axes: [model], shape: [8]}
rules:
  - {match: "embedding", axes: [model, null]}
  - {match: "(query|key|value|up)/kernel", axes: [null, model]}
  - {match: "(out|down)/kernel", axes: [model, null]}
unmatched: replicate
"""


class StoryStep(Struct, frozen=True):
    """One command of the demo: its purpose, and its words (after ``reshard`` or ``python``)."""

    title: str
    program: str
    words: tuple[str, ...]

    @property
    def typed(self) -> str:
        """The command as a user would type it."""
        return f"{self.program} {shlex.join(self.words)}"

    @property
    def command(self) -> list[str]:
        """The same with this very interpreter."""
        module = ["-m", "reshard"] if self.program == "reshard" else []
        return [sys.executable, *module, *self.words]


STEPS = (
    StoryStep(
        "A training job saves its step 1000 with Orbax, from a mesh of 4×2 devices",
        "python",
        ("-m", "reshard.demo.training_job", TRAINING),
    ),
    StoryStep("What is in that checkpoint", "reshard", ("inspect", TRAINED)),
    StoryStep("How serving wants it", "reshard", ("layout", LAYOUT_FILE, TRAINED)),
    StoryStep(
        "What the conversion will move, before a byte moves",
        "reshard",
        ("plan", TRAINED, SERVED, "--layout", LAYOUT_FILE),
    ),
    StoryStep(
        "The conversion: no devices, bounded memory",
        "reshard",
        ("convert", TRAINED, SERVED, "--layout", LAYOUT_FILE),
    ),
    StoryStep("The proof", "reshard", ("verify", TRAINED, SERVED)),
    StoryStep(
        "A serving job restores it with stock Orbax on 8 devices and compares bit by bit",
        "python",
        ("-m", "reshard.demo.serving_job", TRAINING, SERVING),
    ),
)


def run_demo(directory: Path | None = None) -> None:
    """Run every step in ``directory``, which is kept, or in a temporary one, which is removed.

    Takes some twenty seconds, most of them for importing and compiling. Raises ReshardError if
    a needed package is missing or a step fails, TargetExistsError if the directory has the
    outcome of another run.
    """
    _check_packages()
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="reshard-demo-") as folder:
            _run_steps(Path(folder))
        return
    directory.mkdir(parents=True, exist_ok=True)
    _check_empty(directory)
    _run_steps(directory)
    _say(f"\nEverything is kept in {directory}")


def _check_packages() -> None:
    missing = [package for module, package in NEEDED.items() if not _is_installed(module)]
    if missing:
        raise ReshardError(
            f"reshard demo needs {', '.join(NEEDED.values())}; not installed: {', '.join(missing)}; "
            f"{how_to_install('demo')}"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _check_empty(directory: Path) -> None:
    there = [n for n in (TRAINING, SERVING, LAYOUT_FILE) if (directory / n).exists()]
    if there:
        raise TargetExistsError(
            f"{directory / there[0]} already exists; remove it or name another --dir for the demo"
        )


def _run_steps(directory: Path) -> None:
    started = time.monotonic()
    (directory / LAYOUT_FILE).write_text(LAYOUT, encoding="utf-8")
    for number, step in enumerate(STEPS, 1):
        _say(f"\n\033[1m{number}. {step.title}\033[0m")
        if step.words[0] == "layout":
            _say(f"$ cat {LAYOUT_FILE}\n{LAYOUT}")
        _run(step, directory)
    seconds = time.monotonic() - started
    _say(f"\nDone in {seconds:.0f} s: saved on 4×2 devices, served on 8, every bit the same.")


def _run(step: StoryStep, directory: Path) -> None:
    _say(f"$ {step.typed}")
    code = subprocess.run(
        step.command, cwd=directory, env=_environment(), stdin=subprocess.DEVNULL, check=False
    ).returncode
    if code:
        raise ReshardError(
            f"the demo expected `{step.typed}` to succeed, but it ended with exit code {code}; "
            "what it said is above"
        )


def _environment() -> dict[str, str]:
    """This process's environment, in which a child finds the same reshard from any folder."""
    house = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{house}{os.pathsep}{known}" if known else house}


def _say(line: str) -> None:
    if not sys.stdout.isatty():
        line = line.replace("\033[1m", "").replace("\033[0m", "")
    print(line, flush=True)
