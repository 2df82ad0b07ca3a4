"""Renders templates to HTML, in which all values are escaped; and formats numbers, times and names for them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from reshard.answers.record import duration_text as known_duration
from reshard.geometry.sizes import format_bytes
from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.schemas.conversion import (
    DECLARED,
    Conversion,
    targets_of,
)

STATIC = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
"""Static files and their media types."""


def static_bytes(name: str) -> bytes:
    """The content of a static file."""
    return (files("reshard_server.pages") / "static" / name).read_bytes()


def static_url(name: str) -> str:
    """The URL of a static file; it changes with the content, so browsers may cache it for ever."""
    digest = hashlib.sha256(static_bytes(name)).hexdigest()[:16]
    return f"/static/{name}?v={digest}"


def prose(text: str) -> Markup:
    """Text whose code between backticks becomes ``<code>``."""
    pieces = re.split(r"`+([^`]+)`+", text)
    made = (
        Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(pieces)
    )
    return Markup("").join(made)


def size_text(nbytes: float | None) -> str:
    """``1.50 GiB``, or a dash if it is unknown."""
    return "–" if nbytes is None else format_bytes(nbytes)


def rate_text(bytes_per_second: float | None) -> str:
    """``1.50 GiB/s``, or a dash if it is unknown."""
    return "–" if not bytes_per_second else f"{format_bytes(bytes_per_second)}/s"


def share_text(part: float, total: float) -> str:
    """``3.1 %``; small shares are not rounded to nothing.

    >>> share_text(0, 9), share_text(1, 100_000), share_text(31, 1000), share_text(1, 1)
    ('0 %', '0.001 %', '3.1 %', '100 %')
    """
    percent = 100 * part / total if total else 0.0
    return f"{percent:.3g} %" if percent >= 0.001 or not part else "below 0.001 %"


def duration_text(seconds: float | None) -> str:
    """``3 min 20 s``, or a dash if it is unknown."""
    return "–" if seconds is None else known_duration(seconds)


def moment_text(at: datetime) -> str:
    """``2026-11-21 03:00:00 UTC``; recorded times are in UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def seconds_taken(conversion: Conversion) -> float | None:
    """The seconds from start to end; None if it has not started or not ended."""
    if conversion.started_at is None or conversion.ended_at is None:
        return None
    return (conversion.ended_at - conversion.started_at).total_seconds()


_AGES = ((60.0, "minute"), (3600.0, "hour"), (86400.0, "day"))
OLD_SECONDS = 30 * 86400.0


