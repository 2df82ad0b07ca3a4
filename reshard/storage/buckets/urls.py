"""URLs of objects in buckets: ``gs://bucket/key``, ``s3://bucket/key`` and ``az://container/key``.

A key is written without percent-encoding, as the command lines of the clouds do. Ambiguous keys are refused: with an
empty part, ``.``, ``..`` or a control character.
"""

from __future__ import annotations

import re
from typing import Literal, cast, get_args

from reshard.errors import StorageError

Scheme = Literal["gs", "s3", "az"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

_OTHER_NAMES = {
    "gcs": "gs", "s3a": "s3", "s3n": "s3",
    "azure": "az", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az", "adl": "az",
}  # fmt: skip

_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,221}")
_SIGNATURE = re.compile(
    r"[?&](sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+|awsaccesskeyid)=", re.IGNORECASE
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

KEY_BYTES = 1024
"""The longest key in UTF-8; the smallest limit of the three clouds."""


def is_bucket_scheme(scheme: str) -> bool:
    """True if URLs of this scheme name objects in buckets."""
    return scheme in SCHEMES


def other_scheme(scheme: str) -> str:
    """The remedy for an unknown scheme."""
    known = _OTHER_NAMES.get(scheme.lower(), scheme.lower())
    if is_bucket_scheme(known):
        bucket = "container" if known == "az" else "bucket"
        return f"write it as {known}://{bucket}/path"
    return "give a local path, or a URL that begins with gs://, s3:// or az://"


def parse_url(text: str) -> tuple[Scheme, str, str]:
    """The scheme, bucket and key that a URL names; one slash at the end of the key is dropped.

    Raises StorageError for a URL that names no clean key. Its message never repeats a password or a signature.
    """
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    if "@" in bucket:
        raise StorageError(
            f"{scheme}://…@{bucket.rpartition('@')[2]}: a URL of a bucket takes no user and no password; credentials "
            "come from the environment (see how-to/buckets)"
        )
    if found := _SIGNATURE.search(rest):
        raise StorageError(
            f"{scheme}://{rest[: found.start()]}: a signed URL cannot be taken, since a checkpoint has many objects; "
            "remove the query, and give credentials in the environment (see how-to/buckets)"
        )
    if not _BUCKET.fullmatch(bucket):
        what = "container" if scheme == "az" else "bucket"
        raise StorageError(
            f"{text!r}: {bucket!r} cannot be the name of a {what}; expected {scheme}://{what}/path"
        )
    key = key.removesuffix("/") if key != "/" else key
    if problem := key_problem(key):
        raise StorageError(f"{text!r} {problem}")
    return cast("Scheme", scheme), bucket, key


def key_problem(key: str) -> str:
    """The reason why a key cannot be read or written, as the end of a sentence; "" for a clean key."""
    if not key:
        return ""
    for part in key.split("/"):
        if not part:
            return "has an empty part ('//'), which programs read in different ways; write single slashes"
        if part in (".", ".."):
            return f"has the part {part!r}, which means another folder to some programs; write the path without it"
    if found := _CONTROL.search(key):
        return (
            f"has the control character {found[0]!r}; no object of a checkpoint has one in its name"
        )
    if len(key.encode()) > KEY_BYTES:
        return f"is longer than the {KEY_BYTES:,} bytes that a key may have; choose a shorter path"
    return ""


def format_url(scheme: Scheme, bucket: str, key: str) -> str:
    """The URL of a key, which ``parse_url`` takes."""
    return f"{scheme}://{bucket}/{key}" if key else f"{scheme}://{bucket}"
