"""RayExecutor: runs the tasks of a conversion on every node of a Ray cluster.

Each node gets as many actors as the plan has processes, at least one. An actor has threads and a pool of buffers, and asks Ray
for its processors and its memory. Batches go to the actor with the fewest; only plans and sums pass through Ray, since tasks
read and write files and objects themselves. Ray starts an actor again that was killed, and carries its batches out again. The
batches of a node that is gone go to the others.

A Ray cluster: the connection to it, its nodes, and the actor that carries out batches on each.

An actor runs batches in threads that share a pool of buffers; errors travel as values.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct, field

from reshard.engine.buffers import ArenaPool
from reshard.engine.executor import HostsExecutor
from reshard.engine.run import Work
from reshard.errors import MissingPackageError, PlanError, ReshardError
from reshard.geometry.sizes import format_bytes
from reshard.version import how_to_install

CONNECT_S = 10.0
"""Seconds that the address of a cluster may take to answer at all."""


class RayHost(Struct, frozen=True):
    """A node of the cluster.

    Attributes:
        name: of its host; with the beginning of the node's id if several nodes are on one host.
        memory_bytes: memory that Ray lends there.
    """

    node_id: str
    name: str
    cpus: int
    memory_bytes: int


def imported_ray() -> Any:
    """The package; MissingPackageError without it."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            f"Ray is not installed here; {how_to_install('ray')} on every host, with one version of Ray"
        ) from error
    return ray


def connect(ray: Any, address: str) -> bool:
    """Connects to a cluster; returns whether this call made the connection."""
    if not isinstance(address, str) or not address or address == "local":
        raise PlanError(
            f"the address of a Ray cluster is {address!r}; expected one such as 10.0.0.1:6379, or auto for the one of this host"
        )
    if ray.is_initialized():
        return False
    _refuse_silent(os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address)
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise _no_cluster(address, first_line(error)) from error
    return True


def _refuse_silent(address: str) -> None:
    """Refuses an address without a listener: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, first_line(error)) from error


def _no_cluster(address: str, reason: str) -> ReshardError:
    return ReshardError(
        f"no Ray cluster of this version of Ray and Python answers at {address!r} ({reason}); begin one with `ray start --head`, or give the "
        "address that it printed (ray)"
    )


def nodes_of(ray: Any) -> list[RayHost]:
    """The nodes that are alive and have processors."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive = [node for node in alive if node["Resources"].get("CPU", 0) >= 1]
    names = [node["NodeManagerHostname"] for node in alive]
    return [
        RayHost(
            node["NodeID"],
            name if names.count(name) == 1 else f"{name} ({node['NodeID'][:8]})",
            int(node["Resources"]["CPU"]),
            int(node["Resources"].get("memory", 0)),
        )
        for name, node in zip(names, alive, strict=True)
    ]


def only_on(host: RayHost) -> Any:
    """Ray's scheduling strategy for starting an actor on this node, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(host.node_id, soft=False)


def refuse_small(nodes: Sequence[RayHost], max_memory: int, address: str) -> None:
    """Raises PlanError if a node lends less memory than each is asked for, ReshardError without a node."""
    if not nodes:
        raise ReshardError(
            f"the Ray cluster at {address!r} has no host with processors; add one with `ray start --address=…`, and run again"
        )
    for host in nodes:
        if host.memory_bytes < max_memory:
            raise PlanError(
                f"host {host.name!r} lends {format_bytes(host.memory_bytes)} of memory to Ray, but each host is asked for "
                f"{format_bytes(max_memory)}; allow less (max_memory), or begin Ray there with more (--memory)"
            )


def first_line(error: BaseException) -> str:
    """The first line of an error of Ray; its messages have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


class Answer(Struct, frozen=True):
    """The value of a call on another host, or its error."""

    value: Any = None
    error: BaseException | None = None


class BatchActor:
    """Carries out batches with ``threads`` at once, whose buffers together stay within ``max_memory`` bytes."""

    def __init__(self, max_memory: int, threads: int) -> None:
        self._pool = ArenaPool(max_memory, threads)

    def ready(self) -> Answer:
        """Answers as soon as the host has granted the processors and the memory."""
        return Answer()

    def run(self, work: Callable[..., Any], *arguments: Any) -> Answer:
        """``work(*arguments)``, with this actor's buffers if it is the work of a run."""
        if isinstance(work, Work):
            work = work.with_pool(self._pool)
        return answered(work, *arguments)


