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
            "s3_secret": s3_secret(name),
        }
        for name, (secret, scopes, read, write) in TOKENS.items()
    ]


def s3_secret(name: str) -> str:
    """The secret of a token in the S3 face, whose access key is its name."""
    return f"{name}-secret-of-s3"


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name][0]}"}
