"""Logs: one JSON object per line, with the ids of its request and its conversion; and the audit log of sign-ins and changes.

No secrets are logged: headers and query strings are left out, and text that looks like a bearer token is struck out.
Text from clients cannot end or begin a line.

Each sign-in and each change has a line with its caller, address, objects and outcome, and the fields of every line of the log
(``at``, ``request_id``, ``caller``, ``conversion``). These lines are appended to a file of their own, or go into the log under
the name ``reshard_server.audit``, at any log level. The file is opened anew if it was moved away, so rotating it needs no signal
to the server. A line that cannot be written there goes into the log as an error; the request is carried out all the same.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from reshard.errors import ReshardError
from reshard_server.auth.tokens import TOKEN_PREFIX

MOST_NAMES = 1000
"""Limit of the conversions, and of the targets, of one request."""


@dataclass
class About:
    """The request or conversion that is being handled.

    Attributes:
        conversions: all conversions of the request; the last one is ``conversion``.
        targets: the target paths, as the client wrote them.
        is_look: the request changes nothing, although its method could.
    """

    request_id: str | None = None
    caller: str | None = None
    conversion: str | None = None
    conversions: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    is_look: bool = False

    def found(self, conversion: str) -> None:
        """Adds a conversion."""
        self.conversion = conversion
        if conversion not in self.conversions:
            self.conversions = (*self.conversions, conversion)[-MOST_NAMES:]

    def aims_at(self, *targets: str) -> None:
        """Adds target paths."""
        new = [target for target in targets if target not in self.targets]
        self.targets = (*self.targets, *new)[-MOST_NAMES:]


ABOUT: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039  (never mutated)

_SECRET = re.compile(
    rf"(?i)(bearer\s+)[^\s\"\\]+|{TOKEN_PREFIX}[\w-]+|(?<=://)[^/\s:@]*:[^/\s@]*(?=@)"
)
_NEEDS_QUOTES = frozenset(' "=')
_ALWAYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


@contextmanager
def about_conversion(conversion: str) -> Iterator[None]:
    """Adds the conversion to the lines that are logged within."""
    before = ABOUT.get()
    token = ABOUT.set(About(before.request_id, before.caller, conversion))
    try:
        yield
    finally:
        ABOUT.reset(token)


def set_up_logs(level: str, form: Literal["json", "text"]) -> None:
    """Sends all lines to stderr in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in ("uvicorn", "httpx"):  # their routine messages are not of interest
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def without_secrets(text: str) -> str:
    """The text with everything that looks like a token or a password struck out."""
    return _SECRET.sub(lambda m: (m.group(1) or "") + "[struck out]", text)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        about = ABOUT.get()
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": about.request_id,
            "caller": about.caller,
            "conversion": about.conversion,
            **_extra(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        members = {k: v for k, v in line.items() if v is not None}
        return without_secrets(json.dumps(members, default=str).replace("\x7f", "\\u007f"))


class TextLines(logging.Formatter):
    """Time, level, message and ids; lines of a trace are indented."""

    def format(self, record: logging.LogRecord) -> str:
        about = ABOUT.get()
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        more = {"request_id": about.request_id, "conversion": about.conversion, **_extra(record)}
        words = [f"{k}={_word(v)}" for k, v in more.items() if v is not None]
        lines = [" ".join([at, record.levelname.lower(), printable(record.getMessage()), *words])]
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            lines += [f"    {printable(line)}" for line in trace]
        return without_secrets("\n".join(lines))


def printable(text: str) -> str:
    """The text on one line: line ends, control characters and bidirectional marks are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _word(value: object) -> str:
    """A value, in quotes if it has spaces or quotes."""
    text = str(value)
    plain = text.isprintable() and not _NEEDS_QUOTES.intersection(text)
    return text if plain else printable(json.dumps(text, ensure_ascii=False))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _ALWAYS}


NAME = "reshard_server.audit"
"""The logger of the audit lines."""

LOG = logging.getLogger("reshard_server.audit_file")
"""Logs errors of the audit file; the audit logger would write to that file again."""

_AUDIT = logging.getLogger(NAME)

Event = Literal[
    "change", "sign-in", "sign-out", "refused", "tokens", "scheduled", "removed", "paused"
]
"""``refused``: a request with an unknown token. ``tokens``: the tokens file was read again. Schedules write the last three."""


def audit(
    event: Event, *, caller: str | None, targets: Sequence[str] = (), **fields: str | int | None
) -> None:
    """Writes one line.

    Args:
        caller: name of the token; None for an unknown one.
        targets: paths, as clients write them.
    """
    members = {"caller": caller, "targets": list(targets) or None, **fields}
    _AUDIT.info(event, extra={name: value for name, value in members.items() if value is not None})


def set_up_audit(file: Path | None) -> None:
    """Sends the lines to this file, or to the log if it is None. Raises ReshardError if it cannot be written."""
    for handler in list(_AUDIT.handlers):
        _AUDIT.removeHandler(handler)
        handler.close()
    _AUDIT.setLevel(logging.INFO)
    _AUDIT.propagate = file is None
    if file is not None:
        _AUDIT.addHandler(AppendedLines(file))


class AppendedLines(logging.Handler):
    """Appends each line to a file by one write; reopens the path if the file was moved away."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._file = file
        self._open, self._is_cut = -1, False
        try:
            self._reopen()
        except OSError as error:
            raise ReshardError(
                f"the audit log {str(file)!r} cannot be written: {error.strerror}; make its folder, or correct the path"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line; called by one thread at a time."""
        line = self.format(record)
        try:
            if not self._is_in_place():
                self._reopen()
            self._append(line)
        except OSError as error:
            LOG.error(
                "the audit log cannot be written (%s), so this line is here: %s",
                error.strerror,
                line,
            )

    def _append(self, line: str) -> None:
        left = f"{line}\n".encode()
        if self._is_cut:
            left = b"\n" + left
        while left:
            written = os.write(self._open, left)
            left = left[written:]
            self._is_cut = bool(left)

    def close(self) -> None:
        """Closes the file."""
        super().close()
        if self._open >= 0:
            os.close(self._open)
            self._open = -1

    def _is_in_place(self) -> bool:
        try:
            return self._open >= 0 and os.path.samestat(os.fstat(self._open), self._file.stat())
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        before = self._open
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._open, self._is_cut = os.open(self._file, flags, 0o600), False
        if before >= 0:
            os.close(before)
