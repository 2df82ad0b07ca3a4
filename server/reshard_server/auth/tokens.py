"""Tokens: the caller of each, with its rights. A new one is shown once; the server keeps only its hash.

The tokens file is checked every second, so that tokens change without a restart. A changed file is read once two checks find it equal, so
that no half-written file is read. An invalid file changes nothing, and the log says why.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import os
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from reshard.errors import ReshardError
from reshard_server.errors.value_errors import expected
from reshard_server.settings import Scope, Settings, TokenSettings

EVERY_ROOT = "*"

_TOKENS: TypeAdapter[tuple[TokenSettings, ...]] = TypeAdapter(tuple[TokenSettings, ...])


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: the token's name, for records and logs.
        read, write: names of the storage roots that the caller may read and write; ``*`` for all.
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
    """The caller with this token."""
    return Caller(token.name, token.scopes, token.read, token.write)


ANYONE = Caller(
    "anyone", frozenset({"read", "convert", "admin"}), frozenset({"*"}), frozenset({"*"})
)
"""The caller of a server that runs without tokens (``--insecure``)."""


@dataclass(eq=False)
class Tokens:
    """All tokens of a server; used from any thread.

    Attributes:
        settings: the current tokens; ``replace`` changes them.
        clock: returns seconds since 1970; tokens expire by it.
    """

    settings: tuple[TokenSettings, ...]
    insecure: bool = False
    clock: Callable[[], float] = time.time

    def caller(self, token: str | None) -> Caller | None:
        """The caller with this token; None for an unknown token. Takes equally long for every wrong token."""
        known = self.known(token or "")
        if known is None:
            return ANYONE if self.insecure else None
        return caller_of(known)

    def known(self, token: str) -> TokenSettings | None:
        """The settings of a token; None if it is unknown or has expired, even if ``insecure``."""
        return self.with_hash(_hash(token))

    def with_hash(self, sha256: str) -> TokenSettings | None:
        """The token with this hash; None if it is unknown or has expired."""
        known = self._of_hash(sha256)
        return None if known is None or self._is_over(known) else known

    def named(self, name: str) -> Caller | None:
        """The caller with the token of this name, with its present rights; None if it was removed or has expired."""
        known = next((token for token in self.settings if token.name == name), None)
        if known is None:
            return ANYONE if self.insecure and name == ANYONE.name else None
        return None if self._is_over(known) else caller_of(known)

    def s3_key(self, access_key: str) -> tuple[str, Caller] | None:
        """The secret of an access key and its caller; None for an unknown one, or if its token has expired."""
        known = next((token for token in self.settings if token.name == access_key), None)
        if known is None or known.s3_secret is None or self._is_over(known):
            return None
        return known.s3_secret, caller_of(known)

    def expired(self, token: str) -> TokenSettings | None:
        """The settings of a token that has expired; None for any other."""
        known = self._of_hash(_hash(token))
        return known if known is not None and self._is_over(known) else None

    def seconds_left(self, known: TokenSettings) -> float:
        """Seconds until a token expires."""
        return math.inf if known.expires is None else known.expires.timestamp() - self.clock()

    def replace(self, settings: tuple[TokenSettings, ...]) -> None:
        """Replaces all tokens."""
        self.settings = settings

    def _is_over(self, known: TokenSettings) -> bool:
        return self.seconds_left(known) <= 0

    def _of_hash(self, sha256: str) -> TokenSettings | None:
        match = None
        # Against measuring: every token is compared, in constant time, so that the time tells nothing of one.
        for known in self.settings:
            if hmac.compare_digest(known.sha256, sha256):
                match = known
        return match


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def load_tokens(settings: Settings) -> Tokens:
    """The tokens of the settings and of the tokens file.

    Raises ReshardError if the file is invalid, two tokens share a name, there is no token, or ``insecure`` is set
    without a loopback address or with a proxy.
    """
    tokens = settings.tokens + (_of_file(settings.tokens_file) if settings.tokens_file else ())
    names = [t.name for t in tokens]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ReshardError(f"two tokens are named {twice[0]!r}; give each its own name")
    if settings.insecure:
        _refuse_others(settings)
    if not tokens and not settings.insecure:
        raise ReshardError(
            "there is no token, so nobody could send requests; make one (reshard serve --make-token), or run with "
            "--insecure on a loopback address"
        )
    return Tokens(tokens, settings.insecure)


def _refuse_others(settings: Settings) -> None:
    """Raises ReshardError if a server without tokens could be reached from other machines."""
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        raise ReshardError(
            f"insecure is allowed on a loopback address only, but host is {settings.host!r}; listen on 127.0.0.1, or "
            "make tokens (reshard serve --make-token)"
        )
    if settings.forwarded_allow_ips:
        raise ReshardError(
            "insecure lets everybody on this machine in, but forwarded_allow_ips names a proxy, which lets others in; make "
            "tokens (reshard serve --make-token), or leave forwarded_allow_ips out"
        )


def _of_file(path: Path) -> tuple[TokenSettings, ...]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return _TOKENS.validate_python(document.get("tokens", ()))
    except ValidationError as error:
        mistakes = (
            f"tokens.{'.'.join(map(str, e['loc']))}: {expected(e)}"
            for e in error.errors(include_input=False)
        )
        raise ReshardError(
            f"the tokens file {str(path)!r} cannot be used: {'; '.join(mistakes)}"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ReshardError(f"the tokens file {str(path)!r} cannot be used: {error}") from error


TOKEN_PREFIX = "rsh_"  # noqa: S105  (lets people and scanners recognise a token)


LONGEST_DAYS = 5
"""Digits of a number of days."""


def make_token(
    name: str,
    scopes: Iterable[str],
    read: Iterable[str],
    write: Iterable[str],
    expires: str | None = None,
    s3: bool = False,
) -> tuple[str, TokenSettings]:
    """A new token, and its entry for the settings.

    Args:
        expires: a day or a time, as the settings take it, or a number of days from now, such as ``90d``.
        s3: if it gets a secret for the S3 face, too.

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
        "s3_secret": TOKEN_PREFIX + secrets.token_urlsafe(32) if s3 else None,
    }
    try:
        return token, TokenSettings.model_validate(kept)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise ReshardError(
            f"the token {name!r} cannot be made: {'.'.join(map(str, first['loc']))}: {expected(first)}"
        ) from None


