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

MAIN = "main"

_NAME = r"(?![^/@]*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NO_NAMESPACE = "(?!(?:model|dataset|space|bucket|kernel)s?/)"
_OF_SLASHES = r"refs/pr/\d+|refs/convert/[A-Za-z0-9_.-]+"
_ADDRESS = re.compile(rf"(?is)hf://(?:(models|datasets|spaces)/)?({_NO_NAMESPACE}{_NAME}/{_NAME})(?:@({_OF_SLASHES}|[^/@]+))?(?:/(.*))?")  # fmt: skip
BUCKET_OF_HUB = re.compile(rf"(?is)hf://buckets/({_NAME})/({_NAME}(?:/.*)?)")


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
        revision = quote(self.revision, safe="/" if re.fullmatch(_OF_SLASHES, self.revision) else "")  # fmt: skip
        at, below = "" if revision == MAIN else f"@{revision}", self.path and f"/{self.path}"
        return f"hf://{'' if self.kind == 'models' else f'{self.kind}/'}{self.repo}{at}{below}"


def parse_hub(text: str) -> HubAddress:
    """The place that a URL of a repository names; one slash at the end of its path is dropped.

    Raises StorageError for any other text. Its message never repeats a password.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        shown = re.sub("(?<=://)[^/]*@", "…@", text)
        raise StorageError(
            f"{shown!r} names no repository of the hub; expected hf://namespace/name for a model, hf://datasets/namespace/name or "
            "hf://spaces/namespace/name, then @revision and /path where they are needed, with %2F for a slash in a revision"
        )
    revision, path = unquote(found[3] or MAIN), (found[4] or "").removesuffix("/")
    if problem := key_problem(revision) or key_problem(path):
        raise StorageError(f"{text!r} {problem}")
    return HubAddress(cast("RepoKind", (found[1] or "models").lower()), found[2], revision, path)


def bucket_url(namespace: str, below: str) -> str:
    """The ``s3://`` URL of a place in a bucket of the hub; ``below`` is the name of the bucket, and the path in it.

    Raises StorageError unless the settings of buckets send it to the S3 interface of its namespace: a bucket of that name
    elsewhere would be another one.
    """
    url, name = format_url(*parse_url(f"s3://{below}")), below.partition("/")[0]
    if not CLOUDS["s3"].endpoint(dict(settings_for(url).options)).rstrip("/").endswith(f"/{namespace}"):  # fmt: skip
        raise StorageError(
            f"hf://buckets/{namespace}/{below} is reached through the S3 interface of the hub, and no endpoint of the namespace "
            f"{namespace!r} is set for {url}; make S3 credentials of a token of the hub, and name a file in {VARIABLE} with the table "
            f'["s3://{name}"] and in it endpoint = "https://s3.hf.co/{namespace}", region = "us-east-1", access_key_id and '
            "secret_access_key (see how-to/buckets)"
        )
    return url
