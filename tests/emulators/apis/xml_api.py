"""The XML API of S3, which GCS speaks too: objects, ranges, listings, multipart uploads.

``s3.py`` and ``gcs_xml.py`` say in what they differ: conditions, checksums, the names of headers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec

from tests.emulators.apis.error_answers import (
    INVALID_RANGE,
    MALFORMED_XML,
    NOT_IMPLEMENTED,
    NOT_MODIFIED,
    PRECONDITION_FAILED,
    ErrorAnswer,
    RefusedRequestError,
)
from tests.emulators.messages import Request, Response
from tests.emulators.objects import Condition, Page, StoredObject
from tests.emulators.uploads import Upload, UploadAt

if TYPE_CHECKING:
    from tests.emulators.server import Server

KEPT_HEADERS = ("content-type", "content-encoding", "content-disposition", "content-language", "cache-control")  # fmt: skip


class XmlApi:
    """One of the two; ``prefix`` begins the names of its own headers."""

    prefix = ""
    namespace = ""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.objects, self.uploads = server.objects, server.uploads

    # What differs.

    def write_condition(self, request: Request) -> Condition:
        raise NotImplementedError

    def copy_condition(self, request: Request) -> Condition:
        raise NotImplementedError

    def check(self, request: Request) -> dict[str, str]:
        """Compares the checksums of a request, and gives the headers that tell those of the body."""
        raise NotImplementedError

    def check_completed(self, request: Request, upload: Upload, numbers: list[int]) -> None:
        """Compares what a request to complete an upload says of the whole object."""

    def object_headers(self, found: StoredObject, request: Request) -> dict[str, str]:
        raise NotImplementedError

    def entry_elements(self, found: StoredObject) -> dict[str, object]:
        """What listings tell of an object beyond its key, size, time and ETag."""
        raise NotImplementedError

    # What does not.

    def place(self, request: Request) -> tuple[str, str]:
        return request.bucket, request.key

    def operation(self, request: Request) -> str:
        method, query = request.method, request.query
        if not request.key:
            if method == "GET" and request.bucket and not {"location", "versioning"} & set(query):
                return "list_uploads" if "uploads" in query else "list"
            return "delete_many" if "delete" in query else "bucket"
        if "uploads" in query:
            return "start_upload"
        if "uploadId" in query:
            return {
                "PUT": "put_part", "POST": "complete_upload", "DELETE": "abort_upload", "GET": "list_parts",
            }[method]  # fmt: skip
        if method == "PUT" and f"{self.prefix}copy-source" in request.headers:
            return "copy"
        return {"GET": "get", "HEAD": "head", "PUT": "put", "DELETE": "delete"}.get(method, "")

    def answer(self, request: Request) -> Response:
        operation = self.operation(request)
        if not operation:
            raise RefusedRequestError(NOT_IMPLEMENTED)
        response: Response = getattr(self, f"_{operation}")(request)
        return response

    def error(self, request: Request, error: ErrorAnswer) -> Response:
        if error.status == 304 or (request.method == "HEAD"):
            return Response(error.status, error.headers)
        elements = {"Code": error.code, "Message": error.message, **error.elements}
        text = document("Error", {**elements, "Key": request.key, "RequestId": "4442587FB7D0A2F9"})
        return Response(error.status, {"Content-Type": "application/xml", **error.headers}, (text,))

    def _xml(self, root: str, elements: dict[str, object], headers: dict[str, str] | None = None) -> Response:  # fmt: skip
        text = document(root, elements, self.namespace)
        return Response(200, {"Content-Type": "application/xml", **(headers or {})}, (text,))

    def _kept(self, request: Request) -> dict[str, str]:
        own = f"{self.prefix}meta-"
        return {k: v for k, v in request.headers.items() if k in KEPT_HEADERS or k.startswith(own)}

    def _get(self, request: Request) -> Response:
        found = self.objects.get(request.bucket, request.key)
        headers = self.object_headers(found, request)
        check_read(request, found)
        between = range_of(request.header("range"), found.size)
        if between is None:
            return Response(200, headers, found.segments)
        start, end = between
        headers |= {"Content-Range": f"bytes {start}-{end - 1}/{found.size}"}
        return Response(206, headers, tuple(found.bytes_between(start, end)))

    _head = _get

    def _put(self, request: Request) -> Response:
        told = self.check(request)
        done = self.objects.put(
            request.bucket, request.key, (request.body,), self._kept(request),
            self.write_condition(request),
        )  # fmt: skip
        return Response(200, {**self.written_headers(done), **told})

    def written_headers(self, done: StoredObject) -> dict[str, str]:
        return {"ETag": quoted(done)}

    def _source(self, request: Request) -> StoredObject:
        name = f"{self.prefix}copy-source"
        bucket, _, key = unquote(request.header(name)).lstrip("/").partition("/")
        found = self.objects.get(bucket, key)
        self.copy_condition(request)(found)
        return found

    def _copy(self, request: Request) -> Response:
        source = self._source(request)
        done = self.objects.put(
            request.bucket, request.key, source.segments, source.headers, self.write_condition(request)
        )  # fmt: skip
        told: dict[str, object] = {"ETag": quoted(done), "LastModified": iso(done.modified)}
        return self._xml("CopyObjectResult", told, self.written_headers(done))

    def _delete(self, request: Request) -> Response:
        self.objects.delete(request.bucket, request.key, self.write_condition(request))
        return Response(204)

    def _bucket(self, request: Request) -> Response:
        if request.method == "PUT":
            self.objects.create_bucket(request.bucket)
        elif request.method == "DELETE":
            self.objects.delete_bucket(request.bucket)
            return Response(204)
        elif request.method == "HEAD":
            self.objects.bucket(request.bucket)
        else:
            raise RefusedRequestError(NOT_IMPLEMENTED)
        return Response()

    def _list(self, request: Request) -> Response:
        query = request.query
        if query.get("list-type") != "2":
            raise RefusedRequestError(NOT_IMPLEMENTED)
        limit = min(int(query.get("max-keys") or 1000), self.server.options.page_keys)
        token = query.get("continuation-token", "")
        after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
        page = self.objects.list(
            request.bucket, prefix=query.get("prefix", ""), delimiter=query.get("delimiter", ""),
            after=after, limit=limit,
        )  # fmt: skip
        return self._xml("ListBucketResult", self._page_elements(request, page, limit))

    def _page_elements(self, request: Request, page: Page, limit: int) -> dict[str, object]:
        write = quote if request.query.get("encoding-type") == "url" else str
        following = base64.urlsafe_b64encode((page.after or "").encode()).decode()
        return {
            "Name": request.bucket,
            "Prefix": write(request.query.get("prefix", "")),
            "KeyCount": len(page.entries) + len(page.prefixes),
            "MaxKeys": limit,
            "IsTruncated": "false" if page.after is None else "true",
            **({} if page.after is None else {"NextContinuationToken": following}),
            **({"EncodingType": "url"} if write is quote else {}),
            "Contents": [
                {
                    "Key": write(key), "LastModified": iso(found.modified), "ETag": quoted(found),
                    "Size": found.size, "StorageClass": "STANDARD", **self.entry_elements(found),
                }
                for key, found in page.entries
            ],
            "CommonPrefixes": [{"Prefix": write(prefix)} for prefix in page.prefixes],
        }  # fmt: skip

    def _start_upload(self, request: Request) -> Response:
        upload_id = self.uploads.start(request.bucket, request.key, self._kept(request))
        told: dict[str, object] = {
            "Bucket": request.bucket, "Key": request.key, "UploadId": upload_id
        }  # fmt: skip
        return self._xml("InitiateMultipartUploadResult", told)

    def _upload(self, request: Request) -> Upload:
        return self.uploads.find(request.bucket, request.key, request.query["uploadId"])

    def _put_part(self, request: Request) -> Response:
        upload, number = self._upload(request), int(request.query["partNumber"])
        if f"{self.prefix}copy-source" in request.headers:
            source = self._source(request)
            between = range_of(request.header(f"{self.prefix}copy-source-range"), source.size)
            segments = source.bytes_between(*(between or (0, source.size)))
            part = self.uploads.put_part(upload, number, tuple(segments))
            return self._xml("CopyPartResult", {"ETag": quoted(part)})
        told = self.check(request)
        part = self.uploads.put_part(upload, number, (request.body,))
        return Response(200, {"ETag": quoted(part), **told})

    def _complete_upload(self, request: Request) -> Response:
        upload = self._upload(request)
        chosen = chosen_parts(request.body)
        self.check_completed(request, upload, [number for number, _ in chosen])
        done = self.uploads.complete(
            request.query["uploadId"], upload, chosen, self.write_condition(request),
            self.server.options.least_part_bytes,
        )  # fmt: skip
        told: dict[str, object] = {
            "Location": f"{self.server.url}{request.path}", "Bucket": request.bucket,
            "Key": request.key, "ETag": quoted(done),
        }  # fmt: skip
        return self._xml("CompleteMultipartUploadResult", told, self.written_headers(done))

    def _abort_upload(self, request: Request) -> Response:
        self._upload(request)
        self.uploads.abort(request.query["uploadId"])
        return Response(204)

    def _list_parts(self, request: Request) -> Response:
        upload = self._upload(request)
        parts = [
            {"PartNumber": number, "ETag": quoted(part), "Size": part.size, "LastModified": iso(part.modified)}
            for number, part in sorted(upload.parts.items())
        ]  # fmt: skip
        told: dict[str, object] = {
            "Bucket": request.bucket, "Key": request.key, "UploadId": request.query["uploadId"],
            "IsTruncated": "false", "Part": parts,
        }  # fmt: skip
        return self._xml("ListPartsResult", told)

    def _list_uploads(self, request: Request) -> Response:
        query = request.query
        after = UploadAt(query.get("key-marker", ""), query.get("upload-id-marker", ""))
        limit = min(int(query.get("max-uploads") or 1000), self.server.options.page_keys)
        found, more = self.uploads.list(request.bucket, query.get("prefix", ""), after, limit)
        told: dict[str, object] = {
            "Bucket": request.bucket, "IsTruncated": "true" if more else "false",
            "Upload": [
                {"Key": at.key, "UploadId": at.upload_id, "Initiated": iso(upload.started)}
                for at, upload in found
            ],
        }  # fmt: skip
        if more:
            last = found[-1][0]
            told |= {"NextKeyMarker": last.key, "NextUploadIdMarker": last.upload_id}
        return self._xml("ListMultipartUploadsResult", told)


def quoted(found: StoredObject) -> str:
    return f'"{found.etag}"'


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def http_date(seconds: float) -> str:
    return formatdate(seconds, usegmt=True)


def document(root: str, elements: dict[str, object], namespace: str = "") -> bytes:
    """An XML document; a list of records is an element for each."""
    space = f' xmlns="{namespace}"' if namespace else ""
    inner = "".join(_elements(elements))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{space}>{inner}</{root}>'.encode()


def _elements(elements: dict[str, object]) -> Iterable[str]:
    for name, value in elements.items():
        for one in value if isinstance(value, list) else [value]:
            text = "".join(_elements(one)) if isinstance(one, dict) else escape(str(one))
            yield f"<{name}>{text}</{name}>"


def read_document(body: memoryview, element: str) -> list[dict[str, str]]:
    """The elements of a name in a document that a client sent, each with what is in it."""
    try:
        root = ElementTree.fromstring(body.tobytes())  # noqa: S314 - from a client of the tests
    except ElementTree.ParseError:
        raise RefusedRequestError(MALFORMED_XML) from None
    found = (node for node in root if node.tag.endswith(element))
    return [{child.tag.rpartition("}")[2]: child.text or "" for child in node} for node in found]


def chosen_parts(body: memoryview) -> list[tuple[int, str]]:
    """Number and ETag of each part that an object is completed from."""
    parts = read_document(body, "Part")
    return [(int(part["PartNumber"]), part["ETag"].strip('"')) for part in parts]


def range_of(text: str, size: int) -> tuple[int, int] | None:
    """Where a ``Range`` begins and ends, as S3 and GCS read it: None if it is none that they serve, so that all is sent.

    One that ends behind the object is cut; one that begins there is refused.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not found or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(size - int(last), 0), size
    elif last and int(last) < int(first):
        return None
    else:
        start, end = int(first), min(int(last) + 1 if last else size, size)
    if start >= size:
        refused = {"RangeRequested": text, "ActualObjectSize": str(size)}
        raise RefusedRequestError(
            msgspec.structs.replace(
                INVALID_RANGE, headers={"Content-Range": f"bytes */{size}"}, elements=refused
            )
        )
    return start, end


def check_read(request: Request, found: StoredObject) -> None:
    """If-Match and If-None-Match of a GET."""
    if (match := request.header("if-match")) and not names(match, found):
        raise RefusedRequestError(PRECONDITION_FAILED)
    if (none := request.header("if-none-match")) and names(none, found):
        raise RefusedRequestError(NOT_MODIFIED)


def names(header: str, found: StoredObject) -> bool:
    """Whether a list of ETags has that of an object."""
    return header == "*" or found.etag in {etag.strip(' "') for etag in header.split(",")}
