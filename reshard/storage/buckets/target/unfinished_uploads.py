"""Finds and aborts uploads in parts that a killed process left in a bucket of S3.

They are no objects, so that no listing shows them, but they are paid for. obstore lists none; boto3 does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from reshard.errors import MissingPackageError, StorageError
from reshard.storage.buckets.aws import session
from reshard.storage.buckets.clouds import CLOUDS, is_on, parse_url
from reshard.storage.buckets.errors import without_secrets
from reshard.storage.buckets.settings import settings_for
from reshard.storage.location import Location
from reshard.version import how_to_install

REQUEST_S = 30.0
_ATTEMPTS = 3


class UnfinishedUpload(Struct, frozen=True):
    """An upload in parts that was neither completed nor aborted."""

    key: str
    upload_id: str


def uploads_below(folder: Location) -> list[UnfinishedUpload] | None:
    """The uploads below a folder; None if they cannot be listed: another cloud, no permission, or no boto3."""
    if not CLOUDS[parse_url(str(folder))[0]].lists_uploads:
        return None
    try:
        return list_uploads(folder)
    except (StorageError, MissingPackageError):
        return None


def abort_uploads(folder: Location) -> int | None:
    """Aborts the uploads below a folder, which deletes their parts; returns their number, None if they cannot be listed."""
    found = uploads_below(folder)
    if not found:
        return found if found is None else 0
    try:
        with _s3(folder) as s3:
            for upload in found:
                _abort(s3, parse_url(str(folder))[1], upload)
    except StorageError:
        return None
    return len(found)


def list_uploads(folder: Location) -> list[UnfinishedUpload]:
    """The uploads below a folder in S3. StorageError, with a remedy, if they cannot be listed."""
    _, bucket, path = parse_url(str(folder))
    with _s3(folder) as s3:
        pages = s3.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Prefix=f"{path}/"
        )
        return [
            UnfinishedUpload(one["Key"], one["UploadId"])
            for page in pages
            for one in page.get("Uploads", ())
        ]


def _abort(s3: Any, bucket: str, upload: UnfinishedUpload) -> None:
    try:
        s3.abort_multipart_upload(Bucket=bucket, Key=upload.key, UploadId=upload.upload_id)
    except s3.exceptions.NoSuchUpload:
        return  # another run was faster


@contextmanager
def _s3(folder: Location) -> Iterator[Any]:
    """A client of boto3 with the settings of a folder's bucket; its errors become StorageError."""
    try:
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise MissingPackageError(
            f"the unfinished uploads below {folder} are listed by the package boto3; {how_to_install('cloud')}"
        ) from None
    settings = settings_for(str(folder))
    options = {name.removeprefix("aws_"): value for name, value in settings.options}
    endpoint = CLOUDS["s3"].endpoint(dict(settings.options))
    is_public = options.get("skip_signature", "") in ("true", "1") or is_on("AWS_SKIP_SIGNATURE")
    config = Config(
        connect_timeout=REQUEST_S,
        read_timeout=REQUEST_S,
        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
        s3={"addressing_style": "path" if endpoint else "auto"},
        **({"signature_version": UNSIGNED} if is_public else {}),
    )
    try:
        found = session(options, settings.profile)
        yield found.client(
            "s3", _region(options, found.region_name), endpoint_url=endpoint or None, config=config
        )
    except (BotoCoreError, ClientError) as error:
        raise StorageError(
            f"cannot ask for the unfinished uploads below {folder}: {without_secrets(str(error))}; see that the credentials may list and abort them "
            "(s3:ListBucketMultipartUploads, s3:AbortMultipartUpload), or give the bucket a lifecycle rule that removes them"
        ) from None


def _region(options: dict[str, str], of_session: str | None) -> str:
    names = ("region", "default_region")
    given = [options.get(name) or os.environ.get(f"AWS_{name.upper()}") for name in names]
    return next((name for name in (*given, of_session) if name), "us-east-1")
