"""obstore's client of a bucket: one in each process, made on first use, with the clouds' own credentials."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from reshard.errors import MissingPackageError
from reshard.storage.buckets.aws import credentials, is_on
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.settings import BucketSettings, settings_for
from reshard.storage.buckets.urls import Scheme, format_url
from reshard.storage.host import forked_error
from reshard.version import how_to_install

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ObjectStore, RetryConfig

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
"""Seconds without progress of a body, after which its request is made again."""

Patience = Literal["once", "short", "long"]
"""The retries of a request without an answer, or with status 5xx: none, ten within some seconds, or for ``retry_timeout_s``."""

SHORT_RETRIES = 10
"""Retries until the bucket has answered once: a wrong endpoint or missing credentials are then reported soon."""

LONG_BACKOFF: BackoffConfig = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=5),
    "base": 4,
}
"""Each pause is random, up to four times the one before. With up to twice, obstore's default, pauses do not grow on average."""

_ENVIRONMENT = {
    "s3": (
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_PROFILE", "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE",
    ),
    "gs": (
        "GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN",
        "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE",
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR",
        "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURITE_BLOB_STORAGE_URL",
    ),
}  # fmt: skip
"""Variables that choose the server and the account of requests: when one changes, a new client is made."""

_Key = tuple[Scheme, str, BucketSettings, tuple[str | None, ...], Patience]

_clients: dict[_Key, ObjectStore] = {}
_answered: dict[int, ObjectStore] = {}
"""The clients that got an answer, by their ``id``."""

_lock = threading.Lock()


_is_child_of_user = False
"""True if this process was forked from one that had clients: obstore's threads are not here, and requests would hang."""


def client_for(scheme: Scheme, bucket: str, key: str = "", *, retries: bool = True) -> ObjectStore:
    """The client that this process has for a bucket, with the settings for the URL of ``key``.

    Once the bucket has answered, the client waits for a store that is unreachable. Without ``retries`` it makes each request once.

    Raises MissingPackageError without obstore, and StorageError for invalid settings, and in a process that was
    forked after a bucket was used.
    """
    settings = settings_for(format_url(scheme, bucket, key))
    environment = tuple(map(os.environ.get, _ENVIRONMENT[scheme]))

    def made(patience: Patience) -> ObjectStore:
        which = (scheme, bucket, settings, environment, patience)
        if which not in _clients:
            _clients[which] = new_client(scheme, bucket, key, patience=patience)
        return _clients[which]

    with _lock:
        once, short = made("once"), made("short")
        if not retries:
            return once
        return made("long") if {id(once), id(short)} & _answered.keys() else short


def note_answer(client: ObjectStore) -> None:
    """Notes that a client got an answer."""
    if id(client) not in _answered:
        _answered[id(client)] = client


def forget_clients() -> None:
    """Drops all clients and their connections."""
    _clients.clear()
    _answered.clear()


def _after_fork() -> None:
    global _lock, _is_child_of_user
    _lock = threading.Lock()  # another thread may have held the old one
    _is_child_of_user = _is_child_of_user or bool(_clients)
    forget_clients()


os.register_at_fork(after_in_child=_after_fork)


def new_client(
    scheme: Scheme,
    bucket: str,
    key: str,
    headers: Mapping[str, str] | None = None,
    *,
    patience: Patience = "long",
) -> ObjectStore:
    """A client that is not shared; ``headers`` go with each request."""
    settings = settings_for(format_url(scheme, bucket, key))
    if _is_child_of_user:
        raise forked_error(
            f"open {format_url(scheme, bucket, '')}", "a bucket", "its requests would hang"
        )
    try:
        from obstore import store
    except ImportError:
        raise MissingPackageError(
            f"{format_url(scheme, bucket, '')} needs the package obstore; {how_to_install('cloud')}"
        ) from None
    config = dict(settings.options)
    make: Any
    match scheme:
        case "s3":
            make, more = store.S3Store, _s3(config, settings)
        case "gs":
            make, more = store.GCSStore, _gs(config)
        case "az":
            make, more = store.AzureStore, _az(config)
    with bucket_errors("open", format_url(scheme, bucket, "")):
        return make(  # type: ignore[no-any-return]  # obstore is imported late
            bucket,
            config=config,
            client_options=_client_options(settings, endpoint_of(scheme, config), headers or {}),
            retry_config=_retry_config(settings, patience),
            **more,
        )


def _retry_config(settings: BucketSettings, patience: Patience) -> RetryConfig:
    timeout = timedelta(seconds=settings.retry_timeout_s)
    match patience:
        case "once":
            return {"max_retries": 0, "retry_timeout": timeout}
        case "short":
            return {"max_retries": SHORT_RETRIES, "retry_timeout": timeout}
        case "long":  # only the time ends it
            return {"max_retries": 1 << 20, "retry_timeout": timeout, "backoff": LONG_BACKOFF}


def _client_options(
    settings: BucketSettings, endpoint: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    from reshard.version import __version__

    allow_http = endpoint.startswith("http://") or is_on("AWS_ALLOW_HTTP")
    return {
        "timeout": timedelta(seconds=settings.request_timeout_s),
        "read_timeout": timedelta(seconds=min(READ_TIMEOUT_S, settings.request_timeout_s)),
        "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, settings.request_timeout_s)),
        "user_agent": f"reshard/{__version__}",
        **({"allow_http": True} if allow_http else {}),
        **({"default_headers": dict(headers)} if headers else {}),
    }


def _s3(config: dict[str, str], settings: BucketSettings) -> dict[str, Any]:
    """Adds the options that every upload needs, and finds credentials."""
    config.setdefault("checksum_algorithm", "CRC64NVME")
    config.setdefault("copy_if_not_exists", "multipart")
    config.setdefault(
        "unsigned_payload", "true"
    )  # the CRC proves the payload, at a quarter of the CPU of SHA-256
    return credentials(config, settings.profile or os.environ.get("AWS_PROFILE", ""))


def _gs(config: dict[str, str]) -> dict[str, Any]:
    """Reads the variable of Google's own clients for an emulator; an emulator needs no credentials."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator and "base_url" not in config and not os.environ.get("GOOGLE_BASE_URL"):
        config["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
        if not os.environ.get("GOOGLE_BEARER_TOKEN"):
            config.setdefault("skip_signature", "true")
    return {}


def _az(config: dict[str, str]) -> dict[str, Any]:
    """Reads the connection string of Azure's own clients, if nothing else names the account."""
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if text and "account_name" not in config and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
        names = (
            ("AccountName", "account_name"), ("AccountKey", "account_key"), ("BlobEndpoint", "endpoint"),
            ("SharedAccessSignature", "sas_key"),
        )  # fmt: skip
        config.update({ours: parts[theirs] for theirs, ours in names if theirs in parts})
    return {}


_ENDPOINTS: dict[Scheme, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "s3": (
        ("aws_endpoint_url_s3", "endpoint", "aws_endpoint"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    ),
    "gs": (("base_url", "google_base_url"), ("GOOGLE_BASE_URL",)),
    "az": (("endpoint", "azure_endpoint"), ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
}
"""The places of an endpoint: options, then variables."""


def endpoint_of(scheme: Scheme, config: Mapping[str, str]) -> str:
    """The configured server; "" for the cloud's own."""
    if scheme == "az" and is_on("AZURE_STORAGE_USE_EMULATOR"):
        return os.environ.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000")
    options, variables = _ENDPOINTS[scheme]
    named = [config.get(name) for name in options] + [os.environ.get(name) for name in variables]
    return next((url for url in named if url), "")
