"""Writes and deletes objects: whole, in parts, or only at a free path; finds out what a store received if its answer was lost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec import Struct, structs

from reshard.checksums.crc import CRC64NVME
from reshard.errors import MissingError, SourceChangedError, StorageError, TargetExistsError
from reshard.storage.buckets import counts
from reshard.storage.buckets.clouds import CLOUDS, key_problem
from reshard.storage.buckets.counts import version_of
from reshard.storage.buckets.errors import (
    DamagedUploadError,
    bucket_error,
    bucket_errors,
    client_errors,
    damaged_upload,
)
from reshard.storage.buckets.file import RANGE_BYTES

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore

    from reshard.storage.buckets.store import BucketStore


_MIB = 1 << 20

DELETED_AT_ONCE = 1000

WHOLE_BYTES = 16 * _MIB
"""Content that comes in pieces is put whole up to this size, and uploaded in parts beyond."""

_ATTEMPTS = 3
"""Attempts to put an object whole, or to delete some; each with the retries of obstore."""

_PART_BYTES = 8 * _MIB
PARTS_AT_ONCE = 3

Attributes: TypeAlias = Mapping[str, str]
_NONE: Attributes = {}


def put(
    store: BucketStore, path: str, data: bytes | memoryview, attributes: Attributes = _NONE
) -> str:
    """Puts an object whole, in place of an existing one; returns its version. S3 compares the CRC-64/NVME that is sent along.

    ``attributes`` are kept with the object.
    """
    return _put(store, path, data, "overwrite", attributes)


def put_new(
    store: BucketStore, path: str, data: bytes | memoryview, attributes: Attributes = _NONE
) -> str:  # fmt: skip
    """Puts an object only if there is none; returns its version. Raises TargetExistsError if there is another one.

    If an answer is lost, the request is sent again and finds its own object; so an object with the same bytes counts as put.
    """
    try:
        return _put(store, path, data, "create", attributes)
    except TargetExistsError:
        found = store.status(path)
        if found is None or found.nbytes != len(data):
            raise
        try:
            is_ours = store.open(path, found.version).read(0, found.nbytes) == data
        except (SourceChangedError, MissingError):  # another run has replaced or deleted it
            is_ours = False
        if not is_ours:
            raise
        return found.version


class Known(Struct, frozen=True):
    """The version of an object that may be replaced: an ETag or a generation, as the cloud requires."""

    e_tag: str | None
    version: str | None


def known_version(store: BucketStore, path: str) -> Known | None:
    """The current version of an object; None if there is none."""
    client = store.client(path)
    with bucket_errors("look at", store.text(path)):
        try:
            found = counts.head(client, path)
        except FileNotFoundError:
            return None
    return Known(found["e_tag"], found["version"])


def replace(
    store: BucketStore, path: str, data: bytes | memoryview, known: Known, attributes: Attributes = _NONE
) -> str:  # fmt: skip
    """Puts an object only in place of this version; returns the new version. Raises SourceChangedError if it is another one now."""
    try:
        return _put(store, path, data, _in_place_of(known), attributes)
    except MissingError as error:
        raise SourceChangedError(str(error)) from None


def _in_place_of(known: Known) -> PutMode:
    found = {name: value for name, value in structs.asdict(known).items() if value is not None}
    return cast("PutMode", found)


def part_bytes(nbytes: int) -> int:
    """The bytes of each part but the last, of an object of ``nbytes``: at most 10,000 parts."""
    return max(_PART_BYTES, -(-nbytes // (CLOUDS["s3"].most_parts * _MIB)) * _MIB)


def put_memory_bytes(nbytes: int, *, in_parts: bool = False) -> int:
    """Memory for putting a file of ``nbytes``, besides these: a copy, or the parts of an upload.

    ``in_parts``: true if the bytes come in pieces, or are a piece of a larger file.
    """
    return max(2 * WHOLE_BYTES, (PARTS_AT_ONCE + 2) * part_bytes(nbytes)) if in_parts else nbytes


def put_parts(
    store: BucketStore, path: str, parts: Iterable[bytes | memoryview], part_bytes: int
) -> str:
    """Uploads an object in parts, in order; returns its version. It appears when all parts are there.

    Args:
        parts: of any lengths; they are cut into parts of ``part_bytes``, kept in memory until they are sent.

    If a part fails, or ``parts`` raises, the upload is aborted, so that nothing of it is stored or paid for. A killed
    process leaves its upload; a lifecycle rule of the bucket should remove such uploads.

    S3 compares the checksum of each part. Google Cloud's ETag does not depend on the content, so that the object is read back.
    It is also read back if the last answer was lost, since the repeated request finds the upload gone.
    """
    least = CLOUDS[store.scheme].least_part_bytes
    if part_bytes < least:
        raise StorageError(
            f"{store.text(path)}: parts of {part_bytes:,} bytes are too small; the store takes {least:,} or more"
        )
    client, sent = _writable(store, path), Sent()
    taken = sent.counted(parts)
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            with bucket_errors("write", store.text(path)):
                done = counts.put_parts(client, path, taken, part_bytes, PARTS_AT_ONCE)
            break
        except StorageError as error:
            # Once bytes were taken they cannot be made again; before that nothing is lost.
            if attempts_left and error.fault == "slow" and not sent.nbytes:
                continue  # nothing came of its beginning
            there = stored_version(store, path, sent)
            if there is None:
                raise
            return there
    version = version_of(done["e_tag"])
    if _is_read_back(store) and not is_received_in_parts(store, path, version, sent):
        delete(store, [path])
        raise damaged_upload(store.text(path))
    return version


def delete(
    store: BucketStore, paths: Iterable[str], check: Callable[[], None] | None = None
) -> None:
    """Deletes objects, a thousand in one request if the store takes it; missing ones are fine.

    ``check`` is called before each request; an error that it raises ends the deletion. Requests without an answer are sent again.
    """
    every = list(paths)
    for batch in (every[i : i + DELETED_AT_ONCE] for i in range(0, len(every), DELETED_AT_ONCE)):
        for attempts_left in reversed(range(_ATTEMPTS)):
            if check is not None:  # a late request would delete objects of a later run
                check()
            try:
                _delete(store, batch)
                break
            except StorageError as error:
                if not attempts_left or error.fault != "slow":
                    raise


def delete_folder(store: BucketStore, folder: str) -> int:
    """Deletes every object below a folder; returns their number."""
    if not folder:
        raise StorageError(f"{store.text('')}: a whole bucket is not deleted; name a folder in it")
    paths = [f"{folder}/{path}" for path in store.files(folder)]
    delete(store, paths)
    return len(paths)


def _put(
    store: BucketStore, path: str, data: bytes | memoryview, mode: PutMode, attributes: Attributes
) -> str:  # fmt: skip
    """Puts an object; sends it again if its bytes changed on their way or got no answer. obstore repeats only puts without conditions.

    With a condition the first attempt is one request: a store that knows no conditions would be asked for minutes.
    """
    is_first = mode != "overwrite"
    for attempts_left in reversed(range(_ATTEMPTS + is_first)):
        client = _writable(store, path, retries=not is_first)
        try:
            with bucket_errors("write", store.text(path)):
                done = counts.put(client, path, data, mode, attributes)
        except StorageError as error:
            if not attempts_left or not _is_worth_it(error, was_repeated=not is_first):
                raise
            is_first = False
            continue
        version = version_of(done["e_tag"])
        if not _is_read_back(store) or is_received(store, path, data, version):
            return version
        mode, is_first = _in_place_of(Known(done["e_tag"], done["version"])), False
    delete(store, [path])
    raise damaged_upload(store.text(path))


def _is_worth_it(error: StorageError, *, was_repeated: bool) -> bool:
    """True if a put should be made again after an error; ``was_repeated``: obstore has repeated it already."""
    if isinstance(error, DamagedUploadError):
        return True
    return error.fault == "slow" or (error.fault == "unavailable" and not was_repeated)


def _is_read_back(store: BucketStore) -> bool:
    """True if no answer of the store proves that the sent bytes arrived."""
    return CLOUDS[store.scheme].requests.reads_uploads_back


def _writable(store: BucketStore, path: str, *, retries: bool = True) -> ObjectStore:
    """The client for a path. Raises StorageError for a path that must not be written."""
    if problem := key_problem(path):
        raise StorageError(f"{store.text(path)!r} {problem}")
    return store.client(path, retries=retries)


def _delete(store: BucketStore, paths: list[str]) -> None:
    client = store.client(paths[0])
    try:
        counts.delete(client, paths)
        return
    except FileNotFoundError:
        pass  # it is not known which ones were deleted
    except client_errors() as error:
        raise bucket_error("delete", store.text(paths[0]), error) from None
    for path in paths:
        try:
            counts.delete(client, path)
        except FileNotFoundError:
            continue
        except client_errors() as error:
            raise bucket_error("delete", store.text(path), error) from None


_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

_RANGES_AT_ONCE = 4


class Sent:
    """The bytes that an upload in parts has taken: their number, their CRC-64/NVME, and whether these are all."""

    def __init__(self) -> None:
        self.nbytes = self.crc = 0
        self.is_all = False

    def counted(self, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The parts, without empty ones."""
        for part in parts:
            if len(part):
                self.nbytes += len(part)
                self.crc = CRC64NVME.of(part, self.crc)
                yield part
        self.is_all = True


