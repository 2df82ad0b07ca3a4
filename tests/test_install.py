"""How the project is installed is said in one place, by what is there: it is not published."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from reshard.version import SOURCE, how_to_install

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("reshard", "server", "docs", "deploy")


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    told = [path for path in found if path.suffix in (".py", ".md", ".yaml", ".html")]
    return [*told, ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "deploy" / "Dockerfile"]


def test_nothing_tells_to_install_what_is_not_published() -> None:
    name = PROJECT["name"]
    published = re.compile(rf"pip install [^\n]*\b{name}(\[|'|\s|$)(?!.*checkout)|\b{name}\[\w+\]")
    assert [str(path) for path in files() if published.search(path.read_text("utf-8"))] == []


def test_every_message_names_an_extra_that_there_is() -> None:
    text = "\n".join(path.read_text("utf-8") for path in files())
    named = set(re.findall(r"how_to_install\([\"'](\w+)[\"']\)", text))
    named |= {e for group in re.findall(r"'\.\[([\w,]+)\]'", text) for e in group.split(",")}
    assert {"jax", "cloud", "server", "client", "ray", "demo"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_the_remedy(extra: str) -> None:
    assert SOURCE == "."
    assert how_to_install(extra) == f"run pip install '.[{extra}]' in a checkout of reshard"


def test_what_an_index_would_show() -> None:
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert PROJECT["requires-python"] == ">=3.11"
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert "Programming Language :: Python :: 3.11" in PROJECT["classifiers"]
