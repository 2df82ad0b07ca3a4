"""obstore's client of a bucket: one in each process, made on first use, with the clouds' own credentials or the settings of a file.

The variable ``RESHARD_BUCKETS`` names a TOML file with a table for each URL. For a URL, the longest table name at or above
it decides::

    ["s3://models/team-a"]
    endpoint = "https://minio.example:9000"
    region = "eu-central-1"
    access_key_id = "reader"
    secret_access_key = { file = "/run/secrets/minio" }

The keys are obstore's (``S3Config``, ``GCSConfig``, ``AzureConfig``), ``profile`` (S3), and the times below. A value may be
in a file or a variable of its own: ``{ file = "…" }``, ``{ env = "…" }``. Since the environment names the file, every
worker process finds it, and no record that is sent between processes holds a secret.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from reshard.errors import MissingPackageError, StorageError
from reshard.storage.buckets.clouds import CLOUDS, Scheme, format_url, is_on
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.host import forked_error
from reshard.version import how_to_install

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ObjectStore, RetryConfig


VARIABLE = "RESHARD_BUCKETS"

REQUEST_TIMEOUT_S = 120.0
"""The limit of one request, body included: 16 MiB at 140 kB/s."""

RETRY_TIMEOUT_S = 180.0
"""No retry begins later than this after the first attempt, so that a request ends within five minutes."""


class BucketSettings(Struct, frozen=True):
    """The settings that reach a bucket. Its text shows the names of the options only, since values may be secret.

    Attributes:
        url: the entry that they are from; "" for the environment alone.
        options: obstore's; they override those that obstore takes from the environment.
        profile: of the AWS configuration files; "" for the default.
    """

    url: str = ""
    options: tuple[tuple[str, str], ...] = ()
    profile: str = ""
    request_timeout_s: float = REQUEST_TIMEOUT_S
    retry_timeout_s: float = RETRY_TIMEOUT_S

    def __repr__(self) -> str:
        return f"BucketSettings({self.url!r}, {', '.join(name for name, _ in self.options)})"

    def __reduce__(self) -> Any:
        raise TypeError("settings of buckets stay in their process; each process reads them itself")


def settings_for(url: str) -> BucketSettings:
    """The settings of a URL's bucket. Raises StorageError if the file of settings cannot be used."""
    path = os.environ.get(VARIABLE)
    if not path:
        return _NONE
    tables = _tables(path)
    found = [entry for entry in tables if url == entry or url.startswith(f"{entry}/")]
    if not found:
        return _NONE
    entry = max(found, key=len)
    return _settings(path, entry, tables[entry])


_NONE = BucketSettings()
_read: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {}


def _tables(path: str) -> dict[str, dict[str, Any]]:
    """The file's tables, read again when it changes."""
    import tomllib

    try:
        changed = Path(path).stat().st_mtime_ns
        known = _read.get(path)
        if known is None or known[0] != changed:
            known = _read[path] = (changed, tomllib.loads(Path(path).read_text("utf-8")))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _bad(
            path, f"cannot be read: {reason}; name a TOML file, or unset the variable"
        ) from None
    if bad := next((name for name, table in known[1].items() if not isinstance(table, dict)), None):
        raise _bad(
            path,
            f'has {bad!r} outside of a table; begin a table with the URL, as in ["s3://bucket"]',
        )
    return {url.rstrip("/"): table for url, table in known[1].items()}


def _settings(path: str, entry: str, table: dict[str, Any]) -> BucketSettings:
    options = {name: _value(path, entry, name, value) for name, value in table.items()}
    times = {}
    for name in ("request_timeout_s", "retry_timeout_s"):
        if name in options:
            try:
                times[name] = float(options.pop(name))
            except ValueError:
                raise _bad(path, f"[{entry!r}] {name} should be a number of seconds") from None
    profile = options.pop("profile", "")
    return BucketSettings(entry, tuple(sorted(options.items())), profile, **times)


def _value(path: str, entry: str, name: str, value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case {"file": str(file), **rest} if not rest:
            try:
                return Path(file).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise _bad(path, f"[{entry!r}] {name}: cannot read {file!r}: {reason}") from None
        case {"env": str(variable), **rest} if not rest:
            if variable not in os.environ:
                raise _bad(path, f"[{entry!r}] {name}: the variable {variable} is not set")
            return os.environ[variable]
    raise _bad(
        path, f'[{entry!r}] {name} should be a text, {{ file = "path" }} or {{ env = "VARIABLE" }}'
    )


def _bad(path: str, problem: str) -> StorageError:
    error = StorageError(f"{path} (named by {VARIABLE}): {problem}")
    error.fault, error.finding = "refused", "the file with the settings of buckets cannot be used"
    return error


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
