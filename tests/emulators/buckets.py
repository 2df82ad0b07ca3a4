"""A bucket of one test, on one of the servers, and what a user would set to reach it."""

from __future__ import annotations

import base64
import contextlib
import hmac
import http.client
import itertools
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from reshard.storage.buckets import clients
from tests.emulators.apis.gcs import Gcs
from tests.emulators.apis.s3 import S3
from tests.emulators.server import Server

Scheme = Literal["s3", "gs", "az"]
_numbers = itertools.count(1)
STORES: dict[str, Callable[..., Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
SECRETS = {"s3": "secret-of-the-s3-tests", "gs": "token-of-the-gcs-tests"}
"""What must appear in no log, error, plan or page."""


class Bucket(msgspec.Struct, frozen=True):
    """An empty bucket; ``environment`` is set in the process of the test. ``server`` is None for moto and Azurite."""

    scheme: Scheme
    name: str
    environment: dict[str, str]
    server: Server | None = None

    @property
    def url(self) -> str:
        """``s3://test-7``."""
        return f"{self.scheme}://{self.name}"

    @property
    def emulator(self) -> Server:
        """The server, for its faults, its log and its objects."""
        assert self.server is not None, f"{self.url} is on a server that is not this project's own"
        return self.server

    def store(self, prefix: str | None = None, **options: Any) -> Any:
        """The bucket as a store of obstore, with its own retries unless ``options`` say otherwise."""
        if options:
            return _made(self.scheme, self.name, prefix, **options)
        return _kept(self.scheme, self.name, prefix, tuple(self.environment.items()))


def _made(scheme: Scheme, name: str, prefix: str | None, **options: Any) -> Any:
    return STORES[scheme](name, prefix=prefix, client_options={"allow_http": True}, **options)


@lru_cache(8)
def _kept(scheme: Scheme, name: str, prefix: str | None, _: tuple[tuple[str, str], ...]) -> Any:
    """A store of a bucket in this environment: to make one takes as long as many requests."""
    return _made(scheme, name, prefix)


AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def next_name() -> str:
    """A name that no other bucket of this process has."""
    return f"test-{next(_numbers)}"


def s3_environment(url: str) -> dict[str, str]:
    """What users of S3 set: understood by obstore, boto3 and TensorStore."""
    return {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key-of-the-s3-tests",
        "AWS_SECRET_ACCESS_KEY": SECRETS["s3"], "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def gcs_environment(url: str) -> dict[str, str]:
    """What reaches an emulator of GCS: the first two are for obstore, the rest for clients of its JSON API."""
    return {
        "GOOGLE_BASE_URL": url, "GOOGLE_BEARER_TOKEN": SECRETS["gs"],
        "STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": SECRETS["gs"], "GOOGLE_CLOUD_PROJECT": "tests",
    }  # fmt: skip


def azure_environment(url: str) -> dict[str, str]:
    """What users of Azure set; the account and its key are those of Azurite's documentation."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{AZURITE_ACCOUNT}", "AZURE_ALLOW_HTTP": "true",
    }  # fmt: skip


def create_on_moto(bucket: Bucket) -> None:
    url = f"{bucket.environment['AWS_ENDPOINT_URL']}/{bucket.name}"
    request = urllib.request.Request(url, method="PUT")  # noqa: S310 - a server of the tests
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310  an address of loopback


def create_on_azurite(bucket: Bucket) -> None:
    """Signed with the shared key, as Azure wants it."""
    path = f"/{AZURITE_ACCOUNT}/{bucket.name}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    resource = f"/{AZURITE_ACCOUNT}{path}\nrestype:container"
    text = "PUT" + "\n" * 12 + "\n".join([*lines, resource])
    signed = hmac.digest(base64.b64decode(AZURITE_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(signed).decode()}"
    at = urlsplit(bucket.environment["AZURE_STORAGE_ENDPOINT"]).netloc
    connection = http.client.HTTPConnection(at, timeout=60)
    connection.request("PUT", f"{path}?restype=container", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read().decode()
    connection.close()


ENVIRONMENTS = {"s3": s3_environment, "gs": gcs_environment}


def fake_s3() -> Server:
    return Server(S3)


def fake_gcs() -> Server:
    return Server(Gcs)


@contextlib.contextmanager
def lend(server: Server, scheme: Scheme, patch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A new bucket on one of the project's own servers, which is as at its start afterwards."""
    bucket = Bucket(scheme, next_name(), ENVIRONMENTS[scheme](server.url), server)
    set_environment(bucket, patch)
    server.objects.create_bucket(bucket.name)
    yield bucket
    failures = server.failures
    server.reset()
    server.objects.delete_bucket(bucket.name)
    clients.forget_clients()  # nobody asks these again, and each keeps its connections open
    assert not failures, failures[0]


def set_environment(bucket: Bucket, patch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.environment.items():
        patch.setenv(name, value)
