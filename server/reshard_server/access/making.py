"""New tokens: told once, and kept as a hash."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable

from pydantic import ValidationError

from reshard.errors import ReshardError
from reshard_server.settings import TokenSettings

TOKEN_PREFIX = "rsh_"  # noqa: S105  (lets people and scanners recognise a token)


def make_token(
    name: str, scopes: Iterable[str], read: Iterable[str], write: Iterable[str]
) -> tuple[str, TokenSettings]:
    """A new token, and what the settings keep of it. Raises ReshardError for what no token may have."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    kept = {
        "name": name,
        "sha256": hashlib.sha256(token.encode()).hexdigest(),
        "scopes": sorted(scopes),
        "read": sorted(read),
        "write": sorted(write),
    }
    try:
        return token, TokenSettings.model_validate(kept)
    except ValidationError as error:
        found = error.errors(include_input=False)[0]
        raise ReshardError(
            f"the token {name!r} cannot be made: {'.'.join(map(str, found['loc']))}: {found['msg']}"
        ) from None


def as_toml(token: TokenSettings) -> str:
    """The ``[[tokens]]`` of a settings or tokens file."""
    members = token.model_dump(mode="json")
    lines = (
        f"{key} = {json.dumps(sorted(value) if isinstance(value, list) else value)}"
        for key, value in members.items()
    )
    return "\n".join(["[[tokens]]", *lines]) + "\n"
