"""Problems: the documents that answer refused requests (RFC 9457).

A problem has the message of the library's error if there is one, the wrong field of the request, and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any

from reshard.errors import (
    LayoutError,
    MemoryBudgetError,
    MissingError,
    NotACheckpointError,
    PlanError,
    ReshardError,
    StorageError,
    TargetExistsError,
    VerificationError,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:reshard:problem:"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of problem: the last part of its URN, its title, and its HTTP status."""

    slug: str
    title: str
    status: int
    retry_after: str = ""
    """Seconds after which the same request may succeed."""

    @property
    def type(self) -> str:
        return TYPE_PREFIX + self.slug


INVALID = Kind("invalid-request", "The request is not valid", 422)
MALFORMED = Kind("malformed-request", "The request cannot be read", 400)
UNAUTHENTICATED = Kind("unauthenticated", "A valid token is needed", 401)
FORBIDDEN = Kind("forbidden", "The token does not allow this", 403)
NOT_FOUND = Kind("not-found", "There is nothing here", 404)
NOT_ALLOWED = Kind("method-not-allowed", "The method is not allowed here", 405)
CONFLICT = Kind("conflict", "The state does not allow this", 409)
PRECONDITION = Kind("precondition-failed", "It has changed meanwhile", 412)
TOO_SLOW = Kind("request-timeout", "The request arrived too slowly", 408)
TOO_LARGE = Kind("too-large", "The request is too large", 413)
HEADERS_TOO_LARGE = Kind("headers-too-large", "The headers are too large", 431)
MISDIRECTED = Kind("misdirected-request", "The request is for another host", 421)
UNSUPPORTED = Kind("unsupported-media-type", "The body must be plain JSON", 415)
RANGE = Kind("range-not-satisfiable", "No such range", 416)
KEY_REUSED = Kind("idempotency-key-reused", "The Idempotency-Key belongs to another request", 422)
TOO_MANY = Kind("too-many-requests", "Too many requests", 429)
INTERNAL = Kind("internal-error", "The server failed", 500)
WORKER_DIED = Kind("worker-died", "The process that did the work died", 500)
QUOTA = Kind("quota", "The quota is used up", 409)
RAN_TOO_LONG = Kind("run-time-limit", "The conversion ran for too long", 504)
NO_PROGRESS = Kind("no-progress", "The conversion made no progress", 504)
CLIENT_GONE = Kind("client-gone", "The client disconnected", 499)
UNAVAILABLE = Kind("unavailable", "The server cannot do this now", 503)

BAD_LAYOUT = Kind("layout", "The layout is not valid", 422)
BAD_PLAN = Kind("plan", "The conversion is not possible", 422)
BUDGET = Kind("memory-budget", "Nothing fits the allowed memory", 422)
NO_CHECKPOINT = Kind("not-a-checkpoint", "This is not a checkpoint", 422)
BAD_CHECKPOINT = Kind("checkpoint", "The checkpoint cannot be used", 422)
STORAGE = Kind("storage", "The storage failed", 422)
STORAGE_REFUSED = Kind("storage-refused", "The storage refuses this server", 502)
STORAGE_DOWN = Kind("storage-unavailable", "The storage does not work now", 503, "30")
STORAGE_SLOW = Kind("storage-timeout", "The storage did not answer in time", 504, "30")
TARGET_EXISTS = Kind("target-exists", "The target exists", 409)
GONE = Kind("gone", "It is not there any more", 410)
CHANGED = Kind("source-changed", "The source was changed meanwhile", 409)
NO_VIEW = Kind("view", "The source cannot give this view", 409)
DIFFERENT = Kind("verification", "The bits differ", 422)

_OF_ERROR: tuple[tuple[type[ReshardError], Kind], ...] = (
    (MemoryBudgetError, BUDGET),
    (PlanError, BAD_PLAN),
    (LayoutError, BAD_LAYOUT),
    (NotACheckpointError, NO_CHECKPOINT),
    (MissingError, NO_CHECKPOINT),
    (TargetExistsError, TARGET_EXISTS),
    (StorageError, STORAGE),
    (VerificationError, DIFFERENT),
    (ReshardError, BAD_CHECKPOINT),
)

