"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel

from reshard_server.problems import UNAVAILABLE, ProblemError
from reshard_server.routes.asking import Serving
from reshard_server.routes.description import problems

ROUTER = APIRouter(tags=["operation"])


class Health(BaseModel):
    """``ok``."""

    status: str = "ok"


@ROUTER.get("/livez")
async def get_liveness() -> Health:
    """Answers as long as the process does."""
    return Health()


@ROUTER.get("/readyz", responses=problems(UNAVAILABLE))
def get_readiness(serving: Serving) -> Health:
    """Answers 200 where the database answers and the server is not ending."""
    serving.drain.refuse_new()
    try:
        with serving.database.connect() as connection:
            connection.execute(sa.select(1))
    except sa.exc.SQLAlchemyError as error:
        raise ProblemError(
            UNAVAILABLE, "the database does not answer; see the server's log"
        ) from error
    return Health()
