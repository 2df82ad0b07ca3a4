"""Routes of the identity that a checkpoint records, and of the proofs that slices are part of it."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from starlette.responses import Response

from reshard.errors import ReshardError
from reshard.identity.identity_file import how_to_record, render_identity
from reshard_server.api.caller import Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.api.tensor_source import opening, slice_problem
from reshard_server.auth.root_paths import OPEN_SECONDS
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BUDGET,
    NO_CHECKPOINT,
    NOT_FOUND,
    OF_A_BUCKET,
    STORAGE,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.schemas.checkpoint import (
    IdentityQuery,
    ProofQuery,
    RecordedIdentity,
    SliceProofAnswer,
)
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/v1/tensors", tags=["tensors"], route_class=MaskedRoute)

_REFUSED = (NOT_FOUND, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, UNAVAILABLE, *OF_A_BUCKET)


@ROUTER.get("/identity", response_model=RecordedIdentity, responses=problems(*_REFUSED))
async def get_identity(
    query: Annotated[IdentityQuery, Query()], serving: Serving, caller: Reading
) -> Response:
    """Returns the identity of the weights that a checkpoint records: `identity.json`.

    It is what the checkpoint says of itself. Compare its root with one that you trust.
    """
    content = await run_sync(_identity, serving, caller, query, limiter=serving.finders)
    return Response(content, media_type="application/json")


@ROUTER.get("/proof", responses=problems(*_REFUSED, BAD_LAYOUT, BUDGET))
async def get_proof(
    query: Annotated[ProofQuery, Query()], serving: Serving, caller: Reading
) -> SliceProofAnswer:
    """Returns the proof that a slice of a tensor is part of the identity that the checkpoint records.

    Some MiB at the edge of the slice are read where its proof has hashes of less than about 1 MiB. A slice that cuts tiles of the
    identity has no proof; the problem names the smallest slice that holds it and has one.
    """
    serving.drain.refuse_new()
    stream = serving.streams.take(caller.name)
    try:
        return await run_sync(_proof, serving, caller, query, limiter=serving.finders)
    finally:
        stream.give_back()


def _identity(serving: Services, caller: Caller, query: IdentityQuery) -> bytes:
    with opening(serving, caller, query) as (resolved, opened):
        found = serving.roots.ask(
            resolved.checkpoint, lambda: _recorded(opened, resolved.checkpoint), OPEN_SECONDS
        )
        return render_identity(found)


def _proof(serving: Services, caller: Caller, query: ProofQuery) -> SliceProofAnswer:
    limit = serving.settings.stream_memory
    with opening(serving, caller, query) as (resolved, opened):

        def made() -> Any:
            _recorded(opened, resolved.checkpoint)
            return opened.prove_slice(resolved.name, resolved.slice, max_memory=limit)

        try:
            proof = serving.roots.ask(resolved.checkpoint, made, OPEN_SECONDS)
        except ReshardError as error:
            raise slice_problem(error) from error
    return SliceProofAnswer(**proof.to_dict())


def _recorded(opened: Any, checkpoint: str) -> Any:
    """The identity; ProblemError where the checkpoint records none."""
    if opened.identity is None:
        remedy = how_to_record(opened.path)
        problem = f"{checkpoint} records no identity; {remedy}"
        raise ProblemError(NOT_FOUND, problem, "checkpoint", remedy)
    return opened.identity