def is_received(store: BucketStore, path: str, data: bytes | memoryview, version: str) -> bool:
    """True if Google Cloud received the bytes of an object put whole: its ETag is usually its MD5.

    If it is something else (the object has a key of the customer), the object is read back. An object that another run
    has replaced or deleted since counts as stored: nothing is left that could be wrong.
    """
    found = _MD5.fullmatch(version)
    if found is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() == found[1]:
        return True
    try:
        return store.open(path, version).read(0, len(data) + 1) == data
    except (SourceChangedError, MissingError):
        return True


def is_received_in_parts(store: BucketStore, path: str, version: str, sent: Sent) -> bool:
    """True if an object has the bytes of an upload; reads it in that version."""
    file, done, crc = store.open(path, version), 0, 0
    buffer = memoryview(bytearray(min(sent.nbytes, _RANGES_AT_ONCE * RANGE_BYTES)))
    while done < sent.nbytes and (read := file.fill(done, buffer[: sent.nbytes - done])):
        crc = CRC64NVME.of(buffer[:read], crc)
        done += read
    return (done, crc) == (sent.nbytes, sent.crc) and not file.read(done, 1)


def stored_version(store: BucketStore, path: str, sent: Sent) -> str | None:
    """The version of an object that has all bytes of an upload although the store answered with an error; else None."""
    with suppress(StorageError):
        found = store.status(path) if sent.is_all else None
        if found is not None and is_received_in_parts(store, path, found.version, sent):
            return found.version
    return None
