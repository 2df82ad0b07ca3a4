"""Reads the tokens file again when it changes, so that tokens change without a restart.

The file is checked every second. A changed file is read once two checks find it equal, so that no half-written file is
read. An invalid file changes nothing, and the log says why.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from reshard.errors import ReshardError
from reshard_server.auth.tokens import Tokens, load_tokens
from reshard_server.settings import Settings, TokenSettings

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
