"""Routes that list, inspect, verify and fingerprint checkpoints below the roots."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Query, Request, Response

from reshard import check_arguments
from reshard.surface.places import Location
from reshard_server.api.answer_or_stream import EVENTS, answered, answered_or_watched
from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.api.openapi.answers import FINGERPRINT, INSPECTION, VERIFICATION
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import FINGERPRINTS, INSPECTIONS, VERIFICATIONS
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.auth.tokens import Caller
from reshard_server.db.page_tokens import page_key, page_token
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_PLAN,
    BUDGET,
    NO_CHECKPOINT,
    NOT_FOUND,
    OF_A_BUCKET,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.jobs.check_request import check_limits, for_field
from reshard_server.jobs.child_request import data_bytes
from reshard_server.jobs.choose_step import choose_step
from reshard_server.observability.logs import ABOUT
from reshard_server.queries.ask import Question
from reshard_server.queries.browse import browse
from reshard_server.schemas.checkpoint import (
    CheckpointPage,
    CheckpointQuery,
    CheckpointRequest,
    FingerprintRequest,
    VerifyRequest,
)
from reshard_server.services import Services

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
    return await run_sync(checkpoints_below, query, serving, caller, limiter=serving.finders)


def checkpoints_below(query: CheckpointQuery, serving: Services, caller: Caller) -> CheckpointPage:
    """A page of the checkpoints below a root or a folder. Raises ProblemError if it cannot be listed."""
    with for_field("prefix" if query.prefix else "root"):
        folder = serving.roots.folder(caller, query.root, query.prefix)
    listing = {"checkpoints": [query.root, query.prefix]}
    after: tuple[str, ...] = ()
    if query.page_token:
        (text,) = page_key(listing, query.page_token, (str,))
        after = tuple(str(text).split("/"))
    name = f"{query.root}/{query.prefix}" if query.prefix else query.root
    listed = serving.roots.ask(name, lambda: browse(folder, name, query.page_size, after))
    more = None if listed.after is None else page_token(listing, ("/".join(listed.after),))
    return CheckpointPage(checkpoints=listed.checkpoints, next_page_token=more)


@ROUTER.post(":inspect", response_model=INSPECTION, responses=problems(*_UNUSABLE))
async def inspect_checkpoint(
    body: Annotated[CheckpointRequest, Body(openapi_examples=INSPECTIONS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Returns a checkpoint's contents: names, shapes, dtypes, chunks, layouts, bytes. Reads metadata only."""
    body = await choose_step(serving.finders, serving.roots, caller, body)
    path = await _existing(serving, caller, body.checkpoint, "/checkpoint")
    limits = check_limits(serving, None)
    question = Question(
        "inspect",
        {"path": str(path), "unlisted": body.unlisted},
        data_bytes(limits.max_memory, limits.workers),
        overrides={"uri": body.checkpoint},
        paths=(body.checkpoint,),
    )
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
    ``Accept: text/event-stream`` progress comes before the answer. The work stops when the client disconnects.
    """
    body = await choose_step(serving.finders, serving.roots, caller, body)
    a = await _existing(serving, caller, body.checkpoint, "/checkpoint")
    b = None
    if body.other is not None:
        b = await _existing(serving, caller, body.other, "/other")
    rules = _rules(body, serving.settings.max_memory)
    limits = check_limits(serving, body.max_memory)
    question = Question(
        "verify",
        {
            "a": str(a),
            "b": None if b is None else str(b),
            "unlisted": body.unlisted,
            **rules,
            **limits._asdict(),
        },
        data_bytes(limits.max_memory, limits.workers),
        "read",
        {"a": body.checkpoint, "b": body.other},
        paths=(body.checkpoint, body.other or ""),
    )
    return await answered_or_watched(request, serving, question)


async def _existing(serving: Services, caller: Caller, text: str, field: str) -> Location:
    """The real place, looked up in a thread."""
    with for_field(field):
        return await run_sync(serving.roots.existing, caller, text, limiter=serving.finders)


def _rules(body: VerifyRequest, ceiling: int) -> dict[str, Any]:
    """The rules for the child. Raises ProblemError for rules that fit no checkpoint."""
    rules = body.model_dump(include={"select", "drop", "rename", "cast"}, exclude_none=True)
    for kind, given in rules.items():
        with for_field(f"/{kind}"):
            check_arguments(max_memory=ceiling, **{kind: given})
    return rules


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
    serving.drain.refuse_new()
    body = await choose_step(serving.finders, serving.roots, caller, body)
    with for_field("/checkpoint"):
        path = await run_sync(
            serving.roots.changeable, caller, body.checkpoint, limiter=serving.finders
        )
    limits = check_limits(serving, body.max_memory)
    arguments: dict[str, Any] = {"path": str(path), "overwrite": body.overwrite, **limits._asdict()}
    question = Question(
        "fingerprint",
        arguments,
        data_bytes(limits.max_memory, limits.workers),
        "read",
        {"uri": body.checkpoint},
        paths=(body.checkpoint,),
    )
    return await answered_or_watched(request, serving, question)
