"""Every how-to page and tutorial runs as written, and the index leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.run_page import PAGES, run_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs_as_written(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


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
