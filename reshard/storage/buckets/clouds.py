"""The clouds whose buckets are read and written, a row each, and the URLs of their objects.

A new cloud is a new ``Scheme``, a row of ``CLOUDS`` and, if its error codes are new, entries in ``errors``.

A URL is ``gs://bucket/key``, ``s3://bucket/key`` or ``az://container/key``. A key is written without percent-encoding, as the
command lines of the clouds do. Ambiguous keys are refused: with an empty part, ``.``, ``..`` or a control character.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.base import RequestRates, RequestTraits

Scheme = Literal["gs", "s3", "az"]

_MIB = 1 << 20


class Cloud(Struct, frozen=True, kw_only=True):
    """The properties of one cloud.

    Attributes:
        other_schemes: names that other programs give to its URLs.
        container: its word for a bucket.
        client: name of obstore's class of its clients.
        complete: adds to the options of a client those that follow from the environment; returns further arguments.
        environment: variables that choose the server and the account: when one changes, a new client is made.
        endpoint_options, endpoint_variables: the places of an endpoint, options before variables.
        emulator: a variable that asks for an emulator, one that may name its URL, and the default of that.
        requests: the traits and the rates of its requests.
        least_part_bytes: of every part of an upload but the last.
        most_parts: of one object.
        proves_uploads: true if each upload carries a checksum that the store compares.
        lists_uploads: true if unfinished uploads in parts can be listed.
        tag_of_copy: the ETag of a copy by the store itself, from the MD5 of the content; None if its ETags prove no content.
    """

    other_schemes: tuple[str, ...]
    container: str
    client: str
    complete: Callable[[dict[str, str], str], dict[str, Any]]
    environment: tuple[str, ...]
    endpoint_options: tuple[str, ...]
    endpoint_variables: tuple[str, ...]
    emulator: tuple[str, str, str] = ("", "", "")
    requests: RequestTraits
    least_part_bytes: int
    most_parts: int
    proves_uploads: bool = False
    lists_uploads: bool = False
    tag_of_copy: Callable[[str], str] | None = None

    def endpoint(self, options: Mapping[str, str]) -> str:
        """The configured server; "" for the cloud's own. Raises StorageError for one that is no URL of a server."""
        wanted, place, default = self.emulator
        if wanted and is_on(wanted):
            return checked_endpoint(place, os.environ.get(place, default))
        named = [(name, options.get(name)) for name in self.endpoint_options]
        named += [(name, os.environ.get(name)) for name in self.endpoint_variables]
        return next((checked_endpoint(name, url) for name, url in named if url), "")


def checked_endpoint(name: str, url: str) -> str:
    """The endpoint ``url``, which the option or variable ``name`` has. Raises StorageError if it is no URL, on which the client panics.

    The message leaves the URL out: it may have a password.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or half an IPv6 address
        is_url = False
    if not is_url:
        raise StorageError(
            f"the endpoint in {name} is no URL of a server; give one such as http://127.0.0.1:9000 or https://minio.example.com"
        )
    return url


def is_on(variable: str) -> bool:
    """True if a variable of the environment says yes."""
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _complete_s3(options: dict[str, str], profile: str) -> dict[str, Any]:
    """Adds the options that every upload needs, and finds credentials."""
    from reshard.storage.buckets.aws import credentials

    options.setdefault("checksum_algorithm", "CRC64NVME")
    options.setdefault("copy_if_not_exists", "multipart")
    # The CRC proves the payload, at a quarter of the CPU of SHA-256.
    options.setdefault("unsigned_payload", "true")
    return credentials(options, profile or os.environ.get("AWS_PROFILE", ""))


def _complete_gs(options: dict[str, str], _: str) -> dict[str, Any]:
    """Reads the variable of Google's own clients for an emulator; an emulator needs no credentials."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator and "base_url" not in options and not os.environ.get("GOOGLE_BASE_URL"):
        options["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
        if not os.environ.get("GOOGLE_BEARER_TOKEN"):
            options.setdefault("skip_signature", "true")
    return {}


def _complete_az(options: dict[str, str], _: str) -> dict[str, Any]:
    """Reads the connection string of Azure's own clients, if nothing else names the account."""
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if text and "account_name" not in options and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
        names = (
            ("AccountName", "account_name"), ("AccountKey", "account_key"), ("BlobEndpoint", "endpoint"),
            ("SharedAccessSignature", "sas_key"),
        )  # fmt: skip
        options.update({ours: parts[theirs] for theirs, ours in names if theirs in parts})
    return {}


def _tag_of_one_part(md5: str) -> str:
    """The ETag that S3 gives to an upload of one part."""
    import hashlib

    of_parts = hashlib.md5(bytes.fromhex(md5), usedforsecurity=False).hexdigest()
    return f'"{of_parts}-1"'


CLOUDS: dict[Scheme, Cloud] = {
    "s3": Cloud(
        other_schemes=("s3a", "s3n"),
        container="bucket",
        client="S3Store",
        complete=_complete_s3,
        environment=(
            "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_PROFILE", "AWS_ACCESS_KEY_ID",
            "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE",
        ),
        endpoint_options=("aws_endpoint_url_s3", "endpoint", "aws_endpoint"),
        endpoint_variables=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        requests=RequestTraits(puts_of_copy=2, rates=RequestRates(5500, 3500)),
        least_part_bytes=5 * _MIB,
        most_parts=10_000,
        proves_uploads=True,
        lists_uploads=True,
        tag_of_copy=_tag_of_one_part,
    ),
    "gs": Cloud(
        other_schemes=("gcs",),
        container="bucket",
        client="GCSStore",
        complete=_complete_gs,
        environment=(
            "GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN",
            "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE",
        ),
        endpoint_options=("base_url", "google_base_url"),
        endpoint_variables=("GOOGLE_BASE_URL",),
        requests=RequestTraits(
            deleted_at_once=1, reads_uploads_back=True, rates=RequestRates(5000, 1000, 1200)
        ),
        least_part_bytes=5 * _MIB,
        most_parts=10_000,
        tag_of_copy='"{}"'.format,
    ),
    "az": Cloud(
        other_schemes=("azure", "abfs", "abfss", "wasb", "wasbs", "adl"),
        container="container",
        client="AzureStore",
        complete=_complete_az,
        environment=(
            "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR",
            "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURITE_BLOB_STORAGE_URL",
        ),
        endpoint_options=("endpoint", "azure_endpoint"),
        endpoint_variables=("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        emulator=("AZURE_STORAGE_USE_EMULATOR", "AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000"),
        requests=RequestTraits(deleted_at_once=256, rates=RequestRates(20_000, 20_000)),
        least_part_bytes=1,
        most_parts=50_000,
    ),
}  # fmt: skip
"""The clouds publish these rates. A target's objects count as one prefix and one bucket: clouds split them only under load.

- S3: the guaranteed rate of each partitioned prefix (Amazon S3 User Guide, "Best practices design patterns: optimizing
  Amazon S3 performance").
- Google Cloud Storage: the initial rate of a bucket; it grows if requests double no faster than every 20 minutes ("Request rate
  and access distribution guidelines").
- Azure: the rate of a standard account, for reads and writes together; here each has all of it ("Scalability and performance targets for
  standard storage accounts").
"""

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

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
    lower = scheme.lower()
    for known, cloud in CLOUDS.items():
        if lower == known or lower in cloud.other_schemes:
            return f"write it as {known}://{cloud.container}/path"
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
        what = CLOUDS[cast("Scheme", scheme)].container
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
