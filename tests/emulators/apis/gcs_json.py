"""The JSON API of GCS, which gcsfs, google-cloud-storage, TensorStore and so stock Orbax speak.

Data is also below ``/download``, and uploads are below ``/upload``: ``media`` (the body is the object), ``multipart`` (a resource
and the object in one body) and ``resumable`` (in chunks). There are no versions but the newest, no changes of metadata
and no batches of requests: what asks for them gets 501.
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.emulators.apis.checks import base64_of, check_body, google_hashes
from tests.emulators.apis.error_answers import (
    NO_SUCH_KEY,
    NOT_IMPLEMENTED,
    ErrorAnswer,
    RefusedRequestError,
)
from tests.emulators.apis.json_documents import (
    bucket_resource,
    error_answer,
    headers_of,
    is_composite,
    json_answer,
    md5_of,
    object_resource,
    page_resource,
)
from tests.emulators.apis.json_requests import (
    CONDITIONS,
    check_generation,
    chunk_in,
    conditions_of,
    document_of,
    hashes_of,
    place_of,
    two_parts,
)
from tests.emulators.apis.resumable import Session, Sessions, add
from tests.emulators.apis.xml_api import http_date, quoted, range_of
from tests.emulators.messages import Request, Response
from tests.emulators.objects import Condition, StoredObject

if TYPE_CHECKING:
    from tests.emulators.server import Server

ROOTS = ("/storage/v1/", "/download/storage/v1/", "/upload/storage/v1/", "/batch/storage/v1")
"""Paths that begin so are of this API. A bucket named ``storage`` would be taken for it."""


class GcsJson:
    """``/storage/v1/b/bucket/o/key``."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.objects = server.objects
        self.sessions = Sessions()

    def place(self, request: Request) -> tuple[str, str]:
        found = place_of(request.path)
        if request.path.startswith("/upload/"):
            return found.bucket, self._uploaded_key(request)
        return (found.to_bucket, found.to_key) if found.verb else (found.bucket, found.key)

    def _uploaded_key(self, request: Request) -> str:
        """From the query where it is there, else from the body."""
        query, named = request.query, {}
        if "upload_id" in query:
            return self.sessions.key(query["upload_id"])
        with contextlib.suppress(RefusedRequestError):
            if query.get("uploadType") == "multipart" and request.body:
                named = two_parts(request)[0]
            elif query.get("uploadType") == "resumable":
                named = document_of(request.body)
        return str(named.get("name") or query.get("name", ""))

    def operation(self, request: Request) -> str:
        found, method = place_of(request.path), request.method
        if request.path.startswith("/upload/"):
            return self._upload_operation(request)
        if found.verb:
            return "compose" if found.verb == "compose" else "copy"
        match method, found.kind:
            case "GET", "object":
                return "get" if request.query.get("alt") == "media" else "head"
            case "DELETE", "object":
                return "delete"
            case "GET", "objects":
                return "list"
            case ("GET" | "DELETE", "bucket") | ("POST", "buckets"):
                return "bucket"
        return ""

    def _upload_operation(self, request: Request) -> str:
        query, method = request.query, request.method
        if query.get("uploadType") in {"media", "multipart"}:
            return "put" if method == "POST" else ""
        if "upload_id" not in query:
            return "start_upload" if method in {"POST", "PUT"} else ""
        if method == "DELETE":
            return "abort_upload"
        try:
            chunk = chunk_in(request)
        except RefusedRequestError:
            return "put_part"  # and refused as such
        if self.sessions.would_finish(query["upload_id"], chunk):
            return "complete_upload"
        return "list_parts" if chunk.start is None else "put_part"

    def answer(self, request: Request) -> Response:
        operation = self.operation(request)
        if not operation:
            raise RefusedRequestError(NOT_IMPLEMENTED)
        response: Response = getattr(self, f"_{operation}")(request)
        return response

    def error(self, request: Request, error: ErrorAnswer) -> Response:
        return error_answer(
            error, "/".join(self.place(request)), request.query.get("alt") == "media"
        )

    # Reading.

    def _resource(self, bucket: str, key: str, found: StoredObject) -> Response:
        return json_answer(object_resource(self.server.url, bucket, key, found))

    def _found(self, request: Request) -> StoredObject:
        bucket, key = self.place(request)
        found = self.objects.get(bucket, key)
        check_generation(found, request.query.get("generation"))
        conditions_of(request.query, is_read=True)(found)
        return found

    def _head(self, request: Request) -> Response:
        return self._resource(*self.place(request), self._found(request))

    def _get(self, request: Request) -> Response:
        found = self._found(request)
        headers = self._media_headers(found)
        between = range_of(request.header("range"), found.size)
        if between is None:
            return Response(200, headers, found.segments)
        start, end = between
        headers |= {"Content-Range": f"bytes {start}-{end - 1}/{found.size}"}
        return Response(206, headers, tuple(found.bytes_between(start, end)))

    def _media_headers(self, found: StoredObject) -> dict[str, str]:
        crc32c = f"crc32c={base64_of(found.crc32c, 4)}"
        return {
            "ETag": quoted(found), "Last-Modified": http_date(found.modified), "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream", **found.headers,
            "X-Goog-Generation": str(found.generation), "X-Goog-Metageneration": "1",
            "X-Goog-Hash": crc32c if is_composite(found) else f"{crc32c},md5={md5_of(found)}",
            "X-Goog-Stored-Content-Length": str(found.size), "X-Goog-Storage-Class": "STANDARD",
        }  # fmt: skip

    def _list(self, request: Request) -> Response:
        query, bucket = request.query, self.place(request)[0]
        limit = min(int(query.get("maxResults") or 1000), self.server.options.page_keys)
        page = self.objects.list(
            bucket, prefix=query.get("prefix", ""), delimiter=query.get("delimiter", ""),
            after=base64.urlsafe_b64decode(query.get("pageToken", "")).decode(), limit=limit,
            start=query.get("startOffset", ""), end=query.get("endOffset", ""),
        )  # fmt: skip
        return json_answer(page_resource(self.server.url, bucket, page))

    def _bucket(self, request: Request) -> Response:
        bucket = self.place(request)[0]
        if request.method == "DELETE":
            self.objects.delete_bucket(bucket)
            return Response(204)
        if request.method == "POST":
            bucket = document_of(request.body).get("name", "")
            self.objects.create_bucket(bucket)
        self.objects.bucket(bucket)
        return json_answer(bucket_resource(self.server.url, bucket))

    # Writing.

    def _write_condition(self, query: dict[str, str]) -> Condition:
        conditions = self.server.options.conditions
        asked = set(query) & set(CONDITIONS)
        if asked and conditions == "refused":
            raise RefusedRequestError(NOT_IMPLEMENTED)
        return conditions_of(query if conditions == "kept" else {})

    def _written(self, bucket: str, key: str, segments: Any, headers: dict[str, str], query: dict[str, str]) -> Response:  # fmt: skip
        done = self.objects.put(bucket, key, segments, headers, self._write_condition(query))
        return self._resource(bucket, key, done)

    def _put(self, request: Request) -> Response:
        bucket, key = self.place(request)
        headers = {k: v for k, v in request.headers.items() if k == "content-type"}
        hashes = google_hashes(request.header("x-goog-hash"))
        body = request.body
        if request.query.get("uploadType") == "multipart":
            resource, content_type, body = two_parts(request)
            key = resource.get("name") or key
            headers = {"content-type": content_type} | headers_of(resource)
            hashes |= hashes_of(resource)
        check_body(body, hashes)
        return self._written(bucket, key, (body,), headers, request.query)

    def _delete(self, request: Request) -> Response:
        conditions = self._write_condition(request.query)

        def check(found: StoredObject | None) -> None:
            if found is None:
                raise RefusedRequestError(NO_SUCH_KEY)
            check_generation(found, request.query.get("generation"))
            conditions(found)

        self.objects.delete(*self.place(request), check)
        return Response(204)

    def _copy(self, request: Request) -> Response:
        found, query = place_of(request.path), request.query
        source = self.objects.get(found.bucket, found.key)
        check_generation(source, query.get("sourceGeneration"))
        named = {f"ifSource{name[2:]}": name for name in CONDITIONS}
        conditions_of({ours: query[name] for name, ours in named.items() if name in query})(source)
        headers = headers_of(document_of(request.body)) or source.headers
        with self.objects.lock:
            response = self._written(found.to_bucket, found.to_key, source.segments, headers, query)
            if found.verb == "moveTo":
                self.objects.delete(found.bucket, found.key, lambda _: None)
        if found.verb != "rewriteTo":
            return response
        size = str(source.size)
        resource = json.loads(b"".join(response.body))
        return json_answer(
            {
                "kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True,
                "resource": resource,
            }
        )  # fmt: skip

    def _compose(self, request: Request) -> Response:
        bucket, key = self.place(request)
        asked = document_of(request.body)
        with self.objects.lock:
            sources = [self._component(bucket, one) for one in asked["sourceObjects"]]
            done = self.objects.put(
                bucket, key, tuple(segment for one in sources for segment in one.segments),
                headers_of(asked.get("destination") or {}), self._write_condition(request.query), sources,
            )  # fmt: skip
        return self._resource(bucket, key, done)

    def _component(self, bucket: str, asked: dict[str, Any]) -> StoredObject:
        found = self.objects.get(bucket, asked["name"])
        check_generation(found, asked.get("generation"))
        conditions_of({k: str(v) for k, v in (asked.get("objectPreconditions") or {}).items()})(
            found
        )
        return found

    # Resumable uploads.

    def _start_upload(self, request: Request) -> Response:
        resource = document_of(request.body)
        bucket = self.place(request)[0]
        key = resource.get("name") or request.query["name"]
        # What is there is compared at once, and again at the end.
        self._write_condition(request.query)(self.objects.bucket(bucket).objects.get(key))
        content_type = request.header("x-upload-content-type") or "application/octet-stream"
        headers = {"content-type": content_type} | headers_of(resource)
        session = Session(bucket, key, request.query, headers, hashes_of(resource))
        asked = urlencode({"uploadType": "resumable", "name": key, "upload_id": self.sessions.start(session)})  # fmt: skip
        return Response(
            200, {"Location": f"{self.server.url}/upload/storage/v1/b/{bucket}/o?{asked}"}
        )

    def _put_part(self, request: Request) -> Response:
        session = self.sessions.find(request.query["upload_id"])
        chunk = chunk_in(request)
        with self.objects.lock:
            if session.done is None:
                if chunk.start is not None:
                    add(session, chunk, request.body)
                    session.hashes |= google_hashes(request.header("x-goog-hash"))
                if session.size == chunk.total:
                    self._finish(session)
            if session.done is not None:
                return self._resource(session.bucket, session.key, session.done)
        headers = {"Range": f"bytes=0-{session.size - 1}"} if session.size else {}
        return Response(308, headers)

    _complete_upload = _list_parts = _put_part

    def _finish(self, session: Session) -> None:
        whole = session.segments[0] if len(session.segments) == 1 else memoryview(b"".join(session.segments))  # fmt: skip
        check_body(whole, session.hashes)
        condition = self._write_condition(session.query)
        session.done = self.objects.put(
            session.bucket, session.key, (whole,), session.headers, condition
        )
        session.segments = []

    def _abort_upload(self, request: Request) -> Response:
        self.sessions.abort(request.query["upload_id"])
        return Response(499)
