"""Settings of buckets that the environment's usual variables cannot give: per URL, from one file.

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
from pathlib import Path
from typing import Any

from msgspec import Struct

from reshard.errors import StorageError

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
