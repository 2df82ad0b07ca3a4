"""A server process: from its socket to its orderly end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from reshard.errors import ReshardError
from reshard_server.drain import Drain
from reshard_server.middleware.http_protocol import protocol_of
from reshard_server.settings import Settings

LOG = logging.getLogger(__name__)

HEAD_MARGIN_BYTES = 16384
"""Headers that are a little too large are refused by the application, with the request's id."""

BACKLOG = 512


class DrainingServer(uvicorn.Server):
    """Told to end, it takes nothing new, lets open requests end, and then ends with exit code 0."""

    def __init__(self, config: uvicorn.Config, drain: Drain, drain_seconds: float) -> None:
        super().__init__(config)
        self.drain = drain
        self.drain_seconds = drain_seconds
        self.told_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  (uvicorn's)
        """The first signal drains; a second one ends at once."""
        if self.told_at is not None:
            self.should_exit = self.force_exit = True
            return
        self.told_at = time.monotonic()
        LOG.info("draining", extra={"signal": signal.Signals(sig).name})

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self.told_at is not None and not self.should_exit:
            self.drain.begun.set()
            await asyncio.sleep(0)
            waited = time.monotonic() - self.told_at
            self.should_exit = not self.drain.open_requests or waited > self.drain_seconds / 2
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ReshardError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        number = error.errno or 0
        reason = (
            os.strerror(number) if number > 0 else error
        )  # a name that is unknown has no number
        raise ReshardError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port, or end what uses it"
        ) from error
    found.set_inheritable(False)
    return found


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


SWITCH_SECONDS = 0.0005
"""How long a thread that works keeps others waiting. A request to the records gives way a dozen times, and
Python's own 5 ms would add up."""


def run_server(app: FastAPI, settings: Settings, listening: socket.socket) -> None:
    """Serves until the process is told to end. Raises ReshardError where it cannot start."""
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
    server = DrainingServer(config, app.state.drain, settings.drain_seconds)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what is there for good; the collector went over it again and again, for tens of milliseconds each time
    try:
        with _without_its_own_words(app):
            server.run(sockets=[listening])
    except SystemExit:
        if app.state.refused is None:
            raise
    if app.state.refused is not None:
        raise app.state.refused


@contextmanager
def _without_its_own_words(app: FastAPI) -> Iterator[None]:
    """Of what the application could not start for, uvicorn would log the traceback; the error says it all."""

    def wanted(_: logging.LogRecord) -> bool:
        return app.state.refused is None

    log = logging.getLogger("uvicorn.error")
    log.addFilter(wanted)
    try:
        yield
    finally:
        log.removeFilter(wanted)
