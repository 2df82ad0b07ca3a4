"""SimulatedHosts: an executor whose workers take the time of real tasks, but only in virtual time, and move nothing.

It does what any executor must: it pickles each batch, keeps it until it has ended, and unpickles what comes back.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from benchmarks.hosts.coordinator import SIMULATION, Coordinator
from benchmarks.hosts.task_times import decoded_bytes, seconds
from reshard.checksums.sums import Sums, coverage_of
from reshard.engine.executor import HostsExecutor
from reshard.engine.run import BatchResult
from reshard.engine.task import Result, StoredChunk, Task
from reshard.geometry.dtypes import storage_bytes

LATENCY_S = 0.001
"""Until a batch, or its result, has crossed the network."""

VERSION = "1764009400123456"
"""Of an object, as buckets name it."""

Batch = tuple[Task, ...]


class SimulatedHosts(HostsExecutor):
    """``hosts`` hosts. Call ``end_next`` before waiting for a batch: no other thread ends one.

    Attributes:
        workers: of all hosts.
        times: the virtual seconds that each batch took, in the order in which they were handed out.
        last_s: when the last batch ended.
        sent, received: the pickled bytes of each batch, and of each result.
    """

    def __init__(self, hosts: int, coordinator: Coordinator, seed: int = 0) -> None:
        self._hosts = hosts
        self._coordinator = coordinator
        self._chance = random.Random(seed)  # noqa: S311 - the spread of simulated times
        self._free_at: list[tuple[float, int]] = []
        self._running: list[tuple[float, int, _Ending]] = []
        self._numbers = itertools.count()
        self._ended = 0
        self.workers = 0
        self.times: list[float] = []
        self.last_s = 0.0
        self.sent: list[int] = []
        self.received: list[int] = []

    @property
    def hosts(self) -> int:
        return self._hosts

    @property
    def utilisation(self) -> float:
        """Share of the workers' time in which they work, until the last batch has ended."""
        return sum(self.times) / (self.workers * self.last_s)

    @property
    def best_utilisation(self) -> float:
        """The same if the coordinator took no time: what is lost then, is lost because batches are large or few."""
        free_at = [0.0] * self.workers
        for took_s in self.times:
            heapq.heapreplace(free_at, free_at[0] + took_s)
        return sum(self.times) / (self.workers * max(free_at))

    def open(self, max_memory: int, workers: int, processes: int) -> None:  # noqa: ARG002  each host has what it is asked for
        """Makes workers that are idle."""
        self.workers = workers * self._hosts
        self._free_at = [(0.0, worker) for worker in range(self.workers)]

    def on_each_host(self, ask: Callable[[], Any]) -> Mapping[str, Any]:
        return {_name(number): ask() for number in range(self._hosts)}

    def close(self) -> None:
        """Nothing runs."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Gives a batch to the worker that is free first; the work travels with the first batch only."""
        (batch,) = arguments
        with self._coordinator.step("pickling"):
            message = pickle.dumps((None if self.sent else work, batch))
        with self._coordinator.step(SIMULATION):
            self.sent.append(len(message))
            return self._begun(batch)

    def _begun(self, batch: Batch) -> Future[Any]:
        free_s, worker = heapq.heappop(self._free_at)
        took_s = sum(seconds(decoded_bytes(task), self._chance) for task in batch)
        end_s = max(free_s, self._coordinator.now_s() + LATENCY_S) + took_s
        heapq.heappush(self._free_at, (end_s, worker))
        self.times.append(took_s)
        self.last_s = max(self.last_s, end_s)
        ending = _Ending(self.take, batch, _name(worker % self._hosts), end_s + LATENCY_S)
        heapq.heappush(self._running, (ending.at_s, next(self._numbers), ending))
        return ending

    def end_next(self) -> None:
        """Ends the batch that ends first, unless one has ended whose result was not taken yet."""
        with self._coordinator.step(SIMULATION):
            if self._running and not self._ended:
                self._ended += 1
                heapq.heappop(self._running)[2].set_result(None)

    def take(self, batch: Batch, host: str, at_s: float) -> BatchResult:
        """What a batch gives, at the virtual time at which that arrives."""
        with self._coordinator.step(SIMULATION):
            self._ended -= 1
            self._coordinator.wait_until(at_s)
            results = [[self._result(task, host)] for task in batch]
            message = pickle.dumps(BatchResult(results))
            self.received.append(len(message))
        with self._coordinator.step("unpickling"):
            result: BatchResult = pickle.loads(message)  # noqa: S301 - of this very process
        return result

    def _result(self, task: Task, host: str) -> Result:
        """A result as it comes from a bucket: whole chunks, each in a new version of its object."""
        (read,), (unit,) = task.reads, task.units
        digest = self._chance.getrandbits(64)
        itemsize = storage_bytes(unit.dtype)
        sizes = [chunk.box.size * itemsize for chunk in unit.chunks]
        chunks = tuple(
            StoredChunk(chunk.index, 0, nbytes, nbytes + 4, (VERSION,))
            for chunk, nbytes in zip(unit.chunks, sizes, strict=True)
        )
        sums = Sums(digest, digest, coverage_of(read.box), coverage_of(unit.box))
        moved, stored = sum(sizes), read.stored_bytes
        return Result(unit.tensor, unit.number, (sums,), moved, stored, chunks, host=host)


class _Ending(Future[Any]):
    """A batch whose result arrives at ``at_s``, and is made when it is taken."""

    def __init__(
        self, take: Callable[[Batch, str, float], Any], batch: Batch, host: str, at_s: float
    ) -> None:
        super().__init__()
        self.at_s = at_s
        self._take = take
        self._batch, self._host = batch, host

    def result(self, timeout: float | None = None) -> Any:
        super().result(timeout)
        return self._take(self._batch, self._host, self.at_s)


def _name(host: int) -> str:
    return f"host-{host}"
