"""Routes that send bytes, a slice of a tensor or the shard of one device of a layout; and identities with proofs of slices."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from reshard.errors import ReshardError
from reshard.identity.identity_file import how_to_record, render_identity
from reshard_server.api.answers import MaskedRoute
from reshard_server.api.caller import Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.tensor_source import (
    TensorSource,
    open_source,
    opening,
    slice_problem,
    with_client_paths,
)
from reshard_server.auth.root_paths import OPEN_SECONDS
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    BUDGET,
    INVALID,
    NO_CHECKPOINT,
    NOT_FOUND,
    OF_A_BUCKET,
    RANGE,
    STORAGE,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.resources.resource import names_tag
from reshard_server.schemas.checkpoint import (
    IdentityQuery,
    ProofQuery,
    RecordedIdentity,
    SliceProofAnswer,
    TensorQuery,
)
from reshard_server.services import Services
from reshard_server.views.byte_stream import ByteRange, ByteStream, Started, byte_range

ROUTER = APIRouter(prefix="/v1/tensors", tags=["tensors"])

Wanted = Annotated[TensorQuery, Query()]
IfNoneMatch = Annotated[str | None, Header(description="Known ETags.")]

_HEADERS = {
    "ETag": "Identifies the bytes: it changes with the request and with the files that contain them.",
    "Accept-Ranges": "bytes",
    "X-Reshard-Shape": "Shape of the slice, as JSON.",
    "X-Reshard-Dtype": "Dtype of the slice.",
    "X-Reshard-Slice": "Position of the slice in the tensor.",
    "X-Reshard-Missing-Chunks": "How many of its chunks are not stored, for which fill values are sent; absent for none.",
    "X-Reshard-Identity": "Root of the identity that the checkpoint records, 64 hex digits; absent where it records none.",
    "X-Reshard-Proof": "Proof that the slice is part of that identity, as an RFC 9651 byte sequence; absent where it is longer than "
    "4 KiB, where elements must be read for it, and where the slice cuts tiles of the identity or is cast.",
    "Repr-Digest": "crc64nvme of all bytes, if the checkpoint recorded it (RFC 9530).",
}


def _answer(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS.items()
        },
    }


_REFUSED = problems(
    INVALID, BAD_LAYOUT, BAD_PLAN, BUDGET, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, NOT_FOUND, UNAVAILABLE, *OF_A_BUCKET
)  # fmt: skip
_NOT_MODIFIED = {"description": "The bytes have not changed since an ETag of the request."}


@ROUTER.get(
    "",
    status_code=200,
    response_class=ByteStream,
    responses={
        200: _answer("Row-major little-endian elements, or one safetensors file."),
        206: _answer("The requested range."),
        304: _NOT_MODIFIED,
        **_REFUSED,
        **problems(RANGE),
    },
)
async def get_tensor(
    query: Wanted,
    serving: Serving,
    caller: Reading,
    range: Annotated[  # noqa: A002  the name of the header
        str | None, Header(description="One range of bytes.", examples=["bytes=0-1023"])
    ] = None,
    if_range: Annotated[
        str | None, Header(description="An ETag; if it is not current, all bytes are sent.")
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Sends a slice of a tensor (``name``) as bytes, or the slices of one device (``shard``) as a safetensors file.

    Only the needed bytes are read, while they are sent; nothing is written. Damage cuts the connection before
    ``Content-Length`` bytes were sent.
    """
    serving.drain.refuse_new()
    source = await serving.find(open_source, caller, query)
    if names_tag(if_none_match or "", source.tag):
        return Response(status_code=304, headers={"ETag": source.tag})
    requested = byte_range(range, if_range, source.tag, source.stored.nbytes)
    give_back = serving.streams.take(caller.name)
    try:
        pieces = await serving.find(_started, source, requested, query.checkpoint)
    except BaseException:
        give_back()
        raise
    headers = _headers(source, requested)
    return ByteStream(pieces, give_back, 206 if requested.is_part else 200, headers)


@ROUTER.head(
    "",
    status_code=200,
    response_class=ByteStream,
    responses={200: _answer("The headers of the same GET."), 304: _NOT_MODIFIED, **_REFUSED},
)
async def head_tensor(
    query: Wanted, serving: Serving, caller: Reading, if_none_match: IfNoneMatch = None
) -> Response:
    """Returns the headers of the same GET: size, shape and dtype. Reads metadata only."""
    source = await serving.find(open_source, caller, query)
    if names_tag(if_none_match or "", source.tag):
        return Response(status_code=304, headers={"ETag": source.tag})
    whole = ByteRange(0, source.stored.nbytes, source.stored.nbytes, is_part=False)
    headers = _headers(source, whole)
    return Response(headers=headers, media_type=ByteStream.media_type)


def _started(
    serving: Services, source: TensorSource, requested: ByteRange, checkpoint: str
) -> Started:
    """The bytes, after the first were read: an error until then is still a problem document."""
    pieces = source.stored.read(requested.start, requested.stop)
    with with_client_paths(serving, checkpoint):
        return serving.roots.ask(checkpoint, lambda: Started(pieces), OPEN_SECONDS)


def _headers(source: TensorSource, requested: ByteRange) -> dict[str, str]:
    part = {"Content-Range": requested.content_range} if requested.is_part else {}
    return {
        **source.headers,
        **part,
        "Content-Length": str(requested.length),
        "ETag": source.tag,
        "Accept-Ranges": "bytes",
    }


PROOFS_ROUTER = APIRouter(prefix="/v1/tensors", tags=["tensors"], route_class=MaskedRoute)

_UNUSABLE = (NOT_FOUND, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, UNAVAILABLE, *OF_A_BUCKET)


@PROOFS_ROUTER.get("/identity", response_model=RecordedIdentity, responses=problems(*_UNUSABLE))
async def get_identity(
    query: Annotated[IdentityQuery, Query()], serving: Serving, caller: Reading
) -> Response:
    """Returns the identity of the weights that a checkpoint records: `identity.json`.

    It is what the checkpoint says of itself. Compare its root with one that you trust.
    """
    content = await serving.find(_identity, caller, query)
    return Response(content, media_type="application/json")


@PROOFS_ROUTER.get("/proof", responses=problems(*_UNUSABLE, BAD_LAYOUT, BUDGET))
async def get_proof(
    query: Annotated[ProofQuery, Query()], serving: Serving, caller: Reading
) -> SliceProofAnswer:
    """Returns the proof that a slice of a tensor is part of the identity that the checkpoint records.

    Some MiB at the edge of the slice are read where its proof has hashes of less than about 1 MiB. A slice that cuts tiles of the
    identity has no proof; the problem names the smallest slice that holds it and has one.
    """
    serving.drain.refuse_new()
    give_back = serving.streams.take(caller.name)
    try:
        return await serving.find(_proof, caller, query)
    finally:
        give_back()


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
