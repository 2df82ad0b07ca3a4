"""URLs of the Hugging Face hub: ``hf://[models/|datasets/|spaces/]namespace/name[@revision][/path]``.

A URL without a kind names a model, and one without a revision the branch ``main``. A revision is a branch, a tag or a commit. A
slash in it is written ``%2F``, except in ``refs/pr/N`` and ``refs/convert/NAME``.

``hf://buckets/namespace/name/path`` names a folder in a bucket of the hub, which is read and written through its S3 interface.
"""

from __future__ import annotations

import re
from typing import Literal, cast
from urllib.parse import quote, unquote

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.buckets.clients import VARIABLE, settings_for
from reshard.storage.buckets.clouds import CLOUDS, format_url, key_problem, parse_url

RepoKind = Literal["models", "datasets", "spaces"]

SCHEME = "hf"
MAIN = "main"

_NAME = r"(?![^/@]*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_ADDRESS = re.compile(
    rf"(?is)hf://(?:(models|datasets|spaces)/)?({_NAME})/({_NAME})(?:@(refs/pr/\d+|refs/convert/[\w.-]+|[^/@]+))?(?:/(.*))?"
)
_BUCKET = re.compile(rf"(?is)hf://buckets/({_NAME})/({_NAME})(?:/(.*))?")
_NO_NAMESPACE = re.compile("(?i)(model|dataset|space|bucket|kernel)s?")
_REVISION = re.compile(
    r"(?!.*(?:\.\.|//))[^\s\x00-\x1f\x7f~^:?*\[\\@%/-][^\s\x00-\x1f\x7f~^:?*\[\\@%]*(?<!/)"
)
_OF_SLASHES = re.compile(r"refs/(?:pr/\d+|convert/[\w.-]+)")


class HubAddress(Struct, frozen=True):
    """A file or folder in a repository of the hub; ``str`` gives the URL, and ``parse_hub`` takes it.

    Attributes:
        repo: namespace and name, with a slash.
        revision: a branch, a tag or a commit.
        path: from the root of the repository; "" is the root.
    """

    kind: RepoKind
    repo: str
    revision: str = MAIN
    path: str = ""

    def __str__(self) -> str:
        kind = "" if self.kind == "models" else f"{self.kind}/"
        revision = self.revision
        if not _OF_SLASHES.fullmatch(revision):
            revision = quote(revision, safe="")
        at = "" if revision == MAIN else f"@{revision}"
        below = f"/{self.path}" if self.path else ""
        return f"{SCHEME}://{kind}{self.repo}{at}{below}"


def parse_hub(text: str) -> HubAddress:
    """The place that a URL of a repository names; one slash at the end of its path is dropped.

    Raises StorageError for any other text. Its message never repeats a password.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or _NO_NAMESPACE.fullmatch(found[2]):
        _, _, rest = text.partition("://")
        shown = f"{SCHEME}://…@{rest.partition('@')[2]}" if "@" in rest.partition("/")[0] else text
        raise StorageError(
            f"{shown!r} names no repository of the hub; expected hf://namespace/name for a model, hf://datasets/namespace/name or "
            "hf://spaces/namespace/name, and then @revision and /path if they are needed"
        )
    kind = cast("RepoKind", (found[1] or "models").lower())
    revision, path = unquote(found[4] or MAIN), (found[5] or "").removesuffix("/")
    if not _REVISION.fullmatch(revision):
        raise StorageError(
            f"{text!r}: {revision!r} cannot be a revision; expected a branch, a tag or a commit, such as @main or @refs/pr/1, with "
            "%2F for each slash in the name of a branch"
        )
    if problem := key_problem(path):
        raise StorageError(f"{text!r} {problem}")
    return HubAddress(kind, f"{found[2]}/{found[3]}", revision, path)


def bucket_url(text: str) -> str | None:
    """The ``s3://`` URL of a place in a bucket of the hub; None for a URL that names no bucket of the hub.

    Raises StorageError unless the settings of buckets send it to the S3 interface of its namespace: a bucket of that name
    elsewhere would be another one.
    """
    found = _BUCKET.fullmatch(text)
    if found is None:
        return None
    url = format_url("s3", *parse_url(f"s3://{found[2]}/{found[3] or ''}")[1:])
    endpoint = CLOUDS["s3"].endpoint(dict(settings_for(url).options))
    if endpoint.rstrip("/").rpartition("/")[2] != found[1]:
        raise StorageError(
            f"{text!r} is reached through the S3 interface of the hub, and no endpoint of the namespace {found[1]!r} is set for {url}; "
            "make S3 credentials of a token of the hub, and name a file in "
            f'{VARIABLE} with the table ["s3://{found[2]}"] and in it endpoint = "https://s3.hf.co/{found[1]}", region = "us-east-1", '
            "access_key_id and secret_access_key (see how-to/buckets)"
        )
    return url
