"""Logs: one JSON object per line, with the ids of its request and its conversion.

No secrets are logged: headers and query strings are left out, and text that looks like a bearer token is struck out.
Text from clients cannot end or begin a line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from reshard_server.auth.make_token import TOKEN_PREFIX

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
