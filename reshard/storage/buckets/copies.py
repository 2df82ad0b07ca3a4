"""Copies objects within a bucket without their bytes passing through this process."""

from __future__ import annotations

import re

from reshard.errors import SourceChangedError
from reshard.storage.base import FileStatus
from reshard.storage.buckets import counts, objects
from reshard.storage.buckets.clouds import CLOUDS, Scheme, parse_url
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.store import BucketStore
from reshard.storage.location import Location

LEAST_BYTES = 4 << 20
"""Smaller objects are read and written in fewer requests than a copy takes."""

GREATEST_BYTES = 5 << 30
"""The largest object that S3 copies in one request."""

_MD5 = re.compile(r'"([0-9a-f]{32})"')

_UNPROVEN: set[tuple[Scheme, str]] = set()
"""Buckets whose ETags do not depend on the content alone, such as those with keys of the customer."""


def is_worth_it(source: str, target: str, nbytes: int) -> bool:
    """True if two URLs are in one bucket with provable copies, and an object is large enough."""
    place, other = parse_url(source)[:2], parse_url(target)[:2]
    is_one = place == other and CLOUDS[place[0]].tag_of_copy is not None and place not in _UNPROVEN
    return is_one and LEAST_BYTES <= nbytes <= GREATEST_BYTES


def is_provable(source: str, version: str) -> bool:
    """True if the ETag of an object shows that a copy of it has the same bytes."""
    return bool(_tag_of_copy(parse_url(source)[0], version))


def copy_within(source: Location, status: FileStatus, target: Location) -> str:
    """Copies an object in the version of ``status`` to a free path; returns the version of the copy, or "" if nothing was copied.

    The copy is proven by its ETag: the MD5 of the content, or on S3 the MD5 of an upload of one part, since only such copies
    obey a condition there. A copy that cannot be proven is removed; the caller then copies the bytes and compares them.
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
    """The ETag of an object with the content that an ETag proves; "" if it proves none."""
    found, tag_of_copy = _MD5.fullmatch(version), CLOUDS[scheme].tag_of_copy
    return "" if found is None or tag_of_copy is None else tag_of_copy(found[1])


def _copy(store: BucketStore, path: str, target: str) -> bool:
    """True if the store copied it. It does not if an object is there, or if it knows no such copy."""
    client = store.client(target)
    from obstore.exceptions import AlreadyExistsError, NotSupportedError

    with bucket_errors("copy", store.text(path)):
        try:
            counts.copy(client, path, target)
        except (AlreadyExistsError, NotSupportedError, NotImplementedError):
            return False
    return True
