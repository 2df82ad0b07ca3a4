"""Routes that send bytes: a slice of a tensor, or the shard of one device of a layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from reshard_server.api.caller import Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.tensors.byte_ranges import ByteRange, byte_range, is_known
from reshard_server.api.tensors.byte_stream import ByteStream
from reshard_server.api.tensors.tensor_source import TensorSource, open_source, with_client_paths
from reshard_server.auth.root_paths import OPEN_SECONDS
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
)
from reshard_server.schemas.tensor import TensorQuery
from reshard_server.services import Services

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
    range: Annotated[  # noqa: A002
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
    source = await run_sync(open_source, serving, caller, query, limiter=serving.finders)
    if is_known(if_none_match, source.tag):
        return Response(status_code=304, headers={"ETag": source.tag})
    requested = byte_range(range, if_range, source.tag, source.stored.nbytes)
    stream = serving.streams.take(caller.name)
    try:
        pieces = await run_sync(
            _started, serving, source, requested, query.checkpoint, limiter=serving.finders
        )
    except BaseException:
        stream.give_back()
        raise
    headers = _headers(source, requested)
    return ByteStream(pieces, stream, 206 if requested.is_part else 200, headers)


@ROUTER.head(
    "",
    responses={200: _answer("The headers of the same GET."), 304: _NOT_MODIFIED, **_REFUSED},
)
async def head_tensor(
    query: Wanted, serving: Serving, caller: Reading, if_none_match: IfNoneMatch = None
) -> Response:
    """Returns the headers of the same GET: size, shape and dtype. Reads metadata only."""
    source = await run_sync(open_source, serving, caller, query, limiter=serving.finders)
    if is_known(if_none_match, source.tag):
        return Response(status_code=304, headers={"ETag": source.tag})
    whole = ByteRange(0, source.stored.nbytes, source.stored.nbytes, is_part=False)
    headers = _headers(source, whole)
    return Response(headers=headers, media_type=ByteStream.media_type)


def _started(
    serving: Services, source: TensorSource, requested: ByteRange, checkpoint: str
) -> Iterator[bytes]:
    """The bytes, after the first were read: an error until then is still a problem document."""
    pieces = source.stored.read(requested.start, requested.stop)
    with with_client_paths(serving, checkpoint):
        first = serving.roots.ask(checkpoint, lambda: next(pieces, None), OPEN_SECONDS)
    return _followed(first, pieces)


def _followed(first: bytes | None, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from chain(() if first is None else (first,), pieces)


def _headers(source: TensorSource, requested: ByteRange) -> dict[str, str]:
    part = {"Content-Range": requested.content_range} if requested.is_part else {}
    return {
        **source.headers,
        **part,
        "Content-Length": str(requested.length),
        "ETag": source.tag,
        "Accept-Ranges": "bytes",
    }
