"""Logs: one JSON object a line, with the ids of the request and the conversion it is about.

What identifies a caller is never logged: neither headers nor query strings are, and what still looks
like a bearer token is struck out. Text that a client chose never ends a line or begins one.
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
"""Of conversions, or of targets, that one request is about."""


@dataclass
class About:
    """What is being done just now: on whose behalf, and on what.

    Attributes:
        conversions: all that a request is about, the last of which is ``conversion``.
        targets: paths that it is about, as clients write them.
        is_look: nothing is changed, although the request could have.
    """

    request_id: str | None = None
    caller: str | None = None
    conversion: str | None = None
    conversions: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    is_look: bool = False

    def found(self, conversion: str) -> None:
        """It is about this conversion, too."""
        self.conversion = conversion
        if conversion not in self.conversions:
            self.conversions = (*self.conversions, conversion)[-MOST_NAMES:]

    def aims_at(self, *targets: str) -> None:
        """It is about these paths, too."""
        new = [target for target in targets if target not in self.targets]
        self.targets = (*self.targets, *new)[-MOST_NAMES:]


ABOUT: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039  (never changed)

_SECRET = re.compile(
    rf"(?i)(bearer\s+)[^\s\"\\]+|{TOKEN_PREFIX}[\w-]+|(?<=://)[^/\s:@]*:[^/\s@]*(?=@)"
)
_NEEDS_QUOTES = frozenset(' "=')
_ALWAYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


@contextmanager
def about_conversion(conversion: str) -> Iterator[None]:
    """Lines that are logged within are about this conversion."""
    before = ABOUT.get()
    token = ABOUT.set(About(before.request_id, before.caller, conversion))
    try:
        yield
    finally:
        ABOUT.reset(token)


def set_up_logs(level: str, form: Literal["json", "text"]) -> None:
    """Sends every line to stderr in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in ("uvicorn", "httpx"):  # their news is no news of the service
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def without_secrets(text: str) -> str:
    """The text, with what looks like a token or a password struck out."""
    return _SECRET.sub(lambda m: (m.group(1) or "") + "[struck out]", text)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

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
        told = {k: v for k, v in line.items() if v is not None}
        return without_secrets(json.dumps(told, default=str).replace("\x7f", "\\u007f"))


class TextLines(logging.Formatter):
    """Time, level, message, and what it is about; lines of a trace are indented."""

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
    """The text on one line: line ends, control characters and what turns the direction of writing are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _word(value: object) -> str:
    """A value that ends where it seems to: in quotes, where it has spaces or quotes."""
    text = str(value)
    plain = text.isprintable() and not _NEEDS_QUOTES.intersection(text)
    return text if plain else printable(json.dumps(text, ensure_ascii=False))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _ALWAYS}
