"""XML as S3 has it: answers of the S3 face, and every problem below ``/s3``, whichever part of the server refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from starlette.responses import Response

from reshard_server.errors.problems import (
    FORBIDDEN,
    MALFORMED,
    NO_VIEW,
    NOT_FOUND,
    PRECONDITION,
    RANGE,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    Kind,
    ProblemError,
)

ROOT = "/s3"

_CODES = {
    FORBIDDEN: "AccessDenied", MALFORMED: "InvalidRequest", NO_VIEW: "NoView", NOT_FOUND: "NoSuchKey", PRECONDITION: "PreconditionFailed",
    RANGE: "InvalidRange", TOO_LARGE: "EntityTooLarge", TOO_MANY: "SlowDown", UNAVAILABLE: "ServiceUnavailable",
}  # fmt: skip
"""Codes that are not made of the problem's type, as ``MethodNotAllowed`` and ``SourceChanged`` are."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def elements(**texts: object) -> str:
    """Elements with text, by name; none for None. Characters that XML does not have become question marks."""
    found = {name: _NOT_XML.sub("?", str(text)) for name, text in texts.items() if text is not None}
    return "".join(f"<{name}>{escape(text)}</{name}>" for name, text in found.items())


def xml_answer(root: str, inner: str, **more: Any) -> Response:
    """A document; ``root`` may have attributes, and ``more`` are arguments of the response."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{inner}</{root.split()[0]}>'
    return Response(text, media_type="application/xml", **more)


def refusal(slug: str, status: int, detail: str) -> ProblemError:
    """A problem that only S3 knows; ``some-words`` have the code ``SomeWords``."""
    return ProblemError(Kind(slug, "The S3 face refuses this", status), detail)


def s3_refusal(path: str, problem: ProblemError, headers: Mapping[str, str]) -> Response:
    """A problem as S3's error, with its code and its text."""
    made = "".join(word.capitalize() for word in problem.kind.slug.split("-"))
    inner = elements(Code=_CODES.get(problem.kind, made), Message=problem.detail, Resource=path)
    # Clients of S3 slow down after 503, and give up after 429.
    status = 503 if problem.kind is TOO_MANY else problem.kind.status
    return xml_answer("Error", inner, status_code=status, headers=headers)