def ago_text(at: datetime, now: datetime) -> str:
    """``just now``, ``5 minutes ago``, ``in 2 hours``; a date if it is a month away or more.

    ``page.js`` uses the same words.
    """
    seconds = (now - at).total_seconds()
    away = abs(seconds)
    if away < 60:
        return "just now"
    if away >= OLD_SECONDS:
        return f"{at:%Y-%m-%d}"
    unit, name = [age for age in _AGES if away >= age[0]][-1]
    count = int(away // unit)
    text = f"{count} {name}{'s' if count > 1 else ''}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def place_text(place: int | None) -> str:
    """``3rd in the queue``; ``waits`` if the place is unknown.

    >>> place_text(1), place_text(12), place_text(23)
    ('next in the queue', '12th in the queue', '23rd in the queue')
    """
    if place is None:
        return "waits"
    if place == 1:
        return "next in the queue"
    ending = (
        "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    )
    return f"{place:,}{ending} in the queue"


def targets_text(paths: Sequence[str]) -> str:
    """``data/out``, or ``12 targets``."""
    return paths[0] if len(paths) == 1 else f"{len(paths)} targets"


def shortened(text: str, longest: int = 140) -> str:
    """The text, cut after a word if it is longer."""
    if len(text) <= longest:
        return text
    return text[:longest].rsplit(" ", 1)[0] + " …"


def shape_text(shape: Sequence[int]) -> str:
    """``2048×8192``, or ``scalar``."""
    return "×".join(map(str, shape)) or "scalar"


def mesh_text(mesh: dict[str, Any] | None) -> str:
    """``data=4, model=2``, or ``none``."""
    if mesh is None:
        return "none"
    return ", ".join(f"{n}={s}" for n, s in zip(mesh["axes"], mesh["shape"], strict=True))


def axes_text(axes: Sequence[Any] | None) -> str:
    """``[data, null]`` as a layout file writes it, or a dash if none was recorded."""
    if axes is None:
        return "–"
    return f"[{', '.join(map(_axis_text, axes))}]" if any(axes) else "replicated"


def _axis_text(axis: Any) -> str:
    if axis is None:
        return "null"
    return axis if isinstance(axis, str) else f"[{', '.join(axis)}]"


def without(text: str, remedy: str | None) -> str:
    """A detail without the remedy at its end, which is shown separately."""
    cut = text.removesuffix(remedy) if remedy else text
    return cut.rstrip("; ") or text


def breakable(path: str) -> Markup:
    """A path or name in which lines may break after slashes."""
    return Markup("/<wbr>").join(path.split("/"))


def error_text(error: float | str) -> str:
    """``0.0039``; infinite values are text already."""
    return error if isinstance(error, str) else f"{error:.2g}"


def percent_of(done: float, total: float) -> int:
    """Whole percent, rounded down: 100 only when all is done."""
    return int(100 * done / total) if total else 0


def layout_text(layout: Mapping[str, Any]) -> str:
    """The text of a layout's content; parsing it returns the same content.

    >>> print(layout_text({"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": ["x"]}]}))
    {
      "mesh": {"axes": ["x"], "shape": [4]},
      "rules": [
        {"match": "w", "axes": ["x"]}
      ]
    }
    """
    members = [f"  {_line(name)}: {_value(value)}" for name, value in layout.items()]
    return "{\n" + ",\n".join(members) + "\n}" if members else "{}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"    {_line(item)}" for item in value) + "\n  ]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("reshard_server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": size_text,
        "rate": rate_text,
        "share": share_text,
        "duration": duration_text,
        "moment": moment_text,
        "ago": lambda at: ago_text(at, datetime.now(UTC)),
        "targets": lambda conversion: [
            requested.target for requested in targets_of(conversion.request)
        ],
        "targets_text": targets_text,
        "place": place_text,
        "shortened": shortened,
        "seconds_taken": seconds_taken,
        "shape": shape_text,
        "mesh": mesh_text,
        "axes": axes_text,
        "product": math.prod,
        "without": without,
        "breakable": breakable,
        "error": error_text,
        "prose": prose,
    }
    made.globals["options"] = DECLARED
    made.globals["statics"] = {name: static_url(name) for name in STATIC}
    made.globals["percent_of"] = percent_of
    return made


TEMPLATES = _environment()


def page(template: str, visitor: Any, status: int | None = None, **shown: Any) -> HTMLResponse:
    """Renders a page; ``visitor`` is None for one who is not signed in, ``status`` None for that of the shown problem, if any."""
    text = TEMPLATES.get_template(template).render(visitor=visitor, **shown)
    problem: ProblemError | None = shown.get("problem")
    return HTMLResponse(text, status or (problem.kind.status if problem else 200))


def next_url(path: str, token: str | None, **query: str) -> str | None:
    """The URL of the next page of a list; None on the last page."""
    return token and f"{path}?{urlencode({**query, 'page_token': token})}"


ROUTER = APIRouter(include_in_schema=False)

KEPT = "public, max-age=31536000, immutable"
"""The URL changes with the content."""


@ROUTER.get("/static/{name}")
def get_static(name: str) -> Response:
    """Sends a static file; needs no token."""
    if name not in STATIC:
        raise ProblemError(NOT_FOUND, f"there is no file {name[:100]!r}; see the page's source")
    return Response(static_bytes(name), headers={"Cache-Control": KEPT}, media_type=STATIC[name])
