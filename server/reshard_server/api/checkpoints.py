"""Routes of checkpoints below the roots: listed, inspected, verified, identified, fingerprinted; and planned to be converted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from reshard_server.api.answers import EVENTS, MaskedRoute, answered, answered_or_watched
from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.api.openapi.description import (
    FINGERPRINT,
    IDENTITY,
    INSPECTION,
    MULTI_PLAN,
    PLAN,
    VERIFICATION,
    VERSIONS,
    problems,
)
from reshard_server.api.openapi.examples import (
    FINGERPRINTS,
    IDENTITIES,
    INSPECTIONS,
    PLANS,
    VERIFICATIONS,
)
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    BUDGET,
    NO_CHECKPOINT,
    NOT_FOUND,
    OF_A_BUCKET,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.jobs.check_request import choose_step
from reshard_server.observability.logs import ABOUT
from reshard_server.resources import questions
from reshard_server.schemas.checkpoint import (
    CheckpointPage,
    CheckpointQuery,
    FingerprintRequest,
    IdentifyRequest,
    InspectRequest,
    VerifyRequest,
    VersionsQuery,
)
from reshard_server.schemas.conversion import AnyPlanRequest

ROUTER = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"], route_class=MaskedRoute)

_UNUSABLE = (NOT_FOUND, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, UNAVAILABLE, *OF_A_BUCKET)


@ROUTER.get("", responses=problems(NOT_FOUND, *OF_A_BUCKET))
async def list_checkpoints(
    query: Annotated[CheckpointQuery, Query()], serving: Serving, caller: Reading
) -> CheckpointPage:
    """Lists checkpoints and folders of steps below a root, by path.

    Links and hidden folders are skipped. In a tree with many other folders a page may be short or empty: continue as
    long as there is a ``next_page_token``.
    """
    return await serving.find(questions.checkpoints_below, caller, query)


@ROUTER.get(":versions", response_model=VERSIONS, responses=problems(*_UNUSABLE))
async def list_versions(
    query: Annotated[VersionsQuery, Query()], request: Request, serving: Serving, caller: Reading
) -> Response:
    """Lists the versions of weights in a folder: what each stands on, its size, and whether the newest needs it. Reads metadata only.

    Of one delta it also lists the tensors that it changes, with the bytes of their payloads.
    """
    question = await serving.find(questions.versions, caller, query.checkpoint)
    return await answered(request, serving, question)


@ROUTER.post(":inspect", response_model=INSPECTION, responses=problems(*_UNUSABLE))
async def inspect_checkpoint(
    body: Annotated[InspectRequest, Body(openapi_examples=INSPECTIONS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Returns a checkpoint's contents: names, shapes, dtypes, chunks, layouts, bytes. Reads metadata only."""
    body = await choose_step(serving.finders, serving.roots, caller, body)
    question = await serving.find(questions.asked_inspection, caller, body)
    return await answered(request, serving, question)


@ROUTER.post(
    ":verify",
    response_model=VERIFICATION,
    responses={200: {"content": EVENTS}, **problems(*_UNUSABLE, BUDGET, BAD_PLAN)},
)
async def verify_checkpoint(
    body: Annotated[VerifyRequest, Body(openapi_examples=VERIFICATIONS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Compares two checkpoints bit by bit, or one checkpoint with its recorded digests; reads every byte.

    If ``other`` was made from ``checkpoint`` with select, drop, rename or cast, it records these rules. Then each tensor
    is compared with its source; casts are repeated, and every bit is compared. The answer lists any damage. With
    ``identity`` or ``key`` the root of the weights is computed, and compared with that root or with the one that the key signed. With
    ``Accept: text/event-stream`` progress comes before the answer. The work stops when the client disconnects.
    """
    question = await questions.verification(serving, caller, body)
    return await answered_or_watched(request, serving, question)


@ROUTER.post(
    ":identify",
    response_model=IDENTITY,
    responses={200: {"content": EVENTS}, **problems(*_UNUSABLE, BUDGET)},
)
async def identify_checkpoint(
    body: Annotated[IdentifyRequest, Body(openapi_examples=IDENTITIES)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Computes the identity of a checkpoint's weights: a root that is equal for every mesh, chunking, codec and format of them.

    Reads every byte and writes nothing. The answer has each tensor's hash. With ``Accept: text/event-stream`` progress comes before the
    answer. The work stops when the client disconnects.
    """
    question = await questions.identity(serving, caller, body)
    return await answered_or_watched(request, serving, question)


@ROUTER.post(
    ":fingerprint",
    response_model=FINGERPRINT,
    responses={200: {"content": EVENTS}, **problems(*_UNUSABLE, BUDGET, TARGET_EXISTS)},
)
async def fingerprint_checkpoint(
    body: Annotated[FingerprintRequest, Body(openapi_examples=FINGERPRINTS)],
    request: Request,
    serving: Serving,
    caller: Converting,
) -> Response:
    """Records digests of a checkpoint's tensors and files in the checkpoint, so that later damage can be found.

    Reads every byte once and adds small files; nothing else changes. Needs a token that may write to the root. With
    ``Accept: text/event-stream`` progress comes before the answer. If the client disconnects early, nothing is
    recorded.
    """
    ABOUT.get().aims_at(body.checkpoint)
    question = await questions.fingerprint(serving, caller, body)
    return await answered_or_watched(request, serving, question)


PLANS_ROUTER = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=MaskedRoute)


@PLANS_ROUTER.post(
    "",
    response_model=PLAN | MULTI_PLAN,
    responses=problems(
        BAD_LAYOUT, BAD_PLAN, BUDGET, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, TARGET_EXISTS, UNAVAILABLE, *OF_A_BUCKET
    ),
)  # fmt: skip
async def make_plan(
    body: Annotated[AnyPlanRequest, Body(openapi_examples=PLANS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Plans a conversion: what it would do and cost. Reads metadata only, and moves no data.

    Refuses every request that a conversion would refuse. If no plan fits ``max_memory``, the problem names the smallest
    value that works. Needs a token that may write to the target's root, as the conversion does. For several targets the
    answer has the plan of each, and the bytes that are read for all of them.
    """
    question = await serving.find(questions.plan, caller, body)
    return await answered(request, serving, question)
