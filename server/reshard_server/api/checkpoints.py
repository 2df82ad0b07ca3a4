"""Checkpoints below the roots: listed, inspected, verified, given a record of themselves."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from reshard import check_arguments
from reshard_server.api.answer_or_stream import EVENTS, answered, answered_or_watched
from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import FINGERPRINTS, INSPECTIONS, VERIFICATIONS
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.db.page_tokens import page_key, page_token
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_PLAN,
    BUDGET,
    NO_CHECKPOINT,
    NOT_FOUND,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.jobs.accept import about, check_limits
from reshard_server.jobs.child_request import data_bytes
from reshard_server.jobs.choose_step import choose
from reshard_server.observability.logs import ABOUT
from reshard_server.queries.ask import Question
from reshard_server.queries.browse import browse
from reshard_server.schemas.checkpoint import (
    CheckpointPage,
    CheckpointQuery,
    CheckpointRequest,
    FingerprintAnswer,
    FingerprintRequest,
    Inspection,
    VerificationAnswer,
    VerifyRequest,
)

ROUTER = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"], route_class=MaskedRoute)

_UNUSABLE = (NOT_FOUND, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, UNAVAILABLE)


@ROUTER.get("", responses=problems(NOT_FOUND))
def list_checkpoints(
    query: Annotated[CheckpointQuery, Query()], serving: Serving, caller: Reading
) -> CheckpointPage:
    """Checkpoints and folders of steps below a root, by path.

    Neither links nor hidden folders are followed. A tree with many other folders is listed in pages that
    may be short: go on while there is a ``next_page_token``.
    """
    with about("prefix" if query.prefix else "root"):
        folder = serving.roots.folder(caller, query.root, query.prefix)
    listing = {"checkpoints": [query.root, query.prefix]}
    behind: tuple[str, ...] = ()
    if query.page_token:
        (text,) = page_key(listing, query.page_token, (str,))
        behind = tuple(str(text).split("/"))
    name = f"{query.root}/{query.prefix}" if query.prefix else query.root
    found = browse(folder, name, query.page_size, behind)
    more = None if found.behind is None else page_token(listing, ("/".join(found.behind),))
    return CheckpointPage(checkpoints=found.checkpoints, next_page_token=more)


@ROUTER.post(":inspect", response_model=Inspection, responses=problems(*_UNUSABLE))
async def inspect_checkpoint(
    body: Annotated[CheckpointRequest, Body(openapi_examples=INSPECTIONS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """What a checkpoint holds: names, shapes, dtypes, chunks, layouts, bytes. Reads metadata only."""
    body = await choose(serving.checkers, serving.roots, caller, body)
    with about("/checkpoint"):
        path = serving.roots.existing(caller, body.checkpoint)
    limits = check_limits(serving, None)
    question = Question(
        "inspect",
        {"path": str(path)},
        data_bytes(limits.max_memory, limits.workers),
        told={"uri": body.checkpoint},
        paths=(body.checkpoint,),
    )
    return await answered(request, serving, question)


@ROUTER.post(
    ":verify",
    response_model=VerificationAnswer,
    responses={200: {"content": EVENTS}, **problems(*_UNUSABLE, BUDGET, BAD_PLAN)},
)
async def verify_checkpoint(
    body: Annotated[VerifyRequest, Body(openapi_examples=VERIFICATIONS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Compares two checkpoints bit by bit, or one with what it recorded of itself; reads every byte.

    Where ``other`` was made of ``checkpoint`` by select, drop, rename or cast, it records that, and each
    tensor is compared with the one that it was made of; a cast is done again, and every bit compared.
    Damage is told in the answer. With ``Accept: text/event-stream`` progress comes before it. The work
    ends when the client goes away.
    """
    body = await choose(serving.checkers, serving.roots, caller, body)
    with about("/checkpoint"):
        a = serving.roots.existing(caller, body.checkpoint)
    with about("/other"):
        b = None if body.other is None else serving.roots.existing(caller, body.other)
    rules = _rules(body, serving.settings.max_memory)
    limits = check_limits(serving, body.max_memory)
    question = Question(
        "verify",
        {"a": str(a), "b": None if b is None else str(b), **rules, **asdict(limits)},
        data_bytes(limits.max_memory, limits.workers),
        "read",
        {"a": body.checkpoint, "b": body.other},
        paths=(body.checkpoint, body.other or ""),
    )
    return await answered_or_watched(request, serving, question)


def _rules(body: VerifyRequest, ceiling: int) -> dict[str, Any]:
    """The rules as the child gets them; refused where they make no sense for any checkpoint."""
    rules = body.model_dump(include={"select", "drop", "rename", "cast"}, exclude_none=True)
    for kind, given in rules.items():
        with about(f"/{kind}"):
            check_arguments(max_memory=ceiling, **{kind: given})
    return rules


@ROUTER.post(
    ":fingerprint",
    response_model=FingerprintAnswer,
    responses={200: {"content": EVENTS}, **problems(*_UNUSABLE, BUDGET, TARGET_EXISTS)},
)
async def fingerprint_checkpoint(
    body: Annotated[FingerprintRequest, Body(openapi_examples=FINGERPRINTS)],
    request: Request,
    serving: Serving,
    caller: Converting,
) -> Response:
    """Records digests of all tensors and files of a checkpoint in it, so that later damage is found.

    Reads every byte once, and adds small files; nothing else is changed. Needs a token that may write to
    the root. With ``Accept: text/event-stream`` progress comes before the answer. Where the client goes
    away before the end, nothing is recorded.
    """
    ABOUT.get().aims_at(body.checkpoint)
    serving.drain.refuse_new()
    body = await choose(serving.checkers, serving.roots, caller, body)
    with about("/checkpoint"):
        path = serving.roots.changeable(caller, body.checkpoint)
    limits = check_limits(serving, body.max_memory)
    arguments: dict[str, Any] = {"path": str(path), "overwrite": body.overwrite, **asdict(limits)}
    question = Question(
        "fingerprint",
        arguments,
        data_bytes(limits.max_memory, limits.workers),
        "read",
        {"uri": body.checkpoint},
        paths=(body.checkpoint,),
    )
    return await answered_or_watched(request, serving, question)
