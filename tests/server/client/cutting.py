"""A proxy on loopback that cuts connections off after some bytes, so that clients must go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Cutting:
    """Where it listens; ``cuts`` are bytes after which the next answers are cut off, None for none of them."""

    url: str
    cuts: list[int | None] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)


@contextmanager
def cutting(server_url: str) -> Iterator[Cutting]:
    host, port = server_url.removeprefix("http://").split(":")
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = Cutting(f"http://127.0.0.1:{listening.getsockname()[1]}")

    def accept() -> None:
        with suppress(OSError):
            while True:
                client = listening.accept()[0]
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(port))) as server, suppress(OSError):
            head = client.recv(65536)
            proxy.requests.append(head)
            left = proxy.cuts.pop(0) if proxy.cuts else None
            server.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            threading.Thread(target=pump, args=(client, server), daemon=True).start()
            while data := server.recv(65536):
                if left is not None and len(data) >= left:
                    client.sendall(data[:left])
                    break
                left = None if left is None else left - len(data)
                client.sendall(data)
            for one in (client, server):
                one.shutdown(
                    socket.SHUT_RDWR
                )  # the pump still reads, and a mere close would wait for it

    def pump(client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        listening.close()
