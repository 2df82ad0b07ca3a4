"""The commands ``reshard serve`` and ``reshard serve --migrate``."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path

from reshard.errors import ReshardError
from reshard.storage.location import Location
from reshard_server.app import create_app
from reshard_server.auth.tokens import load_tokens
from reshard_server.db.database import open_migrated, shown, state_locked
from reshard_server.load_settings import unknown_variables
from reshard_server.observability.audit import set_up_audit
from reshard_server.observability.logs import set_up_logs
from reshard_server.server_process import address_of, listen, run_server
from reshard_server.settings import Settings
from reshard_server.worker.children import BUCKETS

LOG = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serves with these settings until the process gets SIGTERM or SIGINT.

    Raises ReshardError for invalid settings before it listens.
    """
    if settings.buckets:
        os.environ[BUCKETS] = str(settings.buckets.absolute())  # for this process and its children
    _check(settings)
    set_up_logs(settings.log_level, settings.log_format)
    set_up_audit(settings.audit_log)
    for variable in unknown_variables(os.environ):
        LOG.warning("the variable %s is ignored: there is no such setting", variable)
    app = create_app(settings)
    with listen(settings.host, settings.port) as listening:
        said = announcement(settings, address_of(listening))
        run_server(app, settings, listening, lambda: print(said, file=sys.stderr, flush=True))


def migrate_records(settings: Settings) -> str:
    """Migrates the records to this version, and returns a summary; serves nothing.

    Raises StorageError if the records cannot be used, or another server uses the state folder.
    """
    with state_locked(settings):
        database, done = open_migrated(settings)
        database.dispose()
    what = f"did the migrations {', '.join(done)}" if done else "nothing to migrate"
    return f"{shown(database)}: {what}"


def _check(settings: Settings) -> None:
    load_tokens(settings)
    for name, place in settings.roots.items():
        if not place.traits.renames:
            _check_bucket(name, place)
            continue
        path = Path(place.path)
        if not path.is_dir():
            raise ReshardError(
                f"the root {name!r} is {str(path)!r}, which is not a folder; create it, or correct the path"
            )
        if settings.audit_log and settings.audit_log.resolve().is_relative_to(path.resolve()):
            raise ReshardError(
                f"the audit log {str(settings.audit_log.absolute())!r} is in the root {name!r}, where clients may read and "
                "write; name a file elsewhere"
            )
        if settings.buckets and settings.buckets.resolve().is_relative_to(path.resolve()):
            raise ReshardError(
                f"the file with the settings of buckets {str(settings.buckets.absolute())!r} is in the root {name!r}, where "
                "clients may read and write; name a file elsewhere"
            )
        if settings.state.resolve().is_relative_to(path.resolve()):
            raise ReshardError(
                f"the state folder {str(settings.state.absolute())!r} is in the root {name!r}, where clients may read "
                "and write; name a folder elsewhere with --state"
            )


def _check_bucket(name: str, place: Location) -> None:
    """Raises ReshardError for settings of a bucket that cannot work. Sends no request to the cloud: one that is down must
    not keep the other roots from being served."""
    try:
        place.open().close()
    except ReshardError as error:
        raise ReshardError(f"the root {name!r} cannot be used: {error}") from error


def announcement(settings: Settings, address: str) -> str:
    """The address, the URL of the pages, the roots, and a command to try."""
    roots = [f"  {name} = {place}" for name, place in sorted(settings.roots.items())]
    header = () if settings.insecure else ("-H", "Authorization: Bearer TOKEN")
    line = shlex.join(["curl", *header, f"{address}/v1/conversions"])
    return "\n".join(
        [
            f"reshard listens on {address}",
            f"pages for people: {(settings.public_url or address).rstrip('/')}/",
            "roots:" if roots else "roots: none; add some with --root NAME=PATH",
            *roots,
            f"try: {line}",
        ]
    )
