"""Sends requests, repeats those that are safe to repeat, and raises the errors that problem documents name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec
from pydantic import BaseModel, ValidationError

import reshard.errors
from reshard.answers.record import record_from
from reshard.errors import MemoryBudgetError, ReshardError
from reshard_server.schemas.base import Problem

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E")
D = TypeVar("D", bound=msgspec.Struct)

SAFE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0
AGAIN = frozenset({429, 502, 503, 504})
IDEMPOTENCY_KEY = "Idempotency-Key"


class ServiceError(ReshardError):
    """A refusal by the server itself: because of the token, the state, or too many requests.

    Attributes:
        problem: the problem document; None if the answer has none that can be read.
        status: of the answer; 0 without an answer.
    """

    def __init__(self, message: str, status: int = 0, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem


class UnreachableError(ServiceError):
    """The server did not answer, or its answer was cut off."""


def refusal(answer: httpx.Response) -> ReshardError:
    """The error for an unsuccessful answer whose body was read."""
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        return ServiceError(
            f"{answer.request.method} {answer.request.url.copy_with(query=None)} was answered with {answer.status_code} "
            "without a problem document; check that the URL is that of a reshard server",
            answer.status_code,
        )
    return error_of(problem)


def error_of(problem: Problem) -> ReshardError:
    """The library's error if the problem names one, else a ServiceError; with the same message."""
    kind = getattr(reshard.errors, problem.error or "", None)
    if kind is MemoryBudgetError:
        return MemoryBudgetError(problem.detail, problem.smallest_bytes or 0)
    if isinstance(kind, type) and issubclass(kind, ReshardError):
        return kind(problem.detail)
    return ServiceError(problem.detail, problem.status, problem)


@dataclass(frozen=True)
class Transport:
    """Sends requests to one server with one token.

    Repeats safe requests: those with a safe or idempotent method, and those with an ``Idempotency-Key``. The pauses
    grow; a ``Retry-After`` is respected.
    """

    http: httpx.Client
    sleep: Callable[[float], None] = time.sleep

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer; raises the ReshardError that its problem names."""
        headers: Mapping[str, str] = more.get("headers") or {}
        attempts = ATTEMPTS if method in SAFE or IDEMPOTENCY_KEY in headers else 1
        for attempt in range(1, attempts + 1):
            try:
                answer = self.http.request(method, path, **more)
            except httpx.TransportError as error:
                if attempt == attempts:
                    raise self._unreachable(error) from error
                self.sleep(_wait(attempt, None))
                continue
            if answer.status_code not in AGAIN or attempt == attempts:
                break
            self.sleep(_wait(attempt, answer.headers.get("Retry-After")))
        if answer.is_error:
            raise refusal(answer)
        return answer

    def model(self, kind: type[M], method: str, path: str, **more: Any) -> M:
        """The answer as a model."""
        answer = self.ask(method, path, **more)
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise _invalid(answer, kind, error.errors()[0]["msg"]) from None

    def document(self, kind: type[D], method: str, path: str, **more: Any) -> D:
        """The answer as a document of the library."""
        answer = self.ask(method, path, **more)
        try:
            return record_from(kind, msgspec.json.decode(answer.content))
        except msgspec.DecodeError as error:
            raise _invalid(answer, kind, str(error)) from None

    def each(
        self, kind: type[BaseModel], path: str, query: Mapping[str, Any], member: str
    ) -> Iterator[Any]:
        """Everything in a listing, page after page; ``member`` names the elements of a page."""
        token: str | None = ""
        while token is not None:
            params = {**query, "page_token": token} if token else query
            page: Any = self.model(kind, "GET", path, params=params)
            yield from getattr(page, member)
            token = page.next_page_token

    @contextmanager
    def stream(self, path: str, **more: Any) -> Iterator[httpx.Response]:
        """An answer whose body the caller reads; raises UnreachableError if it is cut off."""
        try:
            with self.http.stream("GET", path, **more) as answer:
                if answer.is_error:
                    answer.read()
                    raise refusal(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        return UnreachableError(
            f"the server at {self.http.base_url} did not answer, or its answer was cut off: {error or type(error).__name__}; check the URL, "
            "and whether it runs"
        )


def _invalid(answer: httpx.Response, kind: type, why: str) -> ServiceError:
    request = answer.request
    return ServiceError(
        f"{request.method} {request.url.path} was not answered with a valid {kind.__name__}: {why}; check that client "
        "and server have the same version",
        answer.status_code,
    )


def _wait(attempt: int, retry_after: str | None) -> float:
    if retry_after is not None and retry_after.isdecimal():
        return min(float(retry_after), LONGEST_WAIT_SECONDS)
    return min(FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1), LONGEST_WAIT_SECONDS)
