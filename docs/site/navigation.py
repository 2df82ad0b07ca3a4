"""The navigation of the site, from ``zensical.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).with_name("zensical.toml")
DOCS = CONFIG.parents[1]


def listed() -> list[str]:
    """The pages of the navigation, in its order."""
    return list(_pages(tomllib.loads(CONFIG.read_text("utf-8"))["project"]["nav"]))


def missing() -> list[str]:
    """A line for each page of docs/ that the navigation lacks; single decisions stand on a page of their own."""
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/")} - {"decisions/index.md"}
    return [
        f"docs/{page} is not in the navigation; add it to nav in docs/site/zensical.toml"
        for page in sorted(pages - decisions - set(listed()))
    ]


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(target, str):
                yield target
            else:
                yield from _pages(target)
