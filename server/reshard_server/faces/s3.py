"""S3 face: the files of views for clients of S3, read only: lists, heads, and ranges of objects, by signed requests.

The bucket is ``views``, in path style. Its keys are ``VIEW/path``, and ``VIEW@REVISION/path`` for an older revision. Any other method or
parameter is refused. Refusals are XML (``errors.s3_xml``).
"""

from __future__ import annotations

import base64
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from functools import partial
from urllib.parse import parse_qsl, quote

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from reshard_server.api.caller import NeedsScope
from reshard_server.auth.proxies import bucket_of
from reshard_server.auth.tokens import ANYONE, Caller
from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.errors.s3_xml import ROOT, elements, refusal, xml_answer
from reshard_server.faces.signature import Asked, check_signature, signature_of
from reshard_server.observability.logs import ABOUT
from reshard_server.resources.resource import names_tag
from reshard_server.views.byte_stream import ByteStream, byte_range
from reshard_server.views.catalogue import MAIN, NAMESPACE, Catalogue, ServedView

ROUTER = APIRouter(include_in_schema=False)

MOST_KEYS = 1000
"""Of one page, as in S3."""

_XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
# A file that a browser takes for a page must not act for a person who is signed in.
_ALWAYS = {"Accept-Ranges": "bytes", "Content-Security-Policy": "sandbox"}

_KNOWN = re.compile(
    "(?is)(?:continuation-token|delimiter|encoding-type|fetch-owner|list-type|location|marker|max-(?:buckets|keys)|prefix|start-after|x-.*)=.*|"
    "partNumber=1|response-(?:cache-control|content-(?:disposition|encoding|language|type)|expires)=[ -~]*"
)
"""Parameters and their values; some set a header of the answer."""


@ROUTER.api_route(ROOT, methods=["GET", "HEAD"])
@ROUTER.api_route(ROOT + "/{path:path}", methods=["GET", "HEAD"])
async def answer(request: Request) -> Response:
    """Answers a request by its path: all buckets, the bucket, or an object."""
    asked = dict(parse_qsl(request.url.query, keep_blank_values=True))
    caller = await _caller(request, asked)
    for name, value in asked.items():
        if not _KNOWN.fullmatch(f"{name}={value}"):
            text = f"{name[:60]}={value[:60]} is none of what this face does; it lists and reads"
            raise refusal("not-implemented", 501, text)
    bucket, _, key = request.scope["path"].removeprefix(ROOT)[1:].partition("/")
    if bucket not in ("", NAMESPACE):
        raise refusal("no-such-bucket", 404, f"there is no bucket {bucket!r}; use {NAMESPACE!r}")
    if key:
        return await _object(request, caller, key, asked)
    if not bucket:
        bucket = f"<Bucket>{elements(Name=NAMESPACE, CreationDate=_iso(0))}</Bucket>"
        return xml_answer(f"ListAllMyBucketsResult {_XMLNS}", f"<Buckets>{bucket}</Buckets>")
    if request.method == "HEAD" or "location" in asked:  # an empty one is us-east-1
        return xml_answer(f"LocationConstraint {_XMLNS}", "")
    return await _page(request.app.state.catalogue, caller, asked)


async def _caller(request: Request, asked: Asked) -> Caller:
    """The owner of the key that signed the request. Unknown ones are counted for the rate limit, as in ``middleware.authenticate``.

    A server without tokens takes any signature, or none.
    """
    services, caller = request.app.state.services, ANYONE
    try:
        if not services.settings.insecure:
            signed = signature_of(request, asked, time.time())
            key = await request.app.state.catalogue.key(signed["key"])
            if key is None:
                text = f"the access key {signed['key']!r} is unknown, or its token has expired"
                raise refusal("invalid-access-key-id", 403, f"{text}; ask for a new one")
            check_signature(signed, key.secret, request, asked)
            caller = key.caller
    except ProblemError:
        services.rates.take(bucket_of(request.client.host if request.client else ""))
        raise
    ABOUT.get().caller = caller.name
    NeedsScope("read").check(caller)
    return caller


