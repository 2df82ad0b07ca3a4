"""Ports of loopback for programs that cannot choose a free one themselves and say which."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that no other process gets in this block, unless it asks for this very one.

    It stays bound, so that the kernel gives it to nobody, and does not listen, so that a server that allows the reuse of addresses,
    as nearly all do, listens there.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]
