"""Trusted proxies: takes a request's client, scheme and host from the headers of proxies that the settings trust.

A proxy appends its client's address to ``X-Forwarded-For``; earlier entries may be forged. So the list is read from its
end, as long as the entries are trusted proxies themselves. ``X-Forwarded-Proto`` and ``X-Forwarded-Host`` are those of
the nearest proxy: the last ones if there are several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

Network = Any
"""``IPv4Network`` or ``IPv6Network``."""

ANY = "*"
BUCKET_BITS = 64
"""Prefix length of an IPv6 network within which one client may usually choose addresses."""

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


@dataclass(frozen=True)
class Proxies:
    """The proxies that are trusted.

    Attributes:
        networks: addresses of trusted proxies.
        any_peer: True if the peer of a connection is always a trusted proxy.
    """

    networks: tuple[Network, ...] = ()
    any_peer: bool = False

    @classmethod
    def of(cls, text: str | None) -> Proxies:
        """Parses addresses and networks between commas, or ``*``. Raises ValueError for other text."""
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        return cls(tuple(ip_network(n) for n in names if n != ANY), ANY in names)

    def trusts(self, address: str) -> bool:
        """True for the address of a trusted proxy."""
        parsed = parsed_address(address)
        return parsed is not None and any(parsed in network for network in self.networks)

    def seen_by(self, scope: Scope) -> Scope:
        """The request as the outermost trusted proxy received it: its client, scheme and host."""
        peer = scope.get("client")
        if peer is None or not (self.any_peer or self.trusts(peer[0])):
            return scope
        headers = Headers(scope=scope)
        received = dict(scope)
        client = self._client(_values(headers, "x-forwarded-for"))
        if client is not None:
            received["client"] = (client, 0)
        scheme = _last(headers, "x-forwarded-proto").lower()
        if scheme in ("http", "https"):
            received["scheme"] = scheme
        host = _last(headers, "x-forwarded-host")
        if _HOST.fullmatch(host):
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            received["headers"] = [(b"host", host.encode()), *others]
        return received

    def _client(self, chain: list[str]) -> str | None:
        """The last address in the chain that is not a trusted proxy; None if there is none."""
        client = None
        for text in reversed(chain):
            address = parsed_address(_without_port(text))
            if address is None:
                break
            client = str(address)
            if not self.trusts(client):
                break
        return client


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, an IPv4-mapped one as IPv4; None for other text."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def bucket_of(address: str) -> str:
    """The key under which an address's requests are counted; for IPv6 its network."""
    parsed = parsed_address(address)
    if isinstance(parsed, IPv6Address):
        return f"address {IPv6Network((int(parsed), BUCKET_BITS), strict=False)}"
    return f"address {address if parsed is None else parsed}"


def _without_port(text: str) -> str:
    """The address in ``1.2.3.4:5`` or ``[::1]:5``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _values(headers: Headers, name: str) -> list[str]:
    return [part.strip() for line in headers.getlist(name) for part in line.split(",")]


def _last(headers: Headers, name: str) -> str:
    return (_values(headers, name) or [""])[-1]


class Forwarded:
    """Puts the client, scheme and host that a trusted proxy names into the request."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self.app = app
        self.proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = self.proxies.seen_by(scope) if scope["type"] == "http" else scope
        await self.app(received, receive, send)