async def _page(catalogue: Catalogue, caller: Caller, asked: Asked) -> Response:
    """A page of keys and common prefixes, with the elements of both versions of the list."""
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    most, coding = asked.get("max-keys") or str(MOST_KEYS), asked.get("encoding-type")
    if re.fullmatch("[0-9]{1,9}", most) is None:
        raise refusal("invalid-argument", 400, f"max-keys: expected a number, found {most[:20]!r}")
    # A token is the last name of the page before, as a marker is.
    after = asked.get("continuation-token") or asked.get("start-after") or asked.get("marker", "")
    shown = partial(quote, safe="/~") if coding == "url" else str
    entries, last, cut = list[str](), "", ""
    async for name, facts in _names(catalogue, caller, prefix, delimiter, after):
        if len(entries) == min(int(most), MOST_KEYS):
            cut = last
            break
        last, key = name, elements(**{"Key" if facts else "Prefix": shown(name)})
        entry = "Contents" if facts else "CommonPrefixes"
        entries.append(f"<{entry}>{key}{facts}</{entry}>")
    head = elements(
        Name=NAMESPACE, Prefix=shown(prefix), Delimiter=shown(delimiter) or None, MaxKeys=most, EncodingType=coding, Marker=shown(after),
        KeyCount=len(entries), IsTruncated=str(bool(cut)).lower(), NextContinuationToken=cut or None, NextMarker=shown(cut) or None,
    )  # fmt: skip
    return xml_answer(f"ListBucketResult {_XMLNS}", head + "".join(entries))


async def _names(catalogue: Catalogue, caller: Caller, prefix: str, delimiter: str, after: str) -> AsyncIterator[tuple[str, str]]:  # fmt: skip
    """Keys behind ``after`` with their facts, and common prefixes without, in order. Plans only views that have such keys."""
    folder, slash, _ = prefix.partition("/")
    names = await catalogue.names(caller)
    if slash:
        names = [folder] if folder.partition("@")[0] in names else []
    for folder in sorted(f"{name}/" for name in names):
        # The last character is behind every path of this view.
        if not (slash or folder.startswith(prefix)) or folder + "\U0010ffff" <= after:
            continue
        served, keys = None, [folder]
        if slash or delimiter != "/":
            served = await _served(catalogue, caller, folder)
            keys = [folder + path for path in served.view.files]
        for key in keys[max(bisect_left(keys, prefix), bisect_right(keys, after)) :]:
            if not key.startswith(prefix):
                break
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key[: end + len(delimiter)] if end >= 0 else key
            if name != after:
                after = name
                yield name, _facts(served, key) if served and end < 0 else ""


def _facts(served: ServedView, key: str) -> str:
    file, date = served.view.files[key.partition("/")[2]], _iso(served.modified)
    return elements(LastModified=date, ETag=_etag(file.tag), Size=file.nbytes)


async def _served(catalogue: Catalogue, caller: Caller, key: str) -> ServedView:
    """The view of a key that begins with ``VIEW/`` or ``VIEW@REVISION/``."""
    name, _, revision = key.partition("/")[0].partition("@")
    return await catalogue.find(caller, name, revision or MAIN)


async def _object(request: Request, caller: Caller, key: str, asked: Asked) -> Response:
    """An object, a range of it, or its headers."""
    catalogue: Catalogue = request.app.state.catalogue
    served, path = await _served(catalogue, caller, key), key.partition("/")[2]
    file = served.view.files.get(path)
    if file is None:
        raise ProblemError(NOT_FOUND, f"there is no key {key!r}; list those of this view")
    given, tag, since = request.headers, _etag(file.tag), 0.0
    headers = {**_ALWAYS, "ETag": tag, "Last-Modified": formatdate(served.modified, usegmt=True)}
    with suppress(ValueError, OverflowError):  # a wrong date is ignored, by RFC 9110 (13.1.3)
        since = parsedate_to_datetime(given.get("if-modified-since", "")).timestamp()
    tags = given.get("if-none-match")
    # The middleware compares If-Match.
    if names_tag(tags, tag) if tags else int(served.modified) <= since:
        return Response(status_code=304, headers=headers)
    wanted = given.get("range") or ("bytes=0-" if "partNumber" in asked and file.nbytes else None)
    part = byte_range(wanted, given.get("if-range"), tag, file.nbytes)
    if part.is_part:
        headers["Content-Range"] = part.content_range
    is_checked = given.get("x-amz-checksum-mode") == "ENABLED" and part.length == file.nbytes
    crc = await run_sync(lambda: file.crc64nvme) if is_checked else None
    if crc is not None:
        headers["x-amz-checksum-crc64nvme"] = base64.b64encode(crc.to_bytes(8, "big")).decode()
        headers["x-amz-checksum-type"] = "FULL_OBJECT"
    headers |= {name[9:]: asked[name] for name in asked if name.startswith("response-")}
    headers["Content-Length"] = str(part.length)
    status = 206 if part.is_part else 200
    if request.method == "HEAD":
        return Response(None, status, headers, ByteStream.media_type)
    return await catalogue.send(caller, served, path, part.start, part.stop, status, headers)


def _etag(tag: str) -> str:
    """The ETag; its suffix, that of an upload in parts, tells clients that it is no MD5 of the bytes."""
    return f'"{tag[:32]}-1"'


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
