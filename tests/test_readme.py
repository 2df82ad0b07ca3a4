"""What README and docs say is so: examples run, options, targets, links and layout files exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import typer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from reshard.cli.app import make_app, run
from reshard.layout.layout_file import load_layout
from tests.server.live import environment, wait_for_address

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "layout-files.md",
    ROOT / "docs" / "json-output.md",
    ROOT / "docs" / "live-weights.md",
    ROOT / "docs" / "differences.md",
)
LINKED = (
    *PAGES,
    ROOT / "docs" / "service.md",
    ROOT / "docs" / "reliability.md",
    ROOT / "deploy" / "README.md",
)
OF_OTHER_PROGRAMS = {"--strict"}  # mypy's


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code of one language on a page."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command behind a dollar sign, lines that end in a backslash joined."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)


RESHARD = [words[1:] for words in commands(README) if words[0] == "reshard" and words[1] != "serve"]
"""But for what runs until it is stopped: that has a test of its own."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train/step_1000``, saved by stock Orbax on 4×2 devices."""
    folder = tmp_path_factory.mktemp("readme")
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    split = NamedSharding(mesh, PartitionSpec("data", "model"))
    values = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    params = {"embed": values, "layers": {"0": {"kernel": values + 1}, "1": {"kernel": values + 2}}}
    with ocp.StandardCheckpointer() as checkpointer:
        tree = jax.device_put({"params": params, "mu": {"kernel": values}}, split)
        checkpointer.save(folder / "train" / "step_1000", tree)
    return folder


@pytest.fixture
def at_work(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder as README has it: the checkpoint, and its layout file."""
    shutil.copytree(trained / "train", tmp_path / "train")
    (tmp_path / "serving.yaml").write_text(blocks(README, "yaml")[0], "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", [w for w in RESHARD if w[0] != "demo"], ids=" ".join)
def test_each_command_of_the_readme_works(
    at_work: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "verify":
        assert run(["convert", *words[1:]]) == 0
    assert run(words) == 0, capsys.readouterr().err
    assert (at_work / "serve").exists() == (words[0] in ("convert", "verify"))


def test_the_two_minutes_of_the_service(
    at_work: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (install,) = (
        words
        for words in commands(README)
        if words[:2] == ["pip", "install"] and "server" in words[2]
    )
    assert install[2] == ".[server]"
    (serve,) = (words for words in commands(README) if words[:2] == ["reshard", "serve"])
    (curl,) = (words for words in commands(README) if words[0] == "curl")
    words = [word.replace("/srv/checkpoints", str(at_work)) for word in serve[1:]]
    with serving(words, tmp_path_factory.mktemp("server")) as url:
        assert curl[-1].startswith("http://127.0.0.1:8080/")
        asked = [*curl[:-1], curl[-1].replace("http://127.0.0.1:8080", url)]
        done = subprocess.run(
            [*asked, "--no-progress-meter"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        path = f"{url}/v1/conversions/{json.loads(done.stdout)['id']}"
        with httpx.stream("GET", f"{path}/events", timeout=120) as events:
            assert [x for x in events.iter_lines() if x.startswith("event:")][-1] == "event: end"
        ended = httpx.get(path).json()
        assert ended["state"] == "succeeded", ended["error"]
    assert (at_work / "serve" / "step_1000" / "_METADATA").exists()


@contextmanager
def serving(words: list[str], folder: Path) -> Iterator[str]:
    """The URL of a server that was started with these words, but on a free port."""
    command, log = [sys.executable, "-m", "reshard", *words, "--port", "0"], folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=folder, env=environment()
        )
    try:
        yield wait_for_address(process, log)
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def test_the_readme_shows_every_command() -> None:
    group = typer.main.get_command(make_app())
    assert isinstance(group, typer.core.TyperGroup)
    assert {words[0] for words in RESHARD} | {"demo", "serve"} == set(group.commands)


def test_the_python_of_the_readme_runs(at_work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks(README, "python"):
        exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    said = capsys.readouterr().out
    assert "4 tensors, 32768 bytes" in said
    assert "64 32 22,21:0,32" in said
    assert (at_work / "serve" / "step_1000" / "_METADATA").exists()


def known_options() -> set[str]:
    """Every option of every command."""
    group = typer.main.get_command(make_app())
    assert isinstance(group, typer.core.TyperGroup)
    every = [group, *group.commands.values()]
    return {option for command in every for p in command.params for option in p.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_option_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text("utf-8")))
    assert named - OF_OTHER_PROGRAMS <= known_options()


def test_the_check_of_options_can_fail() -> None:
    assert "--layout" in known_options()
    assert "--resume" not in known_options()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    code = re.findall(r"(?:`|^\$ )make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)
    assert set(code) <= targets


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "layout-files.md"], ids=lambda p: p.name)
def test_layout_files_are_read(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        (tmp_path / "layout.yaml").write_text(block, "utf-8")
        assert load_layout(tmp_path / "layout.yaml").rules


def test_every_key_of_a_layout_file_is_documented() -> None:
    from reshard.layout.layout_file import KEYS

    text = (ROOT / "docs" / "layout-files.md").read_text("utf-8")
    headings = ", ".join(re.findall(r"^## (.*)$", text, re.MULTILINE)).split(", ")
    assert set(KEYS) <= set(headings)


def test_a_layout_file_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"mesh": {"axes": ["model"], "shape": [8]}}))
    assert load_layout(path).mesh is not None
