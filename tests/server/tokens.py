"""Tokens for tests: who may do what."""

from __future__ import annotations

import hashlib
from typing import Any

from reshard_server.settings import TokenSettings

TOKENS = {
    "ann": ("ann-secret-token", ["read", "convert"], ["data"], ["data"]),
    "bob": ("bob-secret-token", ["read", "convert"], ["data", "other"], ["data"]),
    "eve": ("eve-secret-token", ["read"], ["data"], []),
    "root": ("root-secret-token", ["read", "convert", "admin"], ["*"], ["*"]),
}


def token_settings() -> tuple[TokenSettings, ...]:
    return tuple(TokenSettings.model_validate(document) for document in token_documents())


def token_documents() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "sha256": hashlib.sha256(secret.encode()).hexdigest(),
            "scopes": scopes,
            "read": read,
            "write": write,
        }
        for name, (secret, scopes, read, write) in TOKENS.items()
    ]


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name][0]}"}
