"""The map in CONTRIBUTING.md and the path of a conversion name files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`?\b((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`?")
ROOMS = (
    "",
    "conversion",
    "conversion/resume",
    "engine",
    "engine/movers",
    "formats",
    "layout",
    "planning",
    "variables",
)
"""Where a bare name such as ``stream.py`` may lie, after its room was named."""


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/path-of-a-conversion.md"])
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    if page == "CONTRIBUTING.md":
        text = text.partition("## Where things are")[2].partition("## Habits")[0]
    named = {m[1] for m in NAMED.finditer(text.replace("reshard/", ""))}
    assert len(named) > 15
    missing = [name for name in named if not _exists(name)]
    assert missing == []


def _exists(name: str) -> bool:
    places = [
        ROOT,
        ROOT / "server",
        ROOT / "server" / "reshard_server",
        *(ROOT / "reshard" / room for room in ROOMS),
    ]
    return any((place / name).exists() for place in places)
