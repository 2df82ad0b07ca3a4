"""Receivers of notifications: which URLs a client may name, and which addresses the server connects to.

A client chooses the URL, but the server's host sends the request, from within its network. So the URL is checked as it is submitted, and
every address of its name at each try: a name may mean another address by then.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NoReturn
from urllib.parse import urlsplit

from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.settings import Settings

Address = IPv4Address | IPv6Address

PORTS = {"https": 443, "http": 80}

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")

_MISSED = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments, with the metadata of one cloud; Python 3.11 takes most of it for public
            "192.88.99.0/24",  # 6to4 relays (RFC 7526)
            "168.63.129.16/32",  # the host's agent, for each virtual machine of one cloud
            "2001::/23",  # Teredo and other tunnels, which hold an IPv4 address
            "2002::/16",  # 6to4, which holds an IPv4 address
            "3fff::/20",  # for documentation (RFC 9637)
        ),
    )
)
"""Networks that are not public, and that ``is_global`` of some Python takes for public."""

_UNICAST = ip_network("2000::/3")
"""The public unicast addresses of IPv6 (RFC 4291); outside are NAT64, site-local, multicast and all that is reserved."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A URL in parts, as it is connected to.

    Attributes:
        path: with the query.
    """

    scheme: str
    host: str
    port: int
    path: str


def check_receivers(settings: Settings, urls: Iterable[str]) -> None:
    """Raises ProblemError for the first URL that a request may not name; nothing is looked up."""
    for number, url in enumerate(urls):
        if settings.notify_secrets_file is None:
            raise no_secret("/notify")
        receiver_of(settings, url, f"/notify/{number}")


def no_secret(field: str) -> ProblemError:
    """The problem of a server that has no secret to sign with."""
    remedy = "leave notify out, or let the administrator set notify_secrets_file"
    detail = f"this server sends no notifications, since it has no secret to sign them; {remedy}"
    return ProblemError(INVALID, detail, field, remedy)


def receiver_of(settings: Settings, url: str, field: str | None = None) -> Receiver:
    """The parts of a URL. Raises ProblemError for one that may not be notified."""
    # Against parsers that disagree about spaces, line breaks and backslashes.
    if not re.fullmatch(r"[!-\[\]-~]+", url):
        _refuse(
            "has a character that no URL may have",
            "write it in ASCII, and escape others as %XX",
            field,
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        _refuse("is not a URL", "write it such as https://hooks.example/path", field)
    if "@" in parts.netloc:  # the text is not shown: it may hold a password
        _refuse("has a user or a password", "let the receiver check the signature", field)
    shown = repr(url[:200])
    if parts.scheme not in PORTS:
        _refuse(f"is {shown}, whose scheme is not https", "begin it with https://", field)
    if parts.scheme == "http" and not settings.notify_private:
        _refuse(f"is {shown}, which is not encrypted", "begin it with https://", field)
    if "#" in url:
        _refuse(
            f"is {shown}, with a fragment, which is never sent",
            "leave out what begins with #",
            field,
        )
    literal = _literal(host)
    if port == 0 or (literal is None and not _NAME.fullmatch(host)) or len(host) > 253:
        _refuse(
            f"is {shown}, which names no host and port",
            "write it such as https://hooks.example/path",
            field,
        )
    if settings.notify_hosts and not any(
        fnmatchcase(host, p.lower()) for p in settings.notify_hosts
    ):
        _refuse(
            f"is {shown}, whose host is not among those that this server may notify",
            "choose another, or let the administrator add it to notify_hosts",
            field,
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    receiver = Receiver(parts.scheme, host, port or PORTS[parts.scheme], path)
    if literal is not None:
        check_address(settings, receiver, literal, field)
    return receiver


def _literal(host: str) -> Address | None:
    """The address that a host is, in every form that the resolver takes for one (127.1, 0x7f000001); None for a name."""
    if host == "localhost" or host.endswith(".localhost"):
        return IPv4Address("127.0.0.1")
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None


def check_address(
    settings: Settings, receiver: Receiver, address: Address, field: str | None = None
) -> Address:
    """The address to connect to. Raises ProblemError for one that is not public, unless the settings allow its network."""
    # What an inner name means is not told to clients; a literal they know.
    shown = "an address" if field is None else f"the address {address}"
    # ::ffff:127.0.0.1 is 127.0.0.1 by another name.
    plain = getattr(address, "ipv4_mapped", None) or address
    if any(plain in network for network in settings.notify_private):
        return plain
    if receiver.scheme == "http":
        _refuse(
            f"has {shown} to which http may not go, only https",
            "begin it with https://, or let the administrator add the network to notify_private",
            field,
        )
    if not is_public(plain):
        _refuse(
            f"has {shown} that is not public",
            "choose a public host, or let the administrator add the network to notify_private",
            field,
        )
    return plain


def is_public(address: Address) -> bool:
    """True for a unicast address of the public internet."""
    if any(address in network for network in _MISSED):
        return False
    if isinstance(address, IPv6Address):
        return address in _UNICAST and address.is_global
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _refuse(found: str, remedy: str, field: str | None) -> NoReturn:
    raise ProblemError(INVALID, f"the URL to notify {found}; {remedy}", field, remedy)
