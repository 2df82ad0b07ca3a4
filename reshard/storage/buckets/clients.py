"""obstore's client of a bucket: one in each process, made on first use, with the clouds' own credentials."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from reshard.errors import MissingPackageError
from reshard.storage.buckets.clouds import CLOUDS, Scheme, format_url, is_on
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.settings import BucketSettings, settings_for
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
    environment = tuple(map(os.environ.get, CLOUDS[scheme].environment))

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
    cloud, config = CLOUDS[scheme], dict(settings.options)
    more = cloud.complete(config, settings.profile)
    with bucket_errors("open", format_url(scheme, bucket, "")):
        return getattr(store, cloud.client)(  # type: ignore[no-any-return]  # obstore is imported late
            bucket,
            config=config,
            client_options=_client_options(settings, cloud.endpoint(config), headers or {}),
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
