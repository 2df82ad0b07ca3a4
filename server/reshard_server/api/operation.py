"""Health routes: whether the process lives, and whether it can serve."""

from __future__ import annotations

import sqlalchemy as sa
from anyio import move_on_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import Response

from reshard_server.api.caller import Serving, read_metrics
from reshard_server.api.openapi.description import problems
from reshard_server.errors.error_handlers import no_records
from reshard_server.errors.problems import UNAVAILABLE, ProblemError
from reshard_server.host_clock import host_seconds

ROUTER = APIRouter(tags=["operation"])

ANSWER_SECONDS = 2.0
"""Seconds for the answer of the database; readiness probes do not wait long."""

RETRY_AFTER = "10"


class Health(BaseModel):
    """``ok``."""

    status: str = "ok"


@ROUTER.get("/livez")
async def get_liveness() -> Health:
    """Answers as long as the process lives."""
    return Health()


@ROUTER.get("/readyz", responses=problems(UNAVAILABLE))
async def get_readiness(serving: Serving) -> Health:
    """Answers 200 if the database answers and accepts heartbeats, and the server is not ending.

    Answers within seconds. The problem says if the database is read-only or its disk is full.
    """
    serving.drain.refuse_new()
    if (refused := serving.queue.refused) is not None:
        raise no_records(refused)
    if host_seconds() > serving.queue.lease_ends:
        raise _unready("the database confirms no heartbeat")
    try:
        with move_on_after(ANSWER_SECONDS):
            await run_sync(_ping, serving.database, abandon_on_cancel=True, limiter=serving.pingers)
            return Health()
    except sa.exc.SQLAlchemyError as error:
        raise _unready("the database does not answer") from error
    raise _unready(f"the database gave no answer within {ANSWER_SECONDS:g} s")


def _ping(db: sa.Engine) -> None:
    with db.connect() as connection:
        connection.execute(sa.select(1))


def _unready(why: str) -> ProblemError:
    return ProblemError(
        UNAVAILABLE, f"{why}; see the server's log", headers={"Retry-After": RETRY_AFTER}
    )


class MetricsText(Response):
    """The text format of Prometheus."""

    media_type = "text/plain"


@ROUTER.get("/metrics", response_class=MetricsText, dependencies=[Depends(read_metrics)])
def get_metrics(serving: Serving) -> Response:
    """Returns queue depth, conversions by state, bytes, durations, memory and latency.

    Needs a token with the scope read, unless the setting ``metrics_open`` is on.
    """
    text = generate_latest(serving.metrics.registry)
    return MetricsText(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
