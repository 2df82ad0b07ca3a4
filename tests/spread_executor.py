"""SpreadExecutor: threads that count as several hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from reshard.engine.executor import HostsExecutor


class SpreadExecutor(HostsExecutor):
    """Each of ``hosts`` has what the run asks for; notes what was asked."""

    def __init__(self, hosts: int = 3) -> None:
        self._hosts = hosts
        self._threads: ThreadPoolExecutor | None = None
        self.opened: list[tuple[int, int, int]] = []
        self.submitted = 0

    @property
    def hosts(self) -> int:
        return self._hosts

    def open(self, max_memory: int, workers: int, processes: int) -> None:
        self.opened.append((max_memory, workers, processes))
        self._threads = ThreadPoolExecutor(workers * self._hosts)

    def on_each_host(self, ask: Callable[[], Any]) -> Mapping[str, Any]:
        return {f"host{number}": ask() for number in range(self._hosts)}

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        assert self._threads is not None
        self.submitted += 1
        return self._threads.submit(work, *arguments)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  of the interface
        self.close()
