"""Tokens: who asks, and what they may do; only hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from reshard.errors import ReshardError
from reshard_server.settings import Scope, Settings, TokenSettings

EVERY_ROOT = "*"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: the token's name, for records and logs.
        read, write: names of the storage roots that may be read and written; ``*`` for every one.
    """

    name: str
    scopes: frozenset[Scope]
    read: frozenset[str]
    write: frozenset[str]

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    def may_read(self, root: str) -> bool:
        return root in self.read or EVERY_ROOT in self.read

    def may_write(self, root: str) -> bool:
        return root in self.write or EVERY_ROOT in self.write


def caller_of(token: TokenSettings) -> Caller:
    """Who has this token."""
    return Caller(token.name, token.scopes, token.read, token.write)


ANYONE = Caller(
    "anyone", frozenset({"read", "convert", "admin"}), frozenset({"*"}), frozenset({"*"})
)
"""Whoever asks a server that runs without tokens (``--insecure``)."""


@dataclass(frozen=True)
class Tokens:
    """All tokens of a server."""

    settings: tuple[TokenSettings, ...]
    insecure: bool = False

    def caller(self, token: str | None) -> Caller | None:
        """Who has this token; None where nobody has. Takes the same time for every wrong token."""
        found = self.known(token or "")
        if found is None:
            return ANYONE if self.insecure else None
        return caller_of(found)

    def known(self, token: str) -> TokenSettings | None:
        """The settings of a token; None for one that nobody has, ``insecure`` or not."""
        return self.with_hash(hashlib.sha256(token.encode(errors="replace")).hexdigest())

    def with_hash(self, sha256: str) -> TokenSettings | None:
        """The token with this hash."""
        found = None
        for known in self.settings:
            if hmac.compare_digest(known.sha256, sha256):
                found = known
        return found

    def named(self, name: str) -> Caller | None:
        """Whoever has the token with this name, as its rights are now; None where it is gone."""
        found = next((caller_of(known) for known in self.settings if known.name == name), None)
        return ANYONE if found is None and self.insecure and name == ANYONE.name else found


def load_tokens(settings: Settings) -> Tokens:
    """The tokens of the settings and of their file.

    Raises ReshardError where the file cannot be used, two tokens share a name, or there is no token and
    the server is not ``insecure`` on a loopback address and without a proxy.
    """
    tokens = settings.tokens + (_of_file(settings.tokens_file) if settings.tokens_file else ())
    names = [t.name for t in tokens]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ReshardError(f"two tokens are named {twice[0]!r}; give each its own name")
    if settings.insecure and settings.host not in ("127.0.0.1", "::1", "localhost"):
        raise ReshardError(
            f"insecure is allowed on a loopback address only, but host is {settings.host!r}; listen on 127.0.0.1, or "
            "make tokens (reshard serve --make-token)"
        )
    if settings.insecure and settings.forwarded_allow_ips:
        raise ReshardError(
            "insecure lets everybody on this machine ask, but forwarded_allow_ips names a proxy, which brings others; make "
            "tokens (reshard serve --make-token), or leave forwarded_allow_ips out"
        )
    if not tokens and not settings.insecure:
        raise ReshardError(
            "there is no token, so nobody could ask for anything; make one (reshard serve --make-token), or run with "
            "--insecure on a loopback address"
        )
    return Tokens(tokens, settings.insecure)


def _of_file(path: Path) -> tuple[TokenSettings, ...]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(TokenSettings.model_validate(t) for t in document.get("tokens", ()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ReshardError(f"the tokens file {str(path)!r} cannot be used: {error}") from error