OF_A_BUCKET = (STORAGE_REFUSED, STORAGE_DOWN, STORAGE_SLOW)
"""Problems of every route that reads below a root."""

_OF_FAULT = {
    "refused": STORAGE_REFUSED,
    "forbidden": STORAGE_REFUSED,
    "unavailable": STORAGE_DOWN,
    "slow": STORAGE_SLOW,
}
"""Kinds by the fault of a bucket as a whole."""

_REMEDY_OF = {
    BAD_LAYOUT.slug: "correct the layout; docs/reference/layout-files.md describes its form"
}
"""Remedies for errors whose message has none."""

_KINDS = {k.type: k for k in list(globals().values()) if isinstance(k, Kind)}


@dataclass(eq=False)
class ProblemError(Exception):
    """A request that is refused, or a job that failed.

    Attributes:
        detail: the expected and the actual value, and the remedy.
        field: JSON pointer or name of the field or parameter that is wrong; None for the whole request.
        remedy: the remedy; without it, the end of the detail, after its last ``;``.
        extra: further members of the document (``smallest_bytes``, ``errors``).
        headers: response headers, such as ``Retry-After``.
    """

    kind: Kind
    detail: str
    field: str | None = None
    remedy: str | None = None
    extra: Mapping[str, Any] = member(default_factory=dict)
    headers: Mapping[str, str] = member(default_factory=dict)

    def __post_init__(self) -> None:
        self.remedy = self.remedy or remedy_in(self.detail)

    def document(self, instance: str | None = None) -> dict[str, Any]:
        """The members of the problem document; ``instance`` is the request's id or path."""
        members = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "field": self.field,
            "remedy": self.remedy or remedy_in(self.detail),
            "instance": instance,
            **self.extra,
        }
        return {name: value for name, value in members.items() if value is not None}

    def renamed(self, name: Callable[[str], str]) -> ProblemError:
        """This problem, with other names of places in its sentences."""
        self.detail = name(self.detail)
        self.remedy = self.remedy and name(self.remedy)
        return self


def kind_of(urn: str) -> Kind:
    """The kind with this URN."""
    return _KINDS[urn]


def remedy_in(detail: str) -> str | None:
    """The remedy at the end of a detail; None if there is none."""
    return detail.rpartition("; ")[2] if "; " in detail else None


def problem_of(error: ReshardError, field: str | None = None) -> ProblemError:
    """The problem of a library error; the text after its last ``;`` is the remedy."""
    if isinstance(error, StorageError) and error.fault:
        return _problem_of_bucket(error, field)
    kind = next(kind for cls, kind in _OF_ERROR if isinstance(error, cls))
    text = str(error)
    remedy = remedy_in(text) or _REMEDY_OF.get(kind.slug)
    extra = {"error": type(error).__name__}
    if isinstance(error, MemoryBudgetError):
        return ProblemError(
            kind, text, field, remedy, {**extra, "smallest_bytes": error.smallest_bytes}
        )
    return ProblemError(kind, text, field, remedy, extra)


def words_of(error: Exception) -> str:
    """The error in words, for the log."""
    return error.detail if isinstance(error, ProblemError) else str(error)


def for_the_log(error: ReshardError) -> str | None:
    """Facts of an error that the operator needs, and its problem lacks: the words of a bucket's store."""
    return str(error) if isinstance(error, StorageError) and error.fault else None


def _problem_of_bucket(error: StorageError, field: str | None) -> ProblemError:
    """The problem of a bucket's fault: the client can only wait, or ask the operator; the store's own words are for the log."""
    kind = _OF_FAULT[error.fault]
    remedy = "send the request again later"
    if kind is STORAGE_REFUSED:
        remedy = "ask the operator of this server, whose log has the reason"
    extra = {"error": type(error).__name__}
    return ProblemError(kind, f"{error.finding}; {remedy}", field, remedy, extra)
