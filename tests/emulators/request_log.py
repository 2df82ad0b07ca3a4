"""The requests that a server got, so that tests count them."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec

OPERATIONS = (
    "get", "head", "put", "copy", "compose", "delete", "delete_many", "list",
    "start_upload", "put_part", "complete_upload", "abort_upload", "list_uploads", "list_parts",
    "bucket",
)  # fmt: skip
"""What requests do, in words that all APIs share; ``bucket`` makes, deletes or describes one."""


class LoggedRequest(msgspec.Struct):
    """One request. ``status`` is 0 until it is answered; ``bytes_out`` is the length of the answer's body."""

    operation: str
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    bytes_in: int = 0
    bytes_out: int = 0
    status: int = 0
    fault: str = ""

    @property
    def range(self) -> str:
        return self.headers.get("range", "")


class RequestLog:
    """Every request in the order in which it arrived."""

    def __init__(self) -> None:
        self.requests: list[LoggedRequest] = []
        self._lock = threading.Lock()

    def add(self, request: LoggedRequest) -> None:
        with self._lock:
            self.requests.append(request)

    def clear(self) -> None:
        with self._lock:
            self.requests = []

    def count(self, operation: str = "") -> int:
        """How many requests there were, of one operation or of all."""
        return sum(operation in {"", request.operation} for request in self.requests)

    def counts(self) -> Counter[str]:
        """How many requests there were of each operation."""
        return Counter(request.operation for request in self.requests)

    def of(self, operation: str) -> list[LoggedRequest]:
        return [request for request in self.requests if request.operation == operation]
