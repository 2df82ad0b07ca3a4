"""Conversions for routes and pages: found, listed, created, cancelled, queued again, deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions import conversions
from reshard_server.db.deliveries import send_again
from reshard_server.deliveries.receivers import no_secret
from reshard_server.errors.problems import CONFLICT, NOT_FOUND, ProblemError
from reshard_server.jobs.conversion_job import submit
from reshard_server.observability.logs import ABOUT
from reshard_server.resources.resource import Resource
from reshard_server.schemas.conversion import (
    Conversion,
    JobRequest,
    targets_of,
)
from reshard_server.schemas.delivery import Delivery
from reshard_server.services import Services

CONVERSIONS: Resource[Conversion] = Resource(
    "conversion",
    read=conversions.get,
    owner=lambda conversion: conversion.created_by,
    verbs=(":cancel", ":retry"),
)

ConversionId = Annotated[
    str,
    Path(
        description="Id of a conversion.", max_length=128, examples=["019d7c3a5b1e9f2c6d8e4a7b0c31"]
    ),
]


def visible(
    serving: Services, caller: Caller, conversion: str, with_result: bool = True
) -> Conversion:
    """The conversion, which the request's log names; ProblemError if the caller may not see it."""
    found = CONVERSIONS.visible(serving, caller, conversion, with_result=with_result)
    ABOUT.get().found(found.id)
    ABOUT.get().aims_at(*(requested.target for requested in targets_of(found.request)))
    return found


async def create(
    serving: Services, caller: Caller, request: JobRequest, key: str | None
) -> Conversion:
    """Queues a conversion; the same key with the same request gives the same conversion."""
    ABOUT.get().aims_at(*(requested.target for requested in targets_of(request)))
    made = await submit(serving, caller, request, key)
    ABOUT.get().found(made.id)
    return made


def cancel(serving: Services, found: Conversion) -> Conversion:
    """Cancels a conversion: at once if it waits, within seconds if it runs. ProblemError if it has ended."""
    now = conversions.request_cancel(serving.database, found.id)
    if now is None:
        raise CONVERSIONS.gone(found.id)
    if now.state in ("succeeded", "failed"):
        raise ProblemError(
            CONFLICT, f"conversion {now.id} has {now.state} already; there is nothing to cancel"
        )
    return now


def retry(serving: Services, found: Conversion) -> Conversion:
    """Queues a failed or cancelled conversion again. ProblemError for any other."""
    serving.drain.refuse_new()
    now = conversions.requeue(serving.database, found.id)
    if now is None:
        raise ProblemError(
            CONFLICT,
            f"conversion {found.id} is {found.state}; only failed and cancelled ones can be retried",
        )
    serving.queue.wake()
    return now


def delete(serving: Services, found: Conversion) -> None:
    """Deletes the record of a conversion. ProblemError if it has not ended."""
    if not conversions.delete(serving.database, found.id):
        first = "" if found.state == "cancelling" else "cancel it, and "
        raise ProblemError(
            CONFLICT, f"conversion {found.id} is {found.state}; {first}delete it once it has ended"
        )


def resend(serving: Services, found: Conversion, delivery: str) -> Delivery:
    """Sends a delivery again. ProblemError if there is none, or no secret to sign it."""
    if serving.settings.notify_secrets_file is None:
        raise no_secret("delivery")
    again = send_again(serving.database, found.id, delivery)
    if again is None:
        raise ProblemError(
            NOT_FOUND,
            f"the conversion {found.id} has no delivery {delivery[:200]!r}; list them at /v1/conversions/{found.id}/deliveries",
            "delivery",
        )
    return again
