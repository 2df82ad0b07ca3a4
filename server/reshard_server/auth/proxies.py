"""Proxies: what those in front of the server say of a request, where the settings say that they are believed.

A proxy appends who asked it to ``X-Forwarded-For``; whatever stands before that is somebody's word. So the list is read
from its end, as long as what stands there is a proxy that is believed itself. ``X-Forwarded-Proto`` and
``X-Forwarded-Host`` are those of the proxy that asks us: the last ones, where there are several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

Network = Any
"""``IPv4Network`` or ``IPv6Network``."""

ANY = "*"
BUCKET_BITS = 64
"""Of an IPv6 address; what somebody has of them, as a rule, and may choose from."""

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


@dataclass(frozen=True)
class Proxies:
    """Whom to believe.

    Attributes:
        networks: addresses of proxies.
        any_peer: the peer is a proxy, and only the peer.
    """

    networks: tuple[Network, ...] = ()
    any_peer: bool = False

    @classmethod
    def of(cls, text: str | None) -> Proxies:
        """Addresses and networks between commas, or ``*``. Raises ValueError for what is neither."""
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        return cls(tuple(ip_network(n) for n in names if n != ANY), ANY in names)

    def believed(self, address: str) -> bool:
        """Whether this is the address of a proxy."""
        found = parsed_address(address)
        return found is not None and any(found in network for network in self.networks)

    def seen_by(self, scope: Scope) -> Scope:
        """The request as the outermost proxy that is believed got it: its client, scheme and host."""
        peer = scope.get("client")
        if peer is None or not (self.any_peer or self.believed(peer[0])):
            return scope
        headers = Headers(scope=scope)
        found = dict(scope)
        client = self._client(_values(headers, "x-forwarded-for"))
        if client is not None:
            found["client"] = (client, 0)
        scheme = _last(headers, "x-forwarded-proto").lower()
        if scheme in ("http", "https"):
            found["scheme"] = scheme
        host = _last(headers, "x-forwarded-host")
        if _HOST.fullmatch(host):
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            found["headers"] = [(b"host", host.encode()), *others]
        return found

    def _client(self, chain: list[str]) -> str | None:
        """The first address from the end that is no proxy's; None where nobody says one."""
        client = None
        for text in reversed(chain):
            found = parsed_address(_without_port(text))
            if found is None:
                break
            client = str(found)
            if not self.believed(client):
                break
        return client


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, as IPv4 where it is one written as IPv6; None for what is none."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def bucket_of(address: str) -> str:
    """What requests of an address are counted by: of IPv6 the network that somebody may choose addresses from."""
    found = parsed_address(address)
    if isinstance(found, IPv6Address):
        return f"address {IPv6Network((int(found), BUCKET_BITS), strict=False)}"
    return f"address {address if found is None else found}"


def _without_port(text: str) -> str:
    """``1.2.3.4:5`` and ``[::1]:5`` without what is no address."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _values(headers: Headers, name: str) -> list[str]:
    return [part.strip() for line in headers.getlist(name) for part in line.split(",")]


def _last(headers: Headers, name: str) -> str:
    return (_values(headers, name) or [""])[-1]
