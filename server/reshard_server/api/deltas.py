"""Routes that make and list deltas. A delta is a conversion of its own form: what else is done with it is at /v1/conversions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from reshard_server.api.caller import Converting, Reading, Serving, looked_up
from reshard_server.api.conversions import Key, filters_of, point_to
from reshard_server.api.openapi.delta_examples import DELTAS, delta_response
from reshard_server.api.openapi.description import problems
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.db.conversions import conversions
from reshard_server.errors.problems import BAD_LAYOUT, BAD_PLAN, INVALID, KEY_REUSED, UNAVAILABLE
from reshard_server.resources import conversions as resource
from reshard_server.schemas.conversion import Conversion, ConversionPage
from reshard_server.schemas.delta import OneDelta
from reshard_server.schemas.listing import ConversionQuery

ROUTER = APIRouter(prefix="/v1/deltas", tags=["deltas"], route_class=MaskedRoute)


@ROUTER.post(
    "",
    status_code=202,
    responses={
        202: delta_response("It is queued.", "Location", "Retry-After"),
        **problems(INVALID, KEY_REUSED, BAD_LAYOUT, BAD_PLAN, UNAVAILABLE),
    },
)
async def create_delta(
    body: Annotated[OneDelta, Body(openapi_examples=DELTAS)],
    serving: Serving,
    caller: Converting,
    response: Response,
    idempotency_key: Key = None,
) -> Conversion:
    """Queues a delta, which is made even if this server ends: the version appears whole or not at all.

    Everything that can be checked without reading the checkpoints is checked now. The answer is a conversion: ``Location`` says where its
    state is, and it is watched, cancelled, retried and deleted there.
    """
    made = await resource.create(serving, caller, body, idempotency_key)
    point_to(response, made)
    return made


@ROUTER.get("")
async def list_deltas(
    query: Annotated[ConversionQuery, Query()], serving: Serving, caller: Reading
) -> ConversionPage:
    """Lists this token's deltas, newest first, as conversions; an admin sees those of all tokens."""
    filters = filters_of(query, caller, is_delta=True)
    return await looked_up(
        serving, conversions.page, serving.database, filters, query.page_size, query.page_token
    )
