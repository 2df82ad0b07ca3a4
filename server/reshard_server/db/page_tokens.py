"""Page tokens: where the next page begins, in a form that clients only hand back.

A token holds the sort key of the last row that was told, so that rows which are added meanwhile neither
repeat nor hide another. It is bound to the listing that it was made for.
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
    """The token of the page behind the row with this sort key; ``listing`` is what was asked for."""
    document = [_fingerprint(listing), *key]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def page_key(listing: Any, token: str, types: tuple[type, ...]) -> tuple[str | float | int, ...]:
    """The sort key that a token holds; ``types`` are those of its parts.

    Raises ProblemError where it is no token of this listing.
    """
    found = _decoded(token)
    if not isinstance(found, list) or len(found) != len(types) + 1:
        raise _refused("is not one that this server made")
    if found[0] != _fingerprint(listing):
        raise _refused("belongs to a listing with other filters")
    key = tuple(found[1:])
    if any(type(part) is not expected for part, expected in zip(key, types, strict=True)):
        raise _refused("is not one that this server made")
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
        f"page_token {why}; take next_page_token of the page before, with the same filters",
        "page_token",
        "take next_page_token of the page before, with the same filters",
    )
