"""The headers of problems below ``/hf``, whichever part of the server refuses: clients of a hub make their errors of them."""

from __future__ import annotations

from reshard_server.errors.problems import FORBIDDEN, GONE, NOT_FOUND, ProblemError

ROOT = "/hf"
CODE, MESSAGE = "X-Error-Code", "X-Error-Message"
NO_REVISION, NO_FILE = "RevisionNotFound", "EntryNotFound"

_CODES = {NOT_FOUND: "RepoNotFound", GONE: NO_REVISION, FORBIDDEN: "GatedRepo"}

_LONGEST = 2000
"""Characters of a message; clients refuse answers whose headers are much longer."""


def hub_headers(path: str, problem: ProblemError) -> dict[str, str]:
    """The code, if a hub has one for this kind of problem, and the message, which clients show; nothing for other paths."""
    if not path.startswith(f"{ROOT}/"):
        return {}
    # A header has no ends of lines, and only characters of ASCII.
    message = problem.detail.encode("unicode_escape").decode()[:_LONGEST]
    code = {CODE: _CODES[problem.kind]} if problem.kind in _CODES else {}
    return {**code, MESSAGE: message}
