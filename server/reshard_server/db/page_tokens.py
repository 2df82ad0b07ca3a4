"""Page tokens: the start of the next page, as an opaque text that clients send back.

A token contains the sort key of the last row of a page, so rows that are added meanwhile neither repeat nor hide
another row. It is bound to the filters of its listing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from reshard_server.errors.problems import INVALID, ProblemError

LONGEST = 1024


def page_token(listing: Any, key: tuple[str | float | int, ...]) -> str:
    """The token of the page after the row with this sort key; ``listing`` identifies the listing and its filters."""
    document = [_fingerprint(listing), *key]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def page_key(listing: Any, token: str, types: tuple[type, ...]) -> tuple[str | float | int, ...]:
    """The sort key in a token; ``types`` are the types of its parts.

    Raises ProblemError for a token of another listing.
    """
    parts = _decoded(token)
    if not isinstance(parts, list) or len(parts) != len(types) + 1:
        raise _refused("was not made by this server")
    if parts[0] != _fingerprint(listing):
        raise _refused("belongs to a listing with other filters")
    key = tuple(parts[1:])
    if any(type(part) is not expected for part, expected in zip(key, types, strict=True)):
        raise _refused("was not made by this server")
    return key


def _decoded(token: str) -> Any:
    try:
        padded = token[:LONGEST] + "=" * (-len(token) % 4)
        return json.loads(
            base64.b64decode(padded, altchars=b"-_", validate=True), parse_constant=_no
        )
    except (ValueError, binascii.Error, RecursionError):
        return None


def _no(_: str) -> None:
    return None


def _fingerprint(listing: Any) -> str:
    text = json.dumps(listing, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refused(why: str) -> ProblemError:
    return ProblemError(
        INVALID,
        f"page_token {why}; take next_page_token of the previous page, with the same filters",
        "page_token",
    )
