"""Copies objects within a bucket without their bytes passing through this process."""

from __future__ import annotations

import hashlib
import re

from reshard.errors import SourceChangedError
from reshard.storage.base import FileStatus
from reshard.storage.buckets import counts, objects
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.urls import Scheme, parse_url
from reshard.storage.location import Location

LEAST_BYTES = 4 << 20
"""What is smaller is read and written in fewer requests."""

GREATEST_BYTES = 5 << 30
"""S3 copies no larger object in one request."""

_MD5 = re.compile(r'"([0-9a-f]{32})"')

_UNPROVEN: set[tuple[Scheme, str]] = set()
"""Buckets whose ETags do not tell what an object holds, such as those with keys of the customer."""


def is_worth_it(source: str, target: str, nbytes: int) -> bool:
    """Whether two URLs are in one bucket whose copies can be proven, and an object is large enough."""
    place, other = parse_url(source)[:2], parse_url(target)[:2]
    is_one = place == other and place[0] != "az" and place not in _UNPROVEN
    return is_one and LEAST_BYTES <= nbytes <= GREATEST_BYTES


def is_provable(source: str, version: str) -> bool:
    """Whether the ETag of an object shows that a copy of it has the same bytes."""
    return bool(_tag_of_copy(parse_url(source)[0], version))


def copy_within(source: Location, status: FileStatus, target: Location) -> str:
    """Copies an object in the version of ``status`` to where none is; the version of the copy, or "" where nothing was copied.

    The copy is proven by its ETag: the MD5 of what it holds, and on S3, whose copies keep to a condition only in an upload of
    one part, the MD5 of that. What cannot be proven is removed, and is left to a caller who reads and compares the bytes.
    """
    scheme, bucket, path = parse_url(str(source))
    store, to = BucketStore(scheme, bucket), target.path
    expected = _tag_of_copy(scheme, status.version)
    if not expected or store.client(path) is not store.client(to):
        return ""  # or each has settings of its own
    if not _copy(store, path, to):
        return ""
    found = store.status(to)
    if found is not None and (found.version, found.nbytes) == (expected, status.nbytes):
        return found.version
    objects.delete(store, [to])
    now = store.status(path)
    if now is None or now.version != status.version:
        raise SourceChangedError(
            f"{source} changed while it was copied: its ETag is another one now; run again once nobody writes to it"
        )
    _UNPROVEN.add((scheme, bucket))
    return ""


def _tag_of_copy(scheme: Scheme, version: str) -> str:
    """The ETag of an object with the content that an ETag proves; "" where it proves none."""
    found = _MD5.fullmatch(version)
    if found is None or scheme == "az":
        return ""
    if scheme == "gs":
        return version
    of_parts = hashlib.md5(bytes.fromhex(found[1]), usedforsecurity=False).hexdigest()
    return f'"{of_parts}-1"'


def _copy(store: BucketStore, path: str, target: str) -> bool:
    """Whether the store did it: it does not where an object is there, or where it knows no such copy."""
    client = store.client(target)
    from obstore.exceptions import AlreadyExistsError, NotSupportedError

    with bucket_errors("copy", store.text(path)):
        try:
            counts.copy(client, path, target)
        except (AlreadyExistsError, NotSupportedError, NotImplementedError):
            return False
    return True
