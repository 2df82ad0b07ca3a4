"""The list of decisions, newest first."""

from __future__ import annotations

from pathlib import Path


def decisions(folder: Path) -> str:
    """A line for each decision, with its title."""
    pages = sorted(folder.glob("[0-9]*.md"), reverse=True)
    return "\n".join(f"- [{_title(page)}]({page.name})" for page in pages)


def _title(page: Path) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