def answered(work: Callable[..., Any], *arguments: Any) -> Answer:
    """The result or the error of ``work(*arguments)``."""
    try:
        return Answer(work(*arguments))
    except BaseException as error:  # noqa: BLE001 - raised again for the waiting caller
        return Answer(None, _travelling(error))


def _travelling(error: BaseException) -> BaseException:
    """The error in a form that can be pickled. A traceback does not travel, but locates a defect, so its text is added."""
    if not isinstance(error, ReshardError):
        error.add_note(f"on another host:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of this very process
    except Exception:  # noqa: BLE001 - an error's own code may raise anything
        return ReshardError(f"{type(error).__name__}: {error}; a task failed on another host")
    return error


T = TypeVar("T")

START_S = 120.0
"""Seconds that the hosts may take until their actors are ready."""

RETRIES = 3
"""Most times that Ray restarts an actor, and repeats a batch, before the run fails."""

AHEAD = 1
"""Batches that an actor has beyond those that it runs, so that it never waits for the next one."""


class _Job(Struct):
    """A batch that was submitted."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Future[Any]
    tries: int = 0


class _Actor(Struct, eq=False):
    """An actor on a node, and the batches that it has."""

    host: RayHost
    handle: Any
    most: int
    running: dict[int, _Job] = field(default_factory=dict)


class RayExecutor(HostsExecutor):
    """Tasks on all nodes of a Ray cluster; ``max_memory`` and ``workers`` of a conversion are those of each node.

    It uses the connection that ``ray.init`` made, or makes one, which ``shutdown`` ends.

    Args:
        address: of the cluster, such as ``"10.0.0.1:6379"``; ``"auto"`` is the one that runs on this host, or that
            the variable RAY_ADDRESS names.
        environment: variables of the processes that do the work, such as the endpoint of a store. Ray shows them to every user
            of the cluster: give secrets to the hosts another way.

    Raises MissingPackageError without Ray, ReshardError if no cluster answers.

    >>> with RayExecutor() as executor:  # doctest: +SKIP
    ...     reshard.convert("ckpt/100", "served", layout="serving.yaml", executor=executor)
    """

    def __init__(
        self, address: str = "auto", *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._ray = imported_ray()
        self._environment = dict(environment or {})
        self._address = address
        self._is_ours = connect(self._ray, address)
        self._actors: list[_Actor] = []
        self._waiting: deque[_Job] = deque()
        self._ended: SimpleQueue[tuple[_Actor, int, Any] | None] = SimpleQueue()
        self._lock = threading.RLock()
        self._numbers = 0
        self._work: Callable[..., Any] | None = None
        self._work_ref: Any = None
        self._thread: threading.Thread | None = None

    @property
    def hosts(self) -> int:
        with self._lock:
            found = {actor.host.node_id for actor in self._actors}
        return len(found) or max(1, len(nodes_of(self._ray)))

    def open(self, max_memory: int, workers: int, processes: int) -> None:
        self.close()
        nodes = nodes_of(self._ray)
        refuse_small(nodes, max_memory, self._address)
        count = max(1, processes)
        for host in nodes:
            threads = max(1, min(workers, host.cpus) // count)
            for _ in range(count):
                handle = self._actor(host, max_memory // count, threads)
                self._actors.append(_Actor(host, handle, threads + AHEAD))
        self._await_actors(max_memory)
        self._thread = threading.Thread(target=self._take_ended, name="reshard.ray", daemon=True)
        self._thread.start()

    def on_each_host(self, ask: Callable[[], T]) -> Mapping[str, T]:
        first = {actor.host.name: actor for actor in reversed(self._actors)}
        return self._asked([(one, one.handle.run.remote(ask)) for one in first.values()], "answer")

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override] # no keywords
        """Gives ``work(*arguments)`` to an actor as soon as one is free; all of it must be picklable."""
        future: Future[Any] = Future()
        with self._lock:
            if not self._actors:
                raise BrokenExecutor("no host of the Ray cluster takes tasks")
            self._waiting.append(_Job(work, arguments, future))
            self._hand_out()
        return future

    def close(self) -> None:
        with self._lock:
            actors, self._actors = self._actors, []
            self._waiting.clear()
        for actor in actors:
            with suppress(Exception):
                self._ray.kill(actor.handle)
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.put(None)
            thread.join()
        self._work = self._work_ref = None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  nothing is left to wait for
        """Ends the actors, and the connection if this made it."""
        self.close()
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False

    def _actor(self, host: RayHost, max_memory: int, threads: int) -> Any:
        made = self._ray.remote(
            num_cpus=threads,
            memory=max_memory,
            max_concurrency=threads + AHEAD,
            max_restarts=RETRIES,
            max_task_retries=RETRIES,
            scheduling_strategy=only_on(host),
            runtime_env={"env_vars": self._environment} if self._environment else None,
        )(BatchActor)
        return made.remote(max_memory, threads)

    def _await_actors(self, max_memory: int) -> None:
        ready = [(actor, actor.handle.ready.remote()) for actor in self._actors]
        try:
            self._asked(ready, f"give {format_bytes(max_memory)} and its processors to this run")
        except ReshardError:
            self.close()
            raise

    def _asked(self, asked: Sequence[tuple[_Actor, Any]], what: str) -> dict[str, Any]:
        """The answers of actors by the names of their hosts; a host that is lost meanwhile is left out of the run.

        Raises the first error, and ReshardError if a host does not answer in time, or none is left.
        """
        refs = [ref for _, ref in asked]
        _, late = self._ray.wait(refs, num_returns=len(refs), timeout=START_S)
        if late:
            hosts = sorted({actor.host.name for actor, ref in asked if ref in late})
            raise ReshardError(
                f"{', '.join(hosts)} of the Ray cluster did not {what} within {START_S:.0f} s; see `ray status` for what else runs "
                "there, allow less (max_memory, workers), or take the host out of the cluster"
            )
        found: dict[str, Any] = {}
        for actor, ref in asked:
            try:
                answer: Answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self._leave_out(actor, error)
                continue
            if answer.error is not None:
                raise answer.error
            found[actor.host.name] = answer.value
        return found

    def _leave_out(self, actor: _Actor, error: BaseException) -> None:
        """Leaves a lost host out; raises ReshardError if it is still there, or was the last one."""
        host, reason = actor.host, first_line(error)
        if any(node.node_id == host.node_id for node in nodes_of(self._ray)):
            raise ReshardError(
                f"host {host.name!r} of the Ray cluster: {reason}; install this version of reshard there, and run again"
            ) from error
        with self._lock:
            self._actors = [one for one in self._actors if one.host.node_id != host.node_id]
        if not self._actors:
            raise ReshardError(
                f"no host of the Ray cluster is left; the last one, {host.name!r}, is gone: {reason}"
            ) from error

    def _hand_out(self) -> None:
        """Gives waiting batches to the actors that have the fewest; the lock is held."""
        while self._waiting and self._actors:
            actor = min(self._actors, key=lambda one: len(one.running) - one.most)
            if len(actor.running) >= actor.most:
                return
            job = self._waiting.popleft()
            if job.tries or job.future.set_running_or_notify_cancel():
                self._start(actor, job)

    def _start(self, actor: _Actor, job: _Job) -> None:
        if job.work is not self._work:
            self._work, self._work_ref = job.work, self._ray.put(job.work)
        number = self._numbers = self._numbers + 1
        job.tries += 1
        actor.running[number] = job
        ref = actor.handle.run.remote(self._work_ref, *job.arguments)
        ref.future().add_done_callback(lambda done: self._ended.put((actor, number, done)))

    def _take_ended(self) -> None:
        """Sets the results of batches as they end; those of a lost actor begin again elsewhere."""
        while (found := self._ended.get()) is not None:
            actor, number, done = found
            job = actor.running.pop(number, None)
            if job is None:
                continue
            error = done.exception()
            if error is None:
                _set(job.future, done.result())
            elif isinstance(
                error, self._ray.exceptions.RayTaskError
            ):  # it was not even unpickled there
                what = f"host {actor.host.name!r} cannot carry a batch out: {first_line(error)}"
                job.future.set_exception(BrokenExecutor(what))
            else:
                self._lost(actor, job, error)
            with self._lock:
                self._hand_out()

    def _lost(self, actor: _Actor, job: _Job, error: BaseException) -> None:
        """Begins the batch of a lost actor again."""
        with self._lock:
            self._actors = [other for other in self._actors if other is not actor]
            if self._actors and job.tries <= RETRIES:
                self._waiting.appendleft(job)
                return
            waiting, self._waiting = list(self._waiting), deque()
        what = f"host {actor.host.name!r} is gone: {first_line(error)}"
        if not self._actors:
            what = f"no host of the Ray cluster is left; the last one, {what}"
        for each in (job, *waiting):
            with suppress(Exception):  # it was cancelled meanwhile
                each.future.set_exception(BrokenExecutor(what))


def _set(future: Future[Any], answer: Answer) -> None:
    if answer.error is None:
        future.set_result(answer.value)
    else:
        future.set_exception(answer.error)
