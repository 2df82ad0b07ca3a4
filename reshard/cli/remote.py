"""Asks a server, with the same arguments and output as a command on this host.

Each function imports what reads its files: help of a command loads this module, and none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reshard.cli.console import say
from reshard.cli.failures import Detached, Stopped
from reshard.cli.groups import SERVER_VARIABLE, TOKEN_VARIABLE, Asked, is_stored_name
from reshard.cli.options import Misuse
from reshard.errors import MissingError, MissingPackageError, ReshardError
from reshard.version import how_to_install

if TYPE_CHECKING:
    from reshard_server.client import Client
    from reshard_server.client.handle import DeltaHandle, JobHandle

    from reshard import (
        DeltaReport,
        MultiReport,
    )
    from reshard.cli.progress import Watcher
    from reshard.cli.target_options import NamedTarget


R = TypeVar("R")
INTERRUPTED = 130
UNAUTHORIZED, NOT_FOUND, CONFLICT = 401, 404, 409


def convert_there(
    asked: Asked, request: Mapping[str, Any], progress: Watcher | None
) -> MultiReport:
    """The reports of all targets; the bytes read for all of them are None if an older server converted.

    A signal raises Detached, which says how to look at the conversion; the server continues it.
    """
    from reshard.conversion.report import MultiReport

    with connected(asked) as client:
        handle = client.convert(**request)
        reports = tuple(_awaited(asked, handle, progress))
        read_bytes = cast("int", handle.conversion.read_bytes)
        return MultiReport(reports[0].source, reports, read_bytes, reports[0].seconds)


def delta_there(asked: Asked, request: Mapping[str, Any], progress: Watcher | None) -> DeltaReport:
    """The report of a delta. A signal raises Detached, as with a conversion."""
    with connected(asked) as client:
        (report,) = _awaited(asked, client.delta(**request), progress)
    # A command never asks for a full version in its place.
    return cast("DeltaReport", report)


def _awaited(asked: Asked, handle: JobHandle[R], progress: Watcher | None) -> list[R]:
    try:
        return handle.wait(progress=progress or False)
    except (Stopped, KeyboardInterrupt) as stop:
        raise _detached(asked, handle, stop) from None


def identity_there(
    identity: str | None, key: str | None, name: str | None, min_version: str | None
) -> dict[str, str]:
    """The root, the text of the public key, and the signed name and version, if given. Private keys are refused, and never sent."""
    from reshard.identity.keys import public_text
    from reshard.identity.leaf_tree import is_root
    from reshard.storage.location import locate

    wanted = {"name": name, "min_version": min_version}
    given = {argument: text for argument, text in wanted.items() if text is not None}
    if identity is not None:
        if not is_root(identity.lower()):
            raise Misuse(
                f"--identity {identity} names files of this host, and --server lets a server do the work; give the root (64 hex digits)"
            )
        given["identity"] = identity
    if key is not None:
        given["key"] = public_text(locate(key))
    return given


def goals_there(targets: Sequence[NamedTarget], options: Mapping[str, Any]) -> dict[str, Any]:
    """The targets in the form of a request to the server."""
    # Options at their default are left out: an older server refuses members that it does not know.
    options = {**options, **map_there(options.get("map"))}
    goals = [
        {"target": one.dst, "layout": layout_there(one.layout), "mesh": one.mesh, **options}
        for one in targets
    ]
    return goals[0] if len(goals) == 1 else {"targets": goals}


def map_there(given: str | None) -> dict[str, str]:
    """The member with the text of a local map file, or the name of a recipe or of a map that the server stores; none without one."""
    from reshard.maps.read_map import load_map, recipe_names

    if given is None:
        return {}
    if given in recipe_names() or is_stored_name(given):
        return {"map": given}
    load_map(given)  # an error in it is raised here, with its line
    return {"map": f"{Path(given).read_text('utf-8-sig')}\n"}


def layout_there(layout: str | None) -> dict[str, Any] | str | None:
    """The content of a local layout file, else the name of one that the server stores."""
    from reshard.layout.layout_file import layout_to_mapping
    from reshard.layout.read_layout import load_layout

    if layout is None or is_stored_name(layout):
        return layout
    return layout_to_mapping(load_layout(layout))


@contextmanager
def connected(asked: Asked) -> Iterator[Client]:
    """A client of the server for the block; its errors name options of the command line.

    Where the environment names the server, a missing path may be on this host, and a line says so.
    """
    try:
        with _client(asked.url, token_in(asked.token_file)) as client, _words_for_options(asked.url):  # fmt: skip
            yield client
    except ReshardError as error:
        is_missing = isinstance(error, MissingError) or getattr(error, "status", 0) == NOT_FOUND
        if asked.by_variable and is_missing:
            say(
                f"{SERVER_VARIABLE} names the server {asked.url}, which was asked; --server '' works on this host"
            )
        raise


def _client(server: str, token: str | None) -> Client:
    try:
        from reshard_server.client import Client
    except ImportError as error:
        raise MissingPackageError(
            f"--server needs {error.name}, which this Python lacks; {how_to_install('client')}"
        ) from error
    return Client(server, token)


@contextmanager
def _words_for_options(server: str) -> Iterator[None]:
    """Rewords an error that names a header; here a token is given by an option or a variable."""
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


@contextmanager
def one_conversion(asked: Asked, conversion: str) -> Iterator[DeltaHandle]:
    """The conversion or delta with this id, for the block; errors of the server name the command that helps."""
    from reshard_server.client import ServiceError

    with connected(asked) as client:
        try:
            yield client.deltas.get(conversion)  # its handle takes both kinds of reports
        except ServiceError as error:
            if error.status == NOT_FOUND:
                said = (
                    f"the server at {asked.url} has no conversion {conversion!r} that this token may see; "
                    "reshard jobs list shows those that there are"
                )
            elif error.status == CONFLICT:
                said = f"{error}; reshard jobs show {conversion} says how it stands"
            else:
                raise
            raise ServiceError(said, error.status, error.problem) from error


def token_in(file: Path | None) -> str | None:
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


def _detached(asked: Asked, handle: JobHandle[Any], stop: Stopped | KeyboardInterrupt) -> Detached:
    named = handle.id if asked.by_variable else f"{handle.id} --server {asked.url}"
    code = stop.exit_code if isinstance(stop, Stopped) else INTERRUPTED
    return Detached(
        f"detached; conversion {handle.id} continues at the server {asked.url}. Look at it: reshard jobs show {named}; stop it: "
        f"reshard jobs cancel {named}",
        code,
    )
