"""Every how-to page and tutorial runs as written, and the index leads to every page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.page import steps
from tests.docs.run_page import PAGES, run_steps

DOCS = Path(__file__).parents[2] / "docs"


DEMO = "reshard demo --dir demo"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the command with which several pages begin. It trains a model, so it runs once."""
    folder, page = tmp_path_factory.mktemp("demo"), DOCS / "tutorials" / "first-conversion.md"
    first, *_ = steps(page.read_text("utf-8"))
    assert first.text == DEMO
    run_steps(page, [first], folder)
    return folder / "demo"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs_as_written(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    todo = steps(page.read_text("utf-8"))
    if todo and todo[0].text == DEMO:
        shutil.copytree(request.getfixturevalue("demo"), tmp_path / "demo")
        todo = todo[1:]
    run_steps(page, todo, tmp_path)


def test_the_index_leads_to_every_page() -> None:
    pages = {page for page in DOCS.rglob("*.md") if "decisions" not in page.parts}
    index = DOCS / "index.md"
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", index.read_text("utf-8"))
    assert pages - {index} <= {(DOCS / link).resolve() for link in links}


@pytest.mark.parametrize("page", [*PAGES, DOCS / "index.md"], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
