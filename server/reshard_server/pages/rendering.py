"""Renders templates to HTML; all values are escaped."""

from __future__ import annotations

import hashlib
import math
import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.pages import wording
from reshard_server.schemas.conversion import DECLARED, targets_of

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


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("reshard_server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": wording.size_text,
        "rate": wording.rate_text,
        "share": wording.share_text,
        "duration": wording.duration_text,
        "moment": wording.moment_text,
        "ago": lambda at: wording.ago_text(at, datetime.now(UTC)),
        "targets": lambda conversion: [
            requested.target for requested in targets_of(conversion.request)
        ],
        "targets_text": wording.targets_text,
        "place": wording.place_text,
        "shortened": wording.shortened,
        "seconds_taken": wording.seconds_taken,
        "shape": wording.shape_text,
        "mesh": wording.mesh_text,
        "axes": wording.axes_text,
        "product": math.prod,
        "without": wording.without,
        "breakable": wording.breakable,
        "error": wording.error_text,
        "prose": prose,
    }
    made.globals["options"] = DECLARED
    made.globals["statics"] = {name: static_url(name) for name in STATIC}
    made.globals["percent_of"] = wording.percent_of
    return made


TEMPLATES = _environment()


def page(template: str, visitor: Any, status: int = 200, **shown: Any) -> HTMLResponse:
    """Renders a page; ``visitor`` is None for one who is not signed in."""
    text = TEMPLATES.get_template(template).render(visitor=visitor, **shown)
    return HTMLResponse(text, status)


ROUTER = APIRouter(include_in_schema=False)

KEPT = "public, max-age=31536000, immutable"
"""The URL changes with the content."""


@ROUTER.get("/static/{name}")
def get_static(name: str) -> Response:
    """Sends a static file; needs no token."""
    if name not in STATIC:
        raise ProblemError(NOT_FOUND, f"there is no file {name[:100]!r}; see the page's source")
    return Response(static_bytes(name), headers={"Cache-Control": KEPT}, media_type=STATIC[name])
