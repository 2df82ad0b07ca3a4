"""What a request of the JSON API of GCS means: its path, its conditions, and the parts of its body."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from tests.emulators.apis.error_answers import (
    NO_SUCH_KEY,
    NOT_MODIFIED,
    PARSE_ERROR,
    PRECONDITION_FAILED,
    RefusedRequestError,
)
from tests.emulators.apis.resumable import Chunk, chunk_of
from tests.emulators.messages import Request
from tests.emulators.objects import Condition, StoredObject


class Place(NamedTuple):
    """What a path names; ``verb`` is what else is to be done with an object. ``kind`` is "" for what is not known."""

    kind: Literal["", "buckets", "bucket", "objects", "object"] = ""
    bucket: str = ""
    key: str = ""
    verb: str = ""
    to_bucket: str = ""
    to_key: str = ""


def place_of(path: str) -> Place:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] in {"upload", "download"}:
        del parts[0]
    match parts[2:]:
        case ["b"]:
            return Place("buckets")
        case ["b", bucket]:
            return Place("bucket", bucket)
        case ["b", bucket, "o"]:
            return Place("objects", bucket)
        case ["b", bucket, "o", key]:
            return Place("object", bucket, key)
        case ["b", bucket, "o", key, "compose"]:
            return Place("object", bucket, key, "compose", bucket, key)
        case ["b", bucket, "o", key, ("copyTo" | "rewriteTo") as verb, "b", to_bucket, "o", to_key]:
            return Place("object", bucket, key, verb, to_bucket, to_key)
        case ["b", bucket, "o", key, "moveTo", "o", to_key]:
            return Place("object", bucket, key, "moveTo", bucket, to_key)
    return Place()


def check_generation(found: StoredObject, asked: object) -> None:
    """Refuses another version than the newest; "" and None ask for that."""
    if asked and str(asked) != str(found.generation):
        raise RefusedRequestError(NO_SUCH_KEY)


def chunk_in(request: Request) -> Chunk:
    """Which bytes of a resumable upload a request brings."""
    return chunk_of(request.header("content-range"), int(request.header("content-length") or 0))


CONDITIONS = {
    "ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch"
}  # fmt: skip


def conditions_of(query: dict[str, str], *, is_read: bool = False) -> Condition:
    """What a query demands of the object that is there; its metageneration is always 1.

    Reading what should not be of a generation is answered with 304, as long as it is.
    """

    def check(found: StoredObject | None) -> None:
        numbers = {
            "Generation": found.generation if found else 0,
            "Metageneration": 1 if found else 0,
        }
        for name, number in numbers.items():
            if int(query.get(f"if{name}Match", number)) != number:
                raise RefusedRequestError(PRECONDITION_FAILED)
            if int(query.get(f"if{name}NotMatch", -1)) == number:
                raise RefusedRequestError(NOT_MODIFIED if is_read else PRECONDITION_FAILED)

    return check


def hashes_of(resource: dict[str, Any]) -> dict[str, str]:
    """The checksums that the resource of an upload names."""
    named = {"crc32c": "crc32c", "md5Hash": "md5"}
    return {ours: resource[name] for name, ours in named.items() if name in resource}


def two_parts(request: Request) -> tuple[dict[str, Any], str, memoryview]:
    """The resource, the content type and the data of a ``multipart`` upload."""
    found = re.search(r'boundary="?([^";]+)"?', request.header("content-type"))
    if not found:
        raise RefusedRequestError(PARSE_ERROR)
    parts = request.body.tobytes().split(f"--{found[1]}".encode(), 2)
    if len(parts) < 3:
        raise RefusedRequestError(PARSE_ERROR)
    resource = _part(parts[1])[1]
    head, data = _part(parts[2].rpartition(f"--{found[1]}--".encode())[0])
    named = re.search(rb"(?im)^content-type:\s*([^\r\n]+)", head)
    kind = named[1].decode() if named else "application/octet-stream"
    return document_of(memoryview(resource)), kind, memoryview(data)


def _part(text: bytes) -> tuple[bytes, bytes]:
    """Headers and body of one part; lines end with CR LF, from gcsfs with LF."""
    found = re.search(rb"\r?\n\r?\n", text)
    if found is None:
        raise RefusedRequestError(PARSE_ERROR)
    line = b"\r\n" if found[0].startswith(b"\r") else b"\n"
    return text[: found.start()], text[found.end() :].removesuffix(line)


def document_of(body: memoryview) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(body.tobytes() or b"{}")
    except ValueError:
        raise RefusedRequestError(PARSE_ERROR) from None
    return read
