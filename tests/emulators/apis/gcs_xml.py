"""The XML API of GCS, which obstore speaks: generations, ``x-goog-if-generation-match``, ``x-goog-hash``."""

from __future__ import annotations

from tests.emulators.apis.checks import base64_of, check_body, google_hashes
from tests.emulators.apis.error_answers import (
    NO_SUCH_KEY,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RefusedRequestError,
)
from tests.emulators.apis.xml_api import XmlApi, http_date, quoted
from tests.emulators.messages import Request
from tests.emulators.objects import Condition, StoredObject


class GcsXml(XmlApi):
    """``/bucket/key``; a generation that is no longer the newest is not found."""

    prefix = "x-goog-"
    namespace = "http://doc.s3.amazonaws.com/2006-03-01"

    def write_condition(self, request: Request) -> Condition:
        match = self._condition(request.header("x-goog-if-generation-match"))
        if request.method != "DELETE":
            return match

        def check(found: StoredObject | None) -> None:
            if found is None or request.query.get("generation", str(found.generation)) != str(found.generation):  # fmt: skip
                raise RefusedRequestError(NO_SUCH_KEY)
            match(found)

        return check

    def _condition(self, text: str) -> Condition:
        conditions = self.server.options.conditions
        if text and conditions == "refused":
            raise RefusedRequestError(NOT_IMPLEMENTED)
        return generation_matches(text if conditions == "kept" else "")

    def copy_condition(self, request: Request) -> Condition:
        return generation_matches(request.header("x-goog-copy-source-if-generation-match"))

    def check(self, request: Request) -> dict[str, str]:
        md5 = {k: v for k, v in request.headers.items() if k == "content-md5"}
        check_body(request.body, md5 | google_hashes(request.header("x-goog-hash")))
        return {}

    def written_headers(self, done: StoredObject) -> dict[str, str]:
        return super().written_headers(done) | self._goog_headers(done)

    def _goog_headers(self, found: StoredObject) -> dict[str, str]:
        return {
            "x-goog-generation": str(found.generation), "x-goog-metageneration": "1",
            "x-goog-hash": f"crc32c={base64_of(found.crc32c, 4)}",
            "x-goog-stored-content-length": str(found.size),
        }  # fmt: skip

    def object_headers(self, found: StoredObject, request: Request) -> dict[str, str]:
        if request.query.get("generation", str(found.generation)) != str(found.generation):
            raise RefusedRequestError(NO_SUCH_KEY)
        generation_matches(request.header("x-goog-if-generation-match"))(found)
        return {
            "ETag": quoted(found), "Last-Modified": http_date(found.modified), "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream", **found.headers, **self._goog_headers(found),
        }  # fmt: skip

    def entry_elements(self, found: StoredObject) -> dict[str, object]:
        return {"Generation": found.generation, "MetaGeneration": 1}


def generation_matches(text: str) -> Condition:
    """``""`` allows everything, ``"0"`` only that nothing is there, else only that generation."""

    def check(found: StoredObject | None) -> None:
        if text and (found.generation if found else 0) != int(text):
            raise RefusedRequestError(PRECONDITION_FAILED)

    return check
