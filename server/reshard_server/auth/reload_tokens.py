"""Reads the tokens file again when it changes, so that tokens change without a restart.

It is looked at every second. What has changed is taken once it was the same at two looks, so that a file is not read
while it is written. A file that cannot be used changes nothing, and the log says so.
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
"""What tells a file from another, and from what it was; None where there is none."""


class Reloading:
    """Looks after the tokens file as long as the server runs.

    Args:
        end_sessions: ends the sessions of a token with this hash.
        tell: is told which tokens are new, gone and changed.
    """

    def __init__(
        self,
        settings: Settings,
        tokens: Tokens,
        end_sessions: Callable[[str], object],
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._tokens = settings, tokens
        self._end_sessions, self._tell = end_sessions, tell
        self._file = settings.tokens_file
        self._taken = self._seen = _mark(self._file)
        self._to_end: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokens", daemon=True)

    def launch(self) -> None:
        """Begins; without a file there is nothing to look after."""
        if self._file is not None:
            self.look(at_start=True)
            self._thread.start()

    def close(self) -> None:
        """Looks no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                LOG.exception("cannot look after the tokens file")

    def look(self, *, at_start: bool = False) -> None:
        """Takes the file where it has changed, and is the same as at the look before.

        Args:
            at_start: the tokens were read before the first look, and the file may have changed in between.
        """
        before, self._seen = self._seen, _mark(self._file)
        if at_start or (self._seen == before and self._seen != self._taken):
            self._take()
        self._end()

    def _take(self) -> None:
        self._taken = self._seen
        try:
            found = load_tokens(self._settings).settings
        except ReshardError as error:
            LOG.error("the tokens stay as they were: %s", error)
            return
        before = self._tokens.settings
        if found == before:
            return
        self._tokens.replace(found)
        self._to_end |= {t.sha256 for t in before} - {t.sha256 for t in found}
        words = _difference(before, found)
        LOG.info("the tokens were read again: %s", words)
        self._tell(words)

    def _end(self) -> None:
        """Ends the sessions of tokens that are gone; a database that is out of reach is asked again."""
        for sha256 in sorted(self._to_end):
            try:
                self._end_sessions(sha256)
            except sa.exc.SQLAlchemyError as error:
                LOG.warning("sessions of a token that is gone cannot be ended now: %s", error)
                return
            self._to_end.discard(sha256)


def _mark(path: Path | None) -> Mark:
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116  (what a link leads to)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _difference(before: tuple[TokenSettings, ...], after: tuple[TokenSettings, ...]) -> str:
    was, now = ({t.name: t for t in tokens} for tokens in (before, after))
    words = [
        ("new", now.keys() - was.keys()),
        ("gone", was.keys() - now.keys()),
        ("changed", {name for name in was.keys() & now.keys() if was[name] != now[name]}),
    ]
    return "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in words if names)
