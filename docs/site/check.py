"""Looks at the finished site: every link leads somewhere in it, nothing is loaded from another host, all Markdown was read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href")}
_UNREAD = re.compile(
    r"<p>(?:(?!</p>).)*?(?:^(?:[-*+] |\d+\. |\||~~~).*?$|```)", re.DOTALL | re.MULTILINE
)
_RELATIONS_THAT_LOAD = {"stylesheet", "icon", "preload", "modulepreload", "preconnect"}


class _Page(HTMLParser):
    """The ids of a page, where it leads, and what a browser loads for it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        for name in ("href", "src"):
            if name not in found or (tag == "link" and found.get("rel") == "canonical"):
                continue
            self.links.append(found[name])
            relation = set(found.get("rel", "").split())
            if (tag, name) in _LOADS and (tag != "link" or relation & _RELATIONS_THAT_LOAD):
                self.loads.append(found[name])


def wrong(site: Path) -> Iterator[str]:
    """A line for each link that leads nowhere, each file of another host that a page loads, and each unread list or table."""
    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":  # its links begin at the root of a server
            continue
        page = _parsed(file)
        where = file.relative_to(site)
        unread = _UNREAD.finditer(file.read_text("utf-8"))
        yield from (f"{where}: Markdown in a paragraph: {found[0][-80:]!r}" for found in unread)
        yield from (f"{where}: loads {link}" for link in page.loads if urlsplit(link).netloc)
        yield from (
            f"{where}: {link} leads nowhere" for link in page.links if not _leads(file, link)
        )
    for file in sorted(site.rglob("*.css")):
        found = re.findall(
            r"""(?:url\(|@import\s+)["']?(https?://[^"')]+)""", file.read_text("utf-8")
        )
        yield from (f"{file.relative_to(site)}: loads {link}" for link in found)


def _leads(file: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    if not parts.fragment or target.suffix != ".html" or parts.fragment == "__top":
        return True
    return unquote(parts.fragment) in _parsed(target).ids


@cache
def _parsed(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text("utf-8"))
    return page
