"""What the JSON API of GCS answers: resources of objects and buckets, and errors.

See https://cloud.google.com/storage/docs/json_api/v1/objects and .../status-codes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote

from tests.emulators.apis.checks import base64_of
from tests.emulators.apis.error_answers import ErrorAnswer
from tests.emulators.apis.xml_api import iso
from tests.emulators.messages import Response
from tests.emulators.objects import Page, StoredObject

METADATA = "x-goog-meta-"

REASONS = {
    "NoSuchKey": "notFound", "NoSuchBucket": "notFound", "NoSuchUpload": "notFound",
    "PreconditionFailed": "conditionNotMet", "InvalidRange": "requestedRangeNotSatisfiable",
    "BadDigest": "invalid", "BucketAlreadyOwnedByYou": "conflict", "NotImplemented": "notImplemented",
    "AccessDenied": "forbidden", "AuthenticationRequired": "required", "ExpiredToken": "authError",
    "SlowDown": "backendError", "InternalError": "backendError", "TooManyRequests": "rateLimitExceeded",
    "RetentionPolicyNotMet": "retentionPolicyNotMet",
}  # fmt: skip
"""The reason of each error, by its code in XML; of others the code with a small letter."""


def object_resource(server_url: str, bucket: str, key: str, found: StoredObject) -> dict[str, Any]:
    """What the API tells of an object. One that was put together of parts has no MD5, as with GCS."""
    place = f"{bucket}/o/{quote(key, safe='')}"
    told = {
        "kind": "storage#object", "id": f"{bucket}/{key}/{found.generation}", "name": key, "bucket": bucket,
        "selfLink": f"{server_url}/storage/v1/b/{place}",
        "mediaLink": f"{server_url}/download/storage/v1/b/{place}?generation={found.generation}&alt=media",
        "generation": str(found.generation), "metageneration": "1", "size": str(found.size),
        "contentType": found.headers.get("content-type", "application/octet-stream"),
        "storageClass": "STANDARD", "etag": found.etag, "crc32c": base64_of(found.crc32c, 4),
        "timeCreated": iso(found.modified), "updated": iso(found.modified),
        **{ours: found.headers[name] for ours, name in HEADERS.items() if name in found.headers},
    }  # fmt: skip
    metadata = {k[len(METADATA) :]: v for k, v in found.headers.items() if k.startswith(METADATA)}
    md5 = {} if is_composite(found) else {"md5Hash": md5_of(found)}
    return {**told, **md5, **({"metadata": metadata} if metadata else {})}


HEADERS = {
    "contentEncoding": "content-encoding", "contentDisposition": "content-disposition",
    "contentLanguage": "content-language", "cacheControl": "cache-control",
}  # fmt: skip
"""The headers of an object by their names in its resource."""


def headers_of(resource: dict[str, Any]) -> dict[str, str]:
    """The headers that the resource of an upload asks for, as they are kept with an object."""
    named = {"contentType": "content-type", **HEADERS}
    kept = {header: str(resource[name]) for name, header in named.items() if resource.get(name)}
    return kept | {f"{METADATA}{k}": str(v) for k, v in (resource.get("metadata") or {}).items()}


def is_composite(found: StoredObject) -> bool:
    return "-" in found.etag


def md5_of(found: StoredObject) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for segment in found.segments:
        digest.update(segment)
    return base64.b64encode(digest.digest()).decode()


def bucket_resource(server_url: str, bucket: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket", "id": bucket, "name": bucket, "selfLink": f"{server_url}/storage/v1/b/{bucket}",
        "projectNumber": "1", "metageneration": "1", "location": "US", "locationType": "multi-region",
        "storageClass": "STANDARD", "etag": "CAE=", "timeCreated": iso(0), "updated": iso(0),
    }  # fmt: skip


def page_resource(server_url: str, bucket: str, page: Page) -> dict[str, Any]:
    items = [object_resource(server_url, bucket, key, found) for key, found in page.entries]
    following = base64.urlsafe_b64encode((page.after or "").encode()).decode()
    return {
        "kind": "storage#objects",
        **({} if page.after is None else {"nextPageToken": following}),
        **({"prefixes": page.prefixes} if page.prefixes else {}),
        **({"items": items} if items else {}),
    }


def json_answer(resource: dict[str, Any], status: int = 200) -> Response:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Response(status, headers, (json.dumps(resource).encode(),))


def error_answer(error: ErrorAnswer, place: str, is_media: bool) -> Response:
    """An error as a document; as plain text where the data of an object was asked for."""
    status = 500 if error.status == 200 else error.status
    message = f"No such object: {place}" if error.code == "NoSuchKey" else error.message
    if status == 304:
        return Response(304, error.headers)
    if is_media:
        return Response(
            status,
            {"Content-Type": "text/html; charset=UTF-8", **error.headers},
            (message.encode(),),
        )
    reason = REASONS.get(error.code, error.code[:1].lower() + error.code[1:])
    one = {"message": message, "domain": "global", "reason": reason}
    told = {"error": {"code": status, "message": message, "errors": [one]}}
    answer = json_answer(told, status)
    return Response(status, {**answer.headers, **error.headers}, answer.body)
