"""The commands ``reshard serve`` and ``reshard serve --migrate``; and the server process, from its socket to its orderly end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from reshard.errors import ReshardError
from reshard.storage.location import is_in_hub
from reshard_server.app import create_app
from reshard_server.auth.limits import Drain
from reshard_server.auth.tokens import load_tokens
from reshard_server.db.database import open_migrated, shown, state_locked
from reshard_server.deliveries.messages import read_secrets
from reshard_server.engines.job_document import read_template
from reshard_server.middleware.http_protocol import protocol_of
from reshard_server.observability.logs import set_up_audit, set_up_logs
from reshard_server.settings import Settings, unknown_variables
from reshard_server.worker.children import BUCKETS

LOG = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serves with these settings until the process gets SIGTERM or SIGINT.

    Raises ReshardError for invalid settings before it listens.
    """
    load_tokens(settings)
    prepare(settings)
    set_up_audit(settings.audit_log)
    app = create_app(settings)
    with listen(settings.host, settings.port) as listening:
        said = announcement(settings, address_of(listening))
        run_server(app, settings, listening, lambda: print(said, file=sys.stderr, flush=True))


def prepare(settings: Settings) -> None:
    """Checks the roots, and sets up the log and the buckets of children, before a process takes work.

    Raises ReshardError for roots that cannot be used.
    """
    if settings.buckets:
        os.environ[BUCKETS] = str(settings.buckets.absolute())  # for this process and its children
    _check(settings)
    set_up_logs(settings.log_level, settings.log_format)
    for variable in unknown_variables(os.environ):
        LOG.warning("the variable %s is ignored: there is no such setting", variable)


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
    if settings.notify_secrets_file:
        read_secrets(settings.notify_secrets_file)
    for name, place in settings.roots.items():
        path = place.local
        if path is None:
            try:  # sends no request to the cloud: one that is down must not keep the other roots from being served
                if not is_in_hub(str(place)):
                    place.open().close()
            except ReshardError as error:
                raise ReshardError(f"the root {name!r} cannot be used: {error}") from error
            continue
        if not path.is_dir():
            raise ReshardError(
                f"the root {name!r} is {str(path)!r}, which is not a folder; create it, or correct the path"
            )
        for what, private, remedy in (
            ("audit log", settings.audit_log, "a file elsewhere"),
            ("file with the settings of buckets", settings.buckets, "a file elsewhere"),
            (
                "file with the secrets of notifications",
                settings.notify_secrets_file,
                "a file elsewhere",
            ),
            ("state folder", settings.state, "a folder elsewhere with --state"),
        ):
            if private and private.resolve().is_relative_to(path.resolve()):
                raise ReshardError(
                    f"the {what} {str(private.absolute())!r} is in the root {name!r}, where clients may read and write; name {remedy}"
                )
    if settings.engines is not None and settings.engines.kubernetes is not None:
        read_template(settings.engines.kubernetes)


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


HEAD_MARGIN_BYTES = 16384
"""Lets the application, with the request's id, refuse headers that are slightly too large."""

BACKLOG = 512


class DrainingServer(uvicorn.Server):
    """On a signal it accepts no new work, lets open requests finish, and exits with 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        drain_seconds: float,
        when_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.drain = drain
        self.when_ready = when_ready
        self.drain_seconds = drain_seconds
        self.signal: signal.Signals | None = None
        self.signalled_at = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the records and begins to accept; then the server is ready."""
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self.when_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  (uvicorn's)
        """The first signal drains the server; a second one ends it at once.

        It only notes the signal: one that came while a line of the log was written could not write its own.
        """
        if self.signal is not None:
            self.should_exit = self.force_exit = True
            return
        self.signal, self.signalled_at = signal.Signals(sig), time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Runs ten times a second."""
        if self.signal is not None and not self.should_exit:
            if not self.drain.started.is_set():
                LOG.info("draining", extra={"signal": self.signal.name})
                self.drain.started.set()
            await asyncio.sleep(0)
            waited = time.monotonic() - self.signalled_at
            self.should_exit = not self.drain.open_requests or waited > self.drain_seconds / 2
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ReshardError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error  # an unknown name has no number
        raise ReshardError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port, or end the process that uses it"
        ) from error
    listening.set_inheritable(False)
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


SWITCH_SECONDS = 0.0005
"""Seconds that a thread runs before it lets others run. A query of the records switches threads a dozen times, and Python's
default of 5 ms would add up."""


def run_server(
    app: FastAPI, settings: Settings, listening: socket.socket, when_ready: Callable[[], None]
) -> None:
    """Serves until a signal ends the process; ``when_ready`` is called once requests are answered.

    Raises ReshardError if it cannot start.
    """
    config = uvicorn.Config(
        app,
        http=protocol_of(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=settings.header_bytes + HEAD_MARGIN_BYTES,
        timeout_graceful_shutdown=max(1, int(settings.drain_seconds / 4)),
        backlog=BACKLOG,
    )
    server = DrainingServer(config, app.state.drain, settings.drain_seconds, when_ready)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # permanent objects; collecting them took tens of milliseconds each time
    try:
        with _without_traceback(app):
            server.run(sockets=[listening])
    except SystemExit:
        if app.state.refused is None:
            raise
    if app.state.refused is not None:
        raise app.state.refused


@contextmanager
def _without_traceback(app: FastAPI) -> Iterator[None]:
    """Keeps uvicorn from logging the traceback of an error at the start; the error's message suffices."""

    def is_logged(_: logging.LogRecord) -> bool:
        return app.state.refused is None

    log = logging.getLogger("uvicorn.error")
    log.addFilter(is_logged)
    try:
        yield
    finally:
        log.removeFilter(is_logged)
