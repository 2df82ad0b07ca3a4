"""A proxy before PostgreSQL, that can drop everything without a word, delay it, and cut connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

SOCKET_NAME = ".s.PGSQL.5432"


@dataclass
class Proxy:
    """A proxy between a server and its database.

    Attributes:
        url: of the database, through the proxy.
        is_open: cleared, nothing passes in either direction, and nothing is closed.
        delay_seconds: how long everything that is sent is held up.
    """

    url: str
    is_open: threading.Event = field(default_factory=threading.Event)
    delay_seconds: float = 0.0
    sockets: list[socket.socket] = field(default_factory=list)

    def black_hole(self) -> None:
        """From now on everything that is sent is swallowed."""
        self.is_open.clear()

    def mend(self) -> None:
        """Connections that were lost are closed, and new ones pass."""
        self.cut()
        self.is_open.set()

    def cut(self) -> None:
        """Closes every connection."""
        taken, self.sockets = self.sockets, []
        for one in taken:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(url: str, folder: Path) -> Iterator[Proxy]:
    """A proxy on a socket in ``folder`` before the database of ``url``, which names a socket's folder too."""
    parts = urlsplit(url)
    behind = Path(parse_qs(parts.query)["host"][0]) / SOCKET_NAME
    proxy = Proxy(urlunsplit(parts._replace(query=f"host={folder}")))
    proxy.is_open.set()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / SOCKET_NAME))
        listening.listen(64)
        threading.Thread(target=_accept, args=(proxy, listening, behind), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.cut()
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _accept(proxy: Proxy, listening: socket.socket, behind: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            database = socket.socket(socket.AF_UNIX)
            try:
                database.connect(str(behind))
            except OSError:  # the database is being started anew
                client.close()
                continue
            proxy.sockets += [client, database]
            for source, sink in ((client, database), (database, client)):
                threading.Thread(target=_pump, args=(proxy, source, sink), daemon=True).start()


def _pump(proxy: Proxy, source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(proxy.delay_seconds)
            if proxy.is_open.is_set():
                sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
