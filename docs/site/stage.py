"""Puts the pages of the site together: ``python -m docs.site.stage build/docs``.

Copies the pages and pictures of docs/ and the few files outside it that pages lead to. Where a page holds a line such
as ``<!-- made here: command line -->``, it puts the text that is made of the program. ``make docs`` then runs
zensical over the folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.site.command_line import command_line
from docs.site.decisions import decisions
from docs.site.folders import folder_pages
from docs.site.formats import formats
from docs.site.http_api import http_api, openapi_file
from docs.site.links import moved
from docs.site.lists import four_spaces

ROOT = Path(__file__).parents[2]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "deploy", "examples")
"""Files and folders outside docs/ that the site has too."""
RENAMED = {"README.md": "index.md", "docs/index.md": "pages.md"}
"""Pages with another place: the site begins with the README; what leads to all pages comes behind it."""
COPIED = {".md", ".svg", ".png", ".css", ".js"}
MADE: Mapping[str, Callable[[], str]] = {
    "command line": command_line,
    "http api": http_api,
    "formats": formats,
    "decisions": lambda: decisions(ROOT / "docs" / "decisions"),
}
_MARK = re.compile(r"^<!-- made here: ([\w ]+) -->$", re.MULTILINE)


def stage(folder: Path) -> None:
    """Makes ``folder`` anew, with ``zensical.toml`` and ``pages/``."""
    shutil.rmtree(folder, ignore_errors=True)
    places = places_of_files()
    for source, place in places.items():
        if source.is_file():
            put(folder / "pages" / place, page(source, places))
    for place, text in folder_pages(ROOT / "deploy", ROOT).items():
        put(folder / "pages" / place, text.encode())
    put(folder / "pages" / "reference" / "openapi.json", openapi_file())
    put(folder / "zensical.toml", configuration().encode())


def configuration() -> str:
    """The configuration of the generator, for this repository."""
    return Path(__file__).with_name("zensical.toml").read_text("utf-8").replace("{root}", str(ROOT))


def places_of_files() -> dict[Path, Path]:
    """Every file that pages can lead to, and its place below ``pages``."""
    docs = ROOT / "docs"
    places = {
        file: file.relative_to(docs) for file in sorted(docs.rglob("*")) if file.suffix in COPIED
    }
    for name in OUTSIDE:
        inside = (ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]
        places |= {file: file.relative_to(ROOT) for file in sorted(inside) if file.is_file()}
    places |= {ROOT / place: place for place in folder_pages(ROOT / "deploy", ROOT)}
    return places | {ROOT / name: Path(place) for name, place in RENAMED.items()}


def page(source: Path, places: Mapping[Path, Path]) -> bytes:
    """The content of a file in the site."""
    if source.suffix != ".md":
        return source.read_bytes()
    text = four_spaces(moved(source.read_text("utf-8"), source, places))
    return _MARK.sub(lambda mark: MADE[mark[1]](), text).encode()


def put(file: Path, content: bytes) -> None:
    """Writes a file, and the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
