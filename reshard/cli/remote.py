"""Lets a server convert, with the same arguments and output as a local conversion."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard import CastStats, ConversionReport, RequestReport, Requests, TensorReport
from reshard.cli.failures import Detached, Stopped
from reshard.errors import MissingPackageError, ReshardError
from reshard.layout.layout_file import layout_to_mapping
from reshard.layout.read_layout import load_layout
from reshard.version import how_to_install

if TYPE_CHECKING:
    from reshard_server.client import Client, ConversionHandle

    from reshard.cli.progress import Watcher

TOKEN_VARIABLE = "RESHARD_TOKEN"  # noqa: S105  (the name of a variable)
INTERRUPTED = 130
UNAUTHORIZED = 401


def convert_there(
    server: str,
    token_file: Path | None,
    request: Mapping[str, Any],
    progress: Watcher | None,
) -> tuple[list[dict[str, Any]], int | None]:
    """The reports of all targets, as ``--json`` prints them, and the bytes read for all targets together.

    A signal raises Detached, which says how to look at the conversion; the server continues it.
    """
    with _client(server, _token(token_file)) as client, _words_for_the_token(server):
        handle = client.convert(**request)
        try:
            reports = handle.wait(progress=progress or False)
        except (Stopped, KeyboardInterrupt) as stop:
            raise _detached(handle, stop) from None
    return list(map(dict, reports)), handle.conversion.read_bytes


def layout_there(layout: str | None) -> dict[str, Any] | str | None:
    """The content of a local layout file, else the name of one that the server stores."""
    if layout is None or not (Path(layout).exists() or Path(layout).suffix or "/" in layout):
        return layout
    return layout_to_mapping(load_layout(layout))


def report_of(document: Mapping[str, Any]) -> ConversionReport:
    """A report from the object that ``conversion_report`` made of it."""
    tensors = tuple(_tensor(t) for t in document["tensors"])
    fields = (
        "source", "target", "read_bytes", "moved_bytes", "written_bytes", "seconds", "resumed_bytes", "already_done",
    )  # fmt: skip
    rest = {name: document[name] for name in fields}
    requests = _request_report(document.get("requests"))  # a server of an older version has none
    warnings = tuple(document["warnings"])
    return ConversionReport(tensors=tensors, warnings=warnings, requests=requests, **rest)


def _request_report(document: Mapping[str, Any] | None) -> RequestReport | None:
    if document is None:
        return None
    names = Requests.__struct_fields__
    planned, actual = (
        Requests(**{name: document[of][name] for name in names}) for of in ("planned", "actual")
    )
    return RequestReport(planned, actual)


def _tensor(document: Mapping[str, Any]) -> TensorReport:
    cast = document["cast"]
    return TensorReport(
        **{
            **document,
            "shape": tuple(document["shape"]),
            "cast": None if cast is None else _cast(cast),
        }
    )


def _cast(document: Mapping[str, Any]) -> CastStats:
    error = float(document["largest_relative_error"])  # "inf" if it was not finite
    # A server of an older version does not count these.
    return CastStats(document["overflows"], document["nans"], error, document.get("saturated", 0))


def _client(server: str, token: str | None) -> Client:
    try:
        from reshard_server.client import Client
    except ImportError as error:
        raise MissingPackageError(
            f"--server needs {error.name}, which this Python lacks; {how_to_install('client')}"
        ) from error
    return Client(server, token)


@contextmanager
def _words_for_the_token(server: str) -> Iterator[None]:
    """Rewords the server's error, which names a header; here a token is given by an option or a variable."""
    from reshard_server.client import ServiceError

    try:
        yield
    except ServiceError as error:
        if error.status != UNAUTHORIZED:
            raise
        raise ServiceError(
            f"the server at {server} expects a token that it knows; give one by --token-file, or in the variable "
            f"{TOKEN_VARIABLE}",
            error.status,
            error.problem,
        ) from error


def _token(file: Path | None) -> str | None:
    """The token in the file, else in the environment."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ReshardError(
            f"the token file {str(file)!r} cannot be read: {error}; give a file that contains only the token"
        ) from error
    if not text or len(text.split()) > 1:
        raise ReshardError(
            f"the token file {str(file)!r} contains no token; give a file that contains only the token"
        )
    return text


def _detached(handle: ConversionHandle, stop: Stopped | KeyboardInterrupt) -> Detached:
    code = stop.exit_code if isinstance(stop, Stopped) else INTERRUPTED
    return Detached(
        f"detached; conversion {handle.id} continues at the server. Look at it: GET {handle.url}; stop it: POST "
        f"{handle.url}:cancel",
        code,
    )