def as_toml(token: TokenSettings) -> str:
    """The token as a ``[[tokens]]`` entry of a settings or tokens file; only here its S3 secret is shown."""
    members = token.model_dump(mode="json", exclude={"expires"}, exclude_none=True)
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


LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

Mark = tuple[int, ...] | None
"""Identifies a file and its state; None if there is no file."""


class TokenReloader:
    """Watches the tokens file as long as the server runs.

    Args:
        end_sessions: ends the sessions of the token with this hash.
        report: gets a text with the new, removed and changed tokens.
    """

    def __init__(
        self,
        settings: Settings,
        tokens: Tokens,
        end_sessions: Callable[[str], object],
        report: Callable[[str], None],
    ) -> None:
        self._settings, self._tokens = settings, tokens
        self._end_sessions, self._report = end_sessions, report
        self._file = settings.tokens_file
        self._taken = self._seen = _mark(self._file)
        self._to_end: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokens", daemon=True)

    def launch(self) -> None:
        """Starts the thread, if there is a tokens file."""
        if self._file is not None:
            self.look(at_start=True)
            self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                LOG.exception("cannot watch the tokens file")

    def look(self, *, at_start: bool = False) -> None:
        """Reads the file if it has changed since it was read, but not since the previous check.

        Args:
            at_start: reads the file in any case: it may have changed since the server read it.
        """
        before, self._seen = self._seen, _mark(self._file)
        if at_start or (self._seen == before and self._seen != self._taken):
            self._take()
        self._end()

    def _take(self) -> None:
        self._taken = self._seen
        try:
            tokens = load_tokens(self._settings).settings
        except ReshardError as error:
            LOG.error("the tokens are not changed: %s", error)
            return
        before = self._tokens.settings
        if tokens == before:
            return
        self._tokens.replace(tokens)
        self._to_end |= {t.sha256 for t in before} - {t.sha256 for t in tokens}
        words = _difference(before, tokens)
        LOG.info("the tokens were read again: %s", words)
        self._report(words)

    def _end(self) -> None:
        """Ends the sessions of removed tokens; tries again later if the database is out of reach."""
        for sha256 in sorted(self._to_end):
            try:
                self._end_sessions(sha256)
            except sa.exc.SQLAlchemyError as error:
                LOG.warning("cannot end the sessions of a removed token now: %s", error)
                return
            self._to_end.discard(sha256)


def _mark(path: Path | None) -> Mark:
    if path is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116  (follows a link)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _difference(before: tuple[TokenSettings, ...], after: tuple[TokenSettings, ...]) -> str:
    was, now = ({t.name: t for t in tokens} for tokens in (before, after))
    words = [
        ("new", now.keys() - was.keys()),
        ("gone", was.keys() - now.keys()),
        ("changed", {name for name in was.keys() & now.keys() if was[name] != now[name]}),
    ]
    return "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in words if names)
