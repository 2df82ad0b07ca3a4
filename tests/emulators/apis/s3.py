"""S3: checked checksums, If-Match and If-None-Match on writes, deletion of many objects."""

from __future__ import annotations

import hashlib
import re

import msgspec

from tests.emulators.apis.checks import base64_of, check_body, number_of
from tests.emulators.apis.error_answers import (
    BAD_DIGEST,
    NO_SUCH_KEY,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RefusedRequestError,
)
from tests.emulators.apis.xml_api import XmlApi, http_date, names, quoted, read_document
from tests.emulators.messages import Request, Response, without_aws_chunks
from tests.emulators.objects import Condition, StoredObject, checksums
from tests.emulators.uploads import Upload

CRC64 = "x-amz-checksum-crc64nvme"


class S3(XmlApi):
    """S3 with path-style addresses: ``/bucket/key``."""

    prefix = "x-amz-"
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"

    def write_condition(self, request: Request) -> Condition:
        return self._condition(request.header("if-match"), request.header("if-none-match"))

    def _condition(self, match: str, none: str) -> Condition:
        conditions = self.server.options.conditions
        if (match or none) and conditions == "refused":
            raise RefusedRequestError(NOT_IMPLEMENTED)
        if none not in {"", "*"}:
            raise RefusedRequestError(NOT_IMPLEMENTED)

        def check(found: StoredObject | None) -> None:
            if conditions == "ignored":
                return
            if match and found is None:
                raise RefusedRequestError(NO_SUCH_KEY)
            if (none and found) or (match and found and not names(match, found)):
                raise RefusedRequestError(PRECONDITION_FAILED)

        return check

    def copy_condition(self, request: Request) -> Condition:
        return self._condition(request.header("x-amz-copy-source-if-match"), "")

    def check(self, request: Request) -> dict[str, str]:
        expected = request.headers
        if "aws-chunked" in request.header("content-encoding"):
            request.body, trailer = without_aws_chunks(request.body)
            expected = expected | trailer
        sha256 = request.header("x-amz-content-sha256")
        is_hash = re.fullmatch("[0-9a-f]{64}", sha256)
        if is_hash and hashlib.sha256(request.body).hexdigest() != sha256:
            raise _bad_digest("x-amz-content-sha256", "XAmzContentSHA256Mismatch")
        check_body(request.body, expected)
        return {k: v for k, v in expected.items() if k.startswith("x-amz-checksum-")}

    def check_completed(self, request: Request, upload: Upload, numbers: list[int]) -> None:
        whole = [s for n in numbers if n in upload.parts for s in upload.parts[n].segments]
        expected = request.header(CRC64)
        if expected and checksums(whole)[1] != number_of(expected):
            raise _bad_digest("CRC64NVME")

    def written_headers(self, done: StoredObject) -> dict[str, str]:
        told = {CRC64: base64_of(done.crc64, 8), "x-amz-checksum-type": "FULL_OBJECT"}
        return super().written_headers(done) | told

    def object_headers(self, found: StoredObject, request: Request) -> dict[str, str]:
        headers = {
            "ETag": quoted(found), "Last-Modified": http_date(found.modified), "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream", **found.headers,
        }  # fmt: skip
        if request.header("x-amz-checksum-mode").upper() == "ENABLED" and not request.header(
            "range"
        ):
            headers |= {CRC64: base64_of(found.crc64, 8), "x-amz-checksum-type": "FULL_OBJECT"}
        return headers

    def entry_elements(self, found: StoredObject) -> dict[str, object]:  # noqa: ARG002  of the interface
        return {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}

    def _delete_many(self, request: Request) -> Response:
        self.check(request)
        keys = [found["Key"] for found in read_document(request.body, "Object")]
        for key in keys:
            self.objects.delete(request.bucket, key, lambda _: None)
        return self._xml("DeleteResult", {"Deleted": [{"Key": key} for key in keys]})


def _bad_digest(name: str, code: str = "BadDigest") -> RefusedRequestError:
    message = BAD_DIGEST.message.format(name)
    return RefusedRequestError(msgspec.structs.replace(BAD_DIGEST, code=code, message=message))
