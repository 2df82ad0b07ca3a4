"""Turns a problem document into the error that it names."""

from __future__ import annotations

import httpx
from pydantic import ValidationError

import reshard.errors
from reshard.errors import MemoryBudgetError, ReshardError
from reshard_server.schemas.base import Problem


class ServiceError(ReshardError):
    """A refusal by the server itself: because of the token, the state, or too many requests.

    Attributes:
        problem: the problem document; None if the answer has none that can be read.
        status: of the answer; 0 if there was none.
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
