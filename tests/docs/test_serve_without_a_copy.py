"""The page on serving without a copy runs as written: two servers, and programs in the environments of their users."""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.page import Step, is_as_shown, steps
from tests.docs.run_page import DOCS, environment, run_steps
from tests.docs.serving import serving
from tests.oracles.oracle import ENVIRONMENTS
from tests.server.faces.viewing import running

PAGE = DOCS / "how-to" / "serve-without-a-copy.md"
ADDRESS = "http://127.0.0.1:8080"
TORCH = ENVIRONMENTS / "torch" / "bin" / "python"
CLIENTS = {"hf": "torch", "aws": "models"}
"""Programs on the reader's PATH, and the environments that have them."""

pytestmark = pytest.mark.xdist_group("torch")


def test_the_page_runs_as_written(tmp_path: Path) -> None:
    todo = steps(PAGE.read_text("utf-8"))
    places = [n for n, step in enumerate(todo) if step.text.startswith(("reshard view", "reshard serve"))]  # fmt: skip
    view, first_token, second_token, serve = places
    make_programs(tmp_path / "bin")
    run_steps(PAGE, todo[:view], tmp_path)
    with viewed(todo[view], tmp_path) as url:
        run_steps(PAGE, as_read(todo[view + 1 : first_token], url, tmp_path), tmp_path)
    (tmp_path / "training").mkdir()
    for name in ("run", "models"):
        (tmp_path / name).rename(tmp_path / "training" / name)
    settings = tmp_path / "server.toml"
    settings.write_text(settings.read_text().replace("gs://training/llama", str(tmp_path / "training")))  # fmt: skip
    ops, loads = token(todo[first_token], tmp_path), token(todo[second_token], tmp_path)
    entries = tomllib.loads((tmp_path / "tokens.toml").read_text())["tokens"]
    known = f"export OPS={ops} SERVING={loads} SECRET={entries[1]['s3_secret']}"
    words = shlex.split(todo[serve].text)[1:]
    with serving(words, tmp_path, tmp_path / "log") as url:
        rest = [replace(step, text=known) if step.text.startswith("export OPS") else step for step in todo[serve + 1 :]]  # fmt: skip
        run_steps(PAGE, as_read(rest, url, tmp_path), tmp_path)
    assert (tmp_path / "newest" / "model.safetensors").read_bytes() == (
        tmp_path / "llama" / "model.safetensors"
    ).read_bytes()


def make_programs(folder: Path) -> None:
    """A folder of the programs that a reader has in environments of their own."""
    folder.mkdir()
    for name, library in CLIENTS.items():
        (folder / name).symlink_to(ENVIRONMENTS / library / "bin" / name)


def as_read(todo: list[Step], url: str, folder: Path) -> list[Step]:
    """The steps with a server's real address, and programs that need torch in its environment."""
    path = Step("command", 0, f'export PATH="$PATH:{folder / "bin"}" HF_HOME={folder / "home"}')
    of_torch = {step.name for step in todo if step.kind == "file" and "import torch" in step.text}
    made = [path]
    for step in todo:
        text = step.text.replace(ADDRESS, url)
        if step.kind == "command" and text.removeprefix("python ") in of_torch:
            text = text.replace("python", str(TORCH), 1)
        made.append(replace(step, text=text))
    return made


@contextmanager
def viewed(step: Step, folder: Path) -> Iterator[str]:
    """The address of the page's ``reshard view``, whose lines are as the page shows them."""
    with running(folder, *shlex.split(step.text)[2:]) as view:
        said = view.said()
        url = said.partition("HF_ENDPOINT=")[2].partition("/hf")[0]
        assert step.shown
        assert is_as_shown(step.shown, said.replace(url, ADDRESS)), said
        yield url
        assert view.end() == 0


def token(step: Step, folder: Path) -> str:
    """The token that a command makes, which it tells on stderr."""
    done = subprocess.run(
        ["bash", "-c", step.text], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.split()[-1]
