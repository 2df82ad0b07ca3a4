"""Runs a Markdown page as written, in a process and folder of its own, and compares the output that it shows.

::

    def test_the_page_runs(tmp_path: Path) -> None:
        run_page(ROOT / "docs" / "how-to" / "size-a-conversion.md", tmp_path)

``tests.docs.page`` says what the blocks of a page mean. The process sees one CPU device and no Keras
backend, as a reader's does, unless the page says otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.docs.page import Step, is_as_shown, steps
from tests.warm import programs

READER = Path(__file__).with_name("reader.py")
DOCS = Path(__file__).parents[2] / "docs"
OWN_TESTS = (
    "add-a-format.md",
    "first-service.md",
    "training-to-serving.md",
    "buckets.md",
    "hugging-face-hub.md",
    "publish-weights-while-training.md",
    "ray.md",
    "slurm.md",
    "check-weights-in-your-server.md",
    "serve-from-a-training-bucket.md",
)
"""Pages that start a server, which run_page would wait for, or need one, a cluster, an environment or an installation of its own."""
PAGES = sorted(
    page
    for page in [
        *DOCS.glob("how-to/*.md"),
        *DOCS.glob("how-to/many-hosts/*.md"),
        *DOCS.glob("tutorials/*.md"),
    ]
    if page.name not in OWN_TESTS
)
NOT_OF_A_READER = ("XLA_FLAGS", "KERAS_BACKEND", "PYTHONPATH")


@dataclass(frozen=True)
class Did:
    """A step that was done, and what it printed on stdout."""

    step: Step
    said: str


def run_page(
    page: Path, folder: Path, *, skip: Sequence[str] = (), timeout_s: float = 300
) -> list[Did]:
    """Does every step of the page in ``folder``; raises AssertionError at the first that goes wrong.

    Args:
        skip: beginnings of commands that are not run, such as ``"pip install"``; one that begins no
            command of the page is an error.
    """
    return run_steps(page, _but(steps(page.read_text("utf-8")), skip, page), folder, timeout_s)


def run_steps(page: Path, todo: Sequence[Step], folder: Path, timeout_s: float = 300) -> list[Did]:
    """Does these steps of the page in ``folder``, as ``run_page``."""
    with tempfile.TemporaryDirectory() as state:
        listed, said = Path(state) / "steps", Path(state) / "said"
        listed.write_text(json.dumps({"page": str(page), "steps": [asdict(s) for s in todo]}))
        process = subprocess.run(
            [programs() / "python", str(READER), str(listed), str(said)],
            cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        answers = json.loads(said.read_text("utf-8")) if said.exists() else []
    for step, answer in zip(todo, answers, strict=False):
        _check(page, step, answer)
    ended = f"{page.name} ended its interpreter in step {len(answers) + 1} of {len(todo)}"
    assert len(answers) == len(todo), ended + process.stderr
    return [Did(step, answer["said"]) for step, answer in zip(todo, answers, strict=True)]


def environment() -> dict[str, str]:
    """What a reader's shell has: the installed command first, and a terminal of 80 columns."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_OF_A_READER}
    found = f"{programs()}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": found, "COLUMNS": "80", "JAX_PLATFORMS": "cpu"}


def _check(page: Path, step: Step, answer: dict[str, str]) -> None:
    where = f"{page.name}, line {step.line}:\n{step.text}\n"
    assert not answer["wrong"], f"{where}went wrong:\n{answer['wrong']}"
    if step.shown is not None:
        said = answer["said"]
        assert is_as_shown(step.shown, said), f"{where}shows\n{step.shown}\nbut says\n{said}"


def _but(all_steps: list[Step], skip: Sequence[str], page: Path) -> list[Step]:
    typed = [step.text for step in all_steps if step.kind == "command"]
    idle = [words for words in skip if not any(text.startswith(words) for text in typed)]
    assert not idle, f"{page.name} has no command that begins with {idle}"
    return [s for s in all_steps if s.kind != "command" or not s.text.startswith(tuple(skip))]
