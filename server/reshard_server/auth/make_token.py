"""Makes tokens: shown once, stored as a hash."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from reshard.errors import ReshardError
from reshard_server.errors.value_errors import expected
from reshard_server.settings import TokenSettings

TOKEN_PREFIX = "rsh_"  # noqa: S105  (lets people and scanners recognise a token)


LONGEST_DAYS = 5
"""Digits."""


def make_token(
    name: str,
    scopes: Iterable[str],
    read: Iterable[str],
    write: Iterable[str],
    expires: str | None = None,
) -> tuple[str, TokenSettings]:
    """A new token, and what the settings keep of it.

    Args:
        expires: a day or a time, as the settings take it, or a number of days from now, such as ``90d``.

    Raises ReshardError for what no token may have.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    kept = {
        "name": name,
        "sha256": hashlib.sha256(token.encode()).hexdigest(),
        "scopes": sorted(scopes),
        "read": sorted(read),
        "write": sorted(write),
        "expires": None if expires is None else _moment(expires),
    }
    try:
        return token, TokenSettings.model_validate(kept)
    except ValidationError as error:
        found = error.errors(include_input=False)[0]
        raise ReshardError(
            f"the token {name!r} cannot be made: {'.'.join(map(str, found['loc']))}: {expected(found)}"
        ) from None


def as_toml(token: TokenSettings) -> str:
    """The ``[[tokens]]`` of a settings or tokens file."""
    members = token.model_dump(mode="json", exclude={"expires"})
    lines = [
        f"{key} = {json.dumps(sorted(value) if isinstance(value, list) else value)}"
        for key, value in members.items()
    ]
    if token.expires is not None:
        lines.append(f"expires = {token.expires.isoformat()}")
    return "\n".join(["[[tokens]]", *lines]) + "\n"


def _moment(text: str) -> str:
    """Days from now as a time; anything else as it is."""
    days = text.removesuffix("d")
    if days == text or not (days.isascii() and days.isdecimal()) or len(days) > LONGEST_DAYS:
        return text
    found = datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(days))
    return found.isoformat()
