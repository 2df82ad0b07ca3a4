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
"""Digits of a number of days."""


def make_token(
    name: str,
    scopes: Iterable[str],
    read: Iterable[str],
    write: Iterable[str],
    expires: str | None = None,
) -> tuple[str, TokenSettings]:
    """A new token, and its entry for the settings.

    Args:
        expires: a day or a time, as the settings take it, or a number of days from now, such as ``90d``.

    Raises ReshardError for a name, scope, root or time that is not allowed.
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
        first = error.errors(include_input=False)[0]
        raise ReshardError(
            f"the token {name!r} cannot be made: {'.'.join(map(str, first['loc']))}: {expected(first)}"
        ) from None


def as_toml(token: TokenSettings) -> str:
    """The token as a ``[[tokens]]`` entry of a settings or tokens file."""
    members = token.model_dump(mode="json", exclude={"expires"})
    lines = [
        f"{key} = {json.dumps(sorted(value) if isinstance(value, list) else value)}"
        for key, value in members.items()
    ]
    if token.expires is not None:
        lines.append(f"expires = {token.expires.isoformat()}")
    return "\n".join(["[[tokens]]", *lines]) + "\n"


def _moment(text: str) -> str:
    """A number of days from now as a time; other text unchanged."""
    days = text.removesuffix("d")
    if days == text or not (days.isascii() and days.isdecimal()) or len(days) > LONGEST_DAYS:
        return text
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(days))
    return expires.isoformat()
