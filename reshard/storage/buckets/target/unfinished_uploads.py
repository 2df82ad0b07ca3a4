"""Finds and aborts uploads in parts that a process which was killed left in a bucket of S3.

They are no objects, so that nobody sees them, but they are paid for. obstore lists none, so these requests are made here: signed
by the AWS runtime with the credentials of the bucket (API: ListMultipartUploads, AbortMultipartUpload).
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.buckets.clients import endpoint_of
from reshard.storage.buckets.settings import BucketSettings, settings_for
from reshard.storage.buckets.urls import format_url, parse_url
from reshard.storage.location import Location

REQUEST_S = 30.0
ANSWER_BYTES = 8 << 20
"""More than a page of a thousand uploads has."""


class UnfinishedUpload(Struct, frozen=True):
    """An upload in parts that was neither completed nor aborted."""

    key: str
    upload_id: str


def uploads_below(folder: Location) -> list[UnfinishedUpload] | None:
    """Those of objects below a folder; None where the store does not tell: another cloud, or no permission."""
    scheme, bucket, path = parse_url(str(folder))
    if scheme != "s3":
        return None
    try:
        return list(_listed(_S3(bucket, path), f"{path}/"))
    except StorageError:
        return None


def abort_uploads(folder: Location) -> int | None:
    """Aborts those of objects below a folder, whose parts are deleted then; how many, None where the store does not tell."""
    found = uploads_below(folder)
    if not found:
        return found if found is None else 0
    _, bucket, path = parse_url(str(folder))
    s3 = _S3(bucket, path)
    try:
        for upload in found:
            s3.ask("DELETE", upload.key, {"uploadId": upload.upload_id}, missing_is_fine=True)
    except StorageError:
        return None
    return len(found)


def _listed(s3: _S3, prefix: str) -> Iterator[UnfinishedUpload]:
    query = {"uploads": "", "prefix": prefix}
    while True:
        page = s3.ask("GET", "", query)
        for one in page.iterfind("{*}Upload"):
            found = UnfinishedUpload(one.findtext("{*}Key", ""), one.findtext("{*}UploadId", ""))
            if found.key.startswith(prefix) and found.upload_id:
                yield found
        if page.findtext("{*}IsTruncated", "") != "true":
            return
        query["key-marker"] = page.findtext("{*}NextKeyMarker", "")
        query["upload-id-marker"] = page.findtext("{*}NextUploadIdMarker", "")


class _S3:
    """A bucket, asked by signed requests of our own."""

    def __init__(self, bucket: str, folder: str) -> None:
        self._url = format_url("s3", bucket, folder)
        settings = settings_for(self._url)
        options = {name.removeprefix("aws_"): value for name, value in settings.options}
        names = ("region", "default_region")
        given = [options.get(name) or os.environ.get(f"AWS_{name.upper()}") for name in names]
        self._region = next((name for name in given if name), "us-east-1")
        endpoint = endpoint_of("s3", dict(settings.options))
        self._endpoint = (endpoint or f"https://s3.{self._region}.amazonaws.com").rstrip("/")
        self._bucket = bucket
        self._is_signed = not _is_on(options, "skip_signature")
        self._credentials = _credentials(settings, options) if self._is_signed else None

    def ask(
        self, method: str, key: str, query: dict[str, str], *, missing_is_fine: bool = False
    ) -> ElementTree.Element:
        """The document of the answer; an empty one where there is none."""
        parts = urlsplit(self._endpoint)
        path = f"{parts.path}/{quote(f'{self._bucket}/{key}' if key else self._bucket)}"
        target = f"{path}?{urlencode(query, quote_via=quote)}"
        request = urllib.request.Request(  # noqa: S310  the endpoint is the user's
            f"{parts.scheme}://{parts.netloc}{target}", method=method
        )
        for name, value in self._headers(method, target, parts.netloc):
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:  # noqa: S310
                return _document(answer.read(ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            if missing_is_fine and error.code == 404:
                return ElementTree.Element("none")
            said = _document(error.read(ANSWER_BYTES), default="none")
            reason = said.findtext("{*}Code") or said.findtext("Code") or error.reason
            raise self._problem(f"status {error.code}, {reason}") from None
        except (OSError, ElementTree.ParseError) as error:
            raise self._problem(str(getattr(error, "reason", error))) from None

    def _problem(self, said: str) -> StorageError:
        return StorageError(
            f"cannot ask for the unfinished uploads below {self._url}: {said}; see that the credentials may list and abort them "
            "(s3:ListBucketMultipartUploads, s3:AbortMultipartUpload), or give the bucket a lifecycle rule that removes them"
        )

    def _headers(self, method: str, target: str, host: str) -> list[tuple[str, str]]:
        from awscrt import auth, http

        headers = http.HttpHeaders([("Host", host)])
        if self._credentials is None:
            return []
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._credentials,
            region=self._region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=auth.AwsSignedBodyValue.UNSIGNED_PAYLOAD,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        request = http.HttpRequest(method, target, headers)
        try:
            signed = auth.aws_sign_request(request, config).result(REQUEST_S)
        except Exception as error:  # noqa: BLE001  awscrt raises RuntimeError and its own errors for missing credentials
            raise self._problem(f"no credentials: {error}") from None
        return [(name, value) for name, value in signed.headers if name.lower() != "host"]


def _credentials(settings: BucketSettings, options: dict[str, str]) -> Any:
    """Where AWS' own clients look: keys that are given, then the chain of the environment, files and roles."""
    from awscrt import auth

    names = ("access_key_id", "secret_access_key", "session_token")
    if options.get("access_key_id"):
        access, secret, token = (options.get(name) for name in names)
        return auth.AwsCredentialsProvider.new_static(access, secret, token)
    profile = settings.profile or os.environ.get("AWS_PROFILE")
    if profile:
        return auth.AwsCredentialsProvider.new_profile(profile_name=profile)
    return auth.AwsCredentialsProvider.new_default_chain()


def _is_on(options: dict[str, str], name: str) -> bool:
    value = options.get(name) or os.environ.get(f"AWS_{name.upper()}", "")
    return value.lower() in ("1", "true", "yes", "on")


def _document(text: bytes, default: str = "") -> ElementTree.Element:
    """The document of an answer; with ``default`` an element of that name for what is none."""
    if not text:
        return ElementTree.Element(default or "none")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  expat loads nothing from outside
    except ElementTree.ParseError:
        if default:
            return ElementTree.Element(default)
        raise
