"""The pictures of the docs are those that their code draws, and pages show them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures.draw import PICTURES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
SHOWN = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_as_its_code_draws_it(name: str) -> None:
    drawn = (FOLDER / name).read_text("utf-8")
    assert drawn == PICTURES[name](), "draw it again with: make format"
    assert ElementTree.fromstring(drawn).attrib["aria-label"]  # noqa: S314  our own file


def test_every_picture_is_shown_by_a_page() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        (page.parent / link).resolve()
        for page in pages
        for link in SHOWN.findall(page.read_text("utf-8"))
    }
    assert {file for file in FOLDER.iterdir() if file.suffix in (".svg", ".png")} <= shown
