"""Credentials of AWS, found as its own tools find them: boto3 reads the files of the command line, and renews them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from reshard.errors import MissingPackageError, StorageError
from reshard.storage.buckets.clouds import is_on
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
