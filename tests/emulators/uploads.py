"""Multipart uploads: parts in any order, completed into one object."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import msgspec

from tests.emulators.apis.error_answers import (
    ENTITY_TOO_SMALL,
    INVALID_PART,
    INVALID_PART_ORDER,
    NO_SUCH_UPLOAD,
    RefusedRequestError,
)
from tests.emulators.objects import Condition, Objects, Segments, StoredObject


class Upload(msgspec.Struct):
    """An unfinished upload; ``started`` in seconds since 1970."""

    bucket: str
    key: str
    headers: dict[str, str]
    started: float
    parts: dict[int, StoredObject] = {}


class UploadAt(NamedTuple):
    """Where an upload stands in a listing: by its key, then by its id."""

    key: str
    upload_id: str


class Uploads:
    """The unfinished uploads of a server."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.unfinished: dict[str, Upload] = {}

    def start(self, bucket: str, key: str, headers: dict[str, str]) -> str:
        with self.objects.lock:
            self.objects.bucket(bucket)
            upload_id = secrets.token_hex(16)
            self.unfinished[upload_id] = Upload(bucket, key, headers, self.objects.now())
        return upload_id

    def find(self, bucket: str, key: str, upload_id: str) -> Upload:
        found = self.unfinished.get(upload_id)
        if found is None or (found.bucket, found.key) != (bucket, key):
            raise RefusedRequestError(NO_SUCH_UPLOAD)
        return found

    def put_part(self, upload: Upload, number: int, segments: Segments) -> StoredObject:
        part = self.objects.version(segments, {})
        with self.objects.lock:
            upload.parts[number] = part
        return part

    def complete(
        self, upload_id: str, upload: Upload, chosen: list[tuple[int, str]], condition: Condition,
        least_part_bytes: int,
    ) -> StoredObject:  # fmt: skip
        """One object from the chosen parts (number, ETag); the upload is gone from then on."""
        numbers = [number for number, _ in chosen]
        if not chosen or numbers != sorted(set(numbers)):
            raise RefusedRequestError(INVALID_PART_ORDER)
        with self.objects.lock:
            parts = [upload.parts.get(number) for number in numbers]
            found = [p for p, (_, etag) in zip(parts, chosen, strict=True) if p and p.etag == etag]
            if len(found) < len(chosen):
                raise RefusedRequestError(INVALID_PART)
            if any(part.size < least_part_bytes for part in found[:-1]):
                raise RefusedRequestError(ENTITY_TOO_SMALL)
            segments = tuple(segment for part in found for segment in part.segments)
            stored = self.objects.put(
                upload.bucket, upload.key, segments, upload.headers, condition, found
            )
            self.unfinished.pop(upload_id, None)
        return stored

    def abort(self, upload_id: str) -> None:
        with self.objects.lock:
            self.unfinished.pop(upload_id, None)

    def list(
        self, bucket: str, prefix: str, after: UploadAt, limit: int
    ) -> tuple[list[tuple[UploadAt, Upload]], bool]:
        """Uploads behind ``after`` in order, and whether there are more. Without an id, all of that key are behind it."""
        with self.objects.lock:
            self.objects.bucket(bucket)
            found = sorted(
                (UploadAt(upload.key, upload_id), upload)
                for upload_id, upload in self.unfinished.items()
                if upload.bucket == bucket and upload.key.startswith(prefix)
            )
        if after.key:
            found = [
                f for f in found if (f[0] > after if after.upload_id else f[0].key > after.key)
            ]
        return found[:limit], len(found) > limit
