"""S3 through boto3: the credentials that AWS' own tools find, and uploads in parts that a killed process left.

boto3 reads the files of the command line and renews credentials. Unfinished uploads are no objects, so that no listing shows them,
but they are paid for; obstore lists none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import Struct

from reshard.errors import MissingPackageError, StorageError
from reshard.storage.buckets.clients import settings_for
from reshard.storage.buckets.clouds import CLOUDS, is_on, parse_url
from reshard.storage.buckets.errors import without_secrets
from reshard.storage.location import Location
from reshard.version import how_to_install

_OTHERWISE = f"{how_to_install('cloud')}, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

_KEYS = ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
_CONFIG = ("AWS_CONFIG_FILE", "~/.aws/config")


def credentials(config: Mapping[str, str], profile: str) -> dict[str, Any]:
    """obstore's argument for a client with these options; empty if obstore finds credentials itself, or the machine has a role.

    Raises MissingPackageError if only boto3 can read them, and StorageError for a profile without any.
    """
    if not profile and (_are_given(config) or not _find(_KEYS, _CONFIG)):
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if not profile and not _find(_KEYS):
            return {}
        what = f"the AWS profile {profile!r} needs" if profile else f"{_find(_KEYS)} needs"
        raise MissingPackageError(f"{what} the package boto3; {_OTHERWISE}") from None
    from botocore.exceptions import BotoCoreError

    try:
        found = session({}, profile)
        if found.get_credentials() is None:
            return {}
        return {"credential_provider": Boto3CredentialProvider(found)}
    except BotoCoreError as error:
        raise _no_credentials(profile, error) from None


def _no_credentials(profile: str, error: Exception) -> StorageError:
    problem = StorageError(
        f"the AWS profile {profile or 'default'!r} gives no credentials: {error}; run 'aws configure', or set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )
    problem.fault, problem.finding = "refused", "the AWS profile gives no credentials"
    return problem


def session(options: Mapping[str, str], profile: str) -> Any:
    """A session of boto3 with the keys of these options, else those of a profile, else those that AWS' own tools find.

    Raises ImportError, and BotoCoreError for a missing profile.
    """
    import boto3

    if options.get("access_key_id"):
        return boto3.Session(
            options["access_key_id"],
            options.get("secret_access_key"),
            options.get("session_token") or options.get("token"),
        )
    return boto3.Session(profile_name=profile or None)


def _are_given(config: Mapping[str, str]) -> bool:
    """True if obstore finds credentials by itself: given, in the environment, or of a container or web identity."""
    found = (
        "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )  # fmt: skip
    return (
        bool({"access_key_id", "aws_access_key_id", "skip_signature"} & set(config))
        or is_on("AWS_SKIP_SIGNATURE")
        or any(os.environ.get(name) for name in found)
    )


def _find(*names: tuple[str, str]) -> str:
    """The first of these files that exists; "" for none."""
    paths = (os.path.expanduser(os.environ.get(*name)) for name in names)  # noqa: PTH111  as the AWS SDKs expand it
    return next((path for path in paths if os.path.exists(path)), "")  # noqa: PTH110  paths are text here


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
                with suppress(s3.exceptions.NoSuchUpload):  # another run was faster
                    s3.abort_multipart_upload(
                        Bucket=parse_url(str(folder))[1], Key=upload.key, UploadId=upload.upload_id
                    )
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
