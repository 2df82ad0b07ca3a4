"""What README and docs say is so: examples run, options, targets, links and layout files exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer

from reshard.cli.app import make_app
from reshard.layout.read_layout import load_layout
from tests.docs.page import code_of
from tests.docs.run_page import Did, run_page
from tests.docs.serving import serving
from tests.warm import programs

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "reference" / "layout-files.md",
    ROOT / "docs" / "reference" / "json-output.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name == "how-to"),
    ROOT / "docs" / "reference" / "live-weights.md",
    ROOT / "docs" / "reference" / "compared-with-keras-and-tensorflow.md",
)
LINKED = (
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *PAGES,
    *sorted((ROOT / "docs").glob("*/service/*.md")),
    *sorted((ROOT / "docs").glob("how-to/many-hosts/*.md")),
    ROOT / "docs" / "explanation" / "service.md",
    ROOT / "docs" / "tutorials" / "first-service.md",
    ROOT / "docs" / "explanation" / "reliability.md",
    ROOT / "deploy" / "README.md",
)
OF_OTHER_PROGRAMS = {
    "--strict",
    "--xla",
    "--load-format",
    "--local-dir",
    "--model-path",
    "--tensor-parallel-size",
    "--ckpt-format",
    "--dist-ckpt-optim-fully-reshardable",
    "--make-vocab-size-divisible-by",
}  # of mypy, in XLA_FLAGS, of vLLM, hf, SGLang, Megatron


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command behind a dollar sign, lines that end in a backslash joined."""
    for block in code_of(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)


ELSEWHERE = ("pip install", "reshard serve", "curl")
"""What needs a registry, and what has a test of its own since it runs until it is stopped."""

pytestmark = pytest.mark.xdist_group("readme")
"""One worker runs them all, since they share one checkpoint."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has cloned and installed: the Makefile, and the packages that this test runs with."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(programs())
    (folder / ".venv" / ".installed").touch()
    return folder


@pytest.fixture(scope="module")
def readme(clone: Path) -> list[Did]:
    """Every block of README, done in order by one reader, and what each said."""
    return run_page(README, clone, skip=ELSEWHERE)


def test_every_block_works_as_it_is_pasted(readme: list[Did], clone: Path) -> None:
    said = {did.step.line: did.said for did in readme if did.step.kind == "python"}
    first, _ = said.values()
    assert re.fullmatch(r"\d+ tasks, \d+ bytes of buffers at most\n", first)
    made = sorted(str(p.relative_to(clone / "demo")) for p in (clone / "demo").glob("*/100?"))
    assert made == ["eight/1000", "live/1001", "serve/1000", "served/1000", "train/1000"]


def test_only_what_is_named_is_left_out(readme: list[Did]) -> None:
    done = [did.step.text.split()[0] for did in readme if did.step.kind == "command"]
    assert {words[0] for words in commands(README)} - set(done) == {"pip", "curl"}


@pytest.mark.usefixtures("readme")
def test_the_two_minutes_of_the_service(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert "'.[server]'" in README.read_text("utf-8")
    (serve,) = (words for words in commands(README) if words[:2] == ["reshard", "serve"])
    (curl,) = (words for words in commands(README) if words[0] == "curl")
    with serving(serve[1:], clone, tmp_path_factory.mktemp("server") / "log") as url:
        _convert_by_curl(curl, url)
    assert (clone / "demo" / "online" / "1000" / "default" / "_METADATA").exists()


@pytest.mark.usefixtures("readme")
def test_the_first_example_of_the_service(clone: Path, tmp_path: Path) -> None:
    """Runs the commands of docs/tutorials/first-service.md in order, on the demo that README has made by the first."""
    demo, serve, curl, again = commands(ROOT / "docs" / "tutorials" / "first-service.md")
    assert (demo, serve) == (
        ["reshard", "demo", "--dir", "demo"],
        ["reshard", "serve", "--insecure", "--root", "data=demo"],
    )
    assert f"\t$(BIN)/{shlex.join(demo)}\n" in (clone / "Makefile").read_text("utf-8")
    shutil.copytree(clone / "demo", tmp_path / "demo")
    with serving(serve[1:], tmp_path, tmp_path / "log") as url:
        made = _convert_by_curl(curl, url)
        asked = subprocess.run(
            [*again[:-1], again[-1].replace("ID", made).replace("http://127.0.0.1:8080", url)],
            capture_output=True,
            check=True,
        )
        assert json.loads(asked.stdout)["state"] == "succeeded"
    assert (tmp_path / "demo" / "first" / "1000" / "default" / "_METADATA").exists()


def _convert_by_curl(curl: list[str], url: str) -> str:
    """Asks for the conversion as a page does, and waits until it has succeeded; its id."""
    assert curl[0] == "curl" and curl[-1].startswith("http://127.0.0.1:8080/")
    asked = [*curl[:-1], curl[-1].replace("http://127.0.0.1:8080", url)]
    done = subprocess.run(
        [*asked, "--no-progress-meter"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    made: str = json.loads(done.stdout)["id"]
    path = f"{url}/v1/conversions/{made}"
    with httpx.stream("GET", f"{path}/events", timeout=120) as events:
        assert [x for x in events.iter_lines() if x.startswith("event:")][-1] == "event: end"
    ended = httpx.get(path).json()
    assert ended["state"] == "succeeded", ended["error"]
    return made


def test_the_readme_shows_every_command() -> None:
    group = typer.main.get_command(make_app())
    assert isinstance(group, typer.core.TyperGroup)
    named = re.findall(r"^\| `reshard (\w+)` \|", README.read_text("utf-8"), re.MULTILINE)
    assert set(named) == set(group.commands)


def known_options() -> set[str]:
    """Every option of every command."""
    group = typer.main.get_command(make_app())
    assert isinstance(group, typer.core.TyperGroup)
    every = [group, *group.commands.values()]
    below = [one for one in every[1:] if isinstance(one, typer.core.TyperGroup)]
    every += [command for one in below for command in one.commands.values()]
    return {option for command in every for p in command.params for option in p.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_option_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page.read_text("utf-8")))
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


@pytest.mark.parametrize(
    "page", [README, ROOT / "docs" / "reference" / "layout-files.md"], ids=lambda p: p.name
)
def test_layout_files_are_read(page: Path, tmp_path: Path) -> None:
    for block in code_of(page, "yaml"):
        (tmp_path / "layout.yaml").write_text(block, "utf-8")
        assert load_layout(tmp_path / "layout.yaml").rules


def test_every_key_of_a_layout_file_is_documented() -> None:
    from reshard.layout.layout_file import KEYS

    text = (ROOT / "docs" / "reference" / "layout-files.md").read_text("utf-8")
    headings = ", ".join(re.findall(r"^## (.*)$", text, re.MULTILINE)).split(", ")
    assert set(KEYS) <= set(headings)


def test_a_layout_file_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"mesh": {"axes": ["model"], "shape": [8]}}))
    assert load_layout(path).mesh is not None
