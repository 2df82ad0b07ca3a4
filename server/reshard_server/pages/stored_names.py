"""The common parts of the pages of stored layouts and maps: the list of names, the text of a version, the list of versions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from reshard_server.db.stored import names
from reshard_server.db.stored.kinds import StoredKind, StoredVersion
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Visitor
from reshard_server.pages.wording import layout_text
from reshard_server.services import Services

PAGE_SIZE = 50
LONGEST_SHOWN = 65_536
"""Limit of a text in characters; the API's answer has all of it."""


def names_page(
    serving: Services,
    visitor: Visitor,
    kind: StoredKind,
    page_token: str | None,
    recipes: tuple[str, ...] = (),
) -> Response:
    """The page that lists names, in their newest versions, and recipes below them."""
    found = names.newest(serving.database, kind, PAGE_SIZE, page_token)
    return page(
        "stored/names.html",
        visitor,
        noun=kind.noun,
        found=found.versions,
        recipes=recipes,
        next_url=_next(f"/{kind.noun}s", found.next_page_token),
        is_first=page_token is None,
    )


def content_and_versions(
    serving: Services, kind: StoredKind, found: StoredVersion, page_token: str | None
) -> dict[str, Any]:
    """The text of a version, and the other versions, for its page."""
    listed = names.versions(serving.database, kind, found.name, PAGE_SIZE, page_token)
    text = found.content if isinstance(found.content, str) else layout_text(found.content)
    return {
        "text": text[:LONGEST_SHOWN],
        "is_cut": len(text) > LONGEST_SHOWN,
        "versions": listed.versions,
        "next_url": _next(f"/{kind.noun}s/{found.name}", listed.next_page_token),
        "is_first": page_token is None,
    }


def _next(path: str, token: str | None) -> str | None:
    return token and f"{path}?{urlencode({'page_token': token})}"
