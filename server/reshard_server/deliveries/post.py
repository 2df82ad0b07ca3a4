"""One try of a delivery: one POST, to an address that was checked, within one time limit.

The name is looked up once. The connection goes to the addresses that were found then and checked, so that a name that changes its meaning
between the check and the connection gains nothing. TLS and ``Host`` still have the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import anyio
import httpcore
from httpcore import AsyncNetworkBackend, AsyncNetworkStream

from reshard_server.db.deliveries import Tried
from reshard_server.deliveries.receivers import PORTS, Address, Receiver, check_address
from reshard_server.settings import Settings

TRY_SECONDS = 10.0
"""A receiver should answer at once and work later; shorter than ``db.deliveries.CLAIM_SECONDS``."""

CONNECT_SECONDS = 3.0
"""For one of several addresses, so that there is time for another: of a name with IPv6 from a host without it."""

MOST_OF_A_BODY = 65536
"""Bytes of an answer that are read, for a connection that ends well; nothing of it is kept."""


async def post(
    settings: Settings,
    receiver: Receiver,
    headers: Mapping[str, str],
    body: bytes,
    trust: ssl.SSLContext,
) -> Tried:
    """Sends a body to a receiver. Raises ProblemError if one of its addresses may not be notified."""
    status: int | None = None
    url = httpcore.URL(
        scheme=receiver.scheme, host=receiver.host, port=receiver.port, target=receiver.path
    )
    host = f"[{receiver.host}]" if ":" in receiver.host else receiver.host
    named = host if receiver.port == PORTS[receiver.scheme] else f"{host}:{receiver.port}"
    fault = f"did not answer within {TRY_SECONDS:g} s"
    # One limit for all: against a receiver that sends a byte now and then.
    with anyio.move_on_after(TRY_SECONDS):
        try:
            found = await _looked_up(receiver.host, receiver.port)
            addresses = [check_address(settings, receiver, one) for one in found]
            async with (
                httpcore.AsyncConnectionPool(
                    ssl_context=trust, network_backend=_Pinned(addresses)
                ) as pool,
                pool.stream(
                    "POST", url, headers=[("Host", named), *headers.items()], content=body
                ) as answer,
            ):
                status, size = answer.status, 0
                async for part in answer.aiter_stream():
                    size += len(part)
                    if size >= MOST_OF_A_BODY:  # against an answer without an end
                        break
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            OSError,
        ) as error:
            fault = f"could not be reached: {str(error)[:200] or type(error).__name__}"
    if status is None:
        return Tried(None, f"{receiver.host} {fault}")
    return Tried(status, _refusal(status))


def _refusal(status: int) -> str | None:
    """The reason why an answer is no success; None for a success."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"the answer was {status}, a redirect, which is never followed; name the URL to which it leads"
    return f"the answer was {status}; expected 2xx"


async def _looked_up(host: str, port: int) -> list[Address]:
    """The addresses of a host, in the resolver's order."""
    found: list[Address | OSError] = []
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def look_up() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(ip_address(where[4][0]) for where in answers)
        except (OSError, UnicodeError) as error:
            found.append(OSError(f"the name is not known: {error}"))
        with suppress(RuntimeError):  # the try is over
            loop.call_soon_threadsafe(ready.set)

    # A thread of its own: nothing ends a lookup that hangs, and the server must not wait for it.
    threading.Thread(target=look_up, daemon=True).start()
    await ready.wait()
    for one in found:
        if isinstance(one, OSError):
            raise one
    return [one for one in found if not isinstance(one, OSError)]


@dataclass
class _Pinned(AsyncNetworkBackend):
    """Connects to these addresses only, whatever the name of the URL means by now."""

    addresses: list[Address]
    plain: AsyncNetworkBackend = field(default_factory=httpcore.AnyIOBackend)

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002  (httpcore's; the name is not looked up again)
        port: int,
        timeout: float | None = None,  # noqa: ARG002  (httpcore's; each address has its own)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        """The first connection that is made."""
        fault: Exception = httpcore.ConnectError("the name has no address")
        for address in self.addresses:
            try:
                return await self.plain.connect_tcp(
                    str(address), port, CONNECT_SECONDS, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                fault = error
        raise fault
