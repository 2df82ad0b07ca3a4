"""RayExecutor: an executor of ``concurrent.futures`` whose calls are tasks of a Ray cluster.

Ray places each task on a host with free processors and memory, and repeats it elsewhere if its worker or its host dies. Only the name of a
part and its report pass through Ray; parts read and write files and objects themselves.
"""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from typing import Any

from msgspec import Struct

from reshard.errors import MissingPackageError, PlanError, ReshardError
from reshard.geometry.sizes import format_bytes
from reshard.version import how_to_install

CONNECT_S = 10.0
"""Seconds that the address of a cluster may take to answer at all."""

RETRIES = 3
"""Most times that Ray repeats a task whose worker or host died."""

PROCESS_BYTES = 128 << 20
"""Memory of a process beside the budget of its conversion (see docs/explanation/reliability.md)."""


class RayExecutor(Executor):
    """Tasks on all nodes of a Ray cluster; ``max_memory`` and ``workers`` of a conversion are those of each part.

    Ray is asked for them, so that as many parts run on a host as it has room for. It uses the connection that ``ray.init`` made, or makes one,
    which ``shutdown`` ends.

    Args:
        address: of the cluster, such as ``"10.0.0.1:6379"``; ``"auto"`` is the one that runs on this host, or that
            the variable RAY_ADDRESS names.
        environment: variables of the processes that do the work, such as the endpoint of a store. Ray shows them to every user
            of the cluster: give secrets to the hosts another way.

    Raises MissingPackageError without Ray, ReshardError if no cluster answers.

    >>> with RayExecutor() as executor:  # doctest: +SKIP
    ...     reshard.convert("ckpt/100", "served", layout="serving.yaml", executor=executor, parts=32)
    """

    def __init__(
        self, address: str = "auto", *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._ray = imported_ray()
        self._environment = dict(environment or {})
        self._address = address
        self._is_ours = connect(self._ray, address)
        self._running: dict[Future[Any], Any] = {}

    @property
    def hosts(self) -> int:
        """The number of nodes that are alive and have processors."""
        return len(self._nodes())

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override] # no keywords
        """Gives ``work(*arguments)`` to Ray; all of it must be picklable. ``work`` may say its ``max_memory`` and ``workers``.

        Raises PlanError if no node has so much.
        """
        cpus, memory = getattr(work, "workers", 1), getattr(work, "max_memory", 0) + PROCESS_BYTES
        task = self._ray.remote(
            num_cpus=self._granted(cpus, memory),
            memory=memory,
            max_retries=RETRIES,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": self._environment} if self._environment else None,
        )(answered)
        reference = task.remote(work, *arguments)
        future = _TaskFuture(lambda: self._ray.cancel(reference))
        future.set_running_or_notify_cancel()
        self._running[future] = reference
        reference.future().add_done_callback(lambda done: self._end(future, done))
        return future

    def _end(self, future: Future[Any], done: Future[Any]) -> None:
        self._running.pop(future, None)
        error = done.exception()
        if error is not None:
            # Ray's own error: an error of the work comes as an answer.
            future.set_exception(BrokenExecutor(f"Ray gave it up: {first_line(error)}"))
        elif (answer := done.result()).error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.value)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the connection if this made it. Tasks that are not done are given up."""
        del cancel_futures  # of the interface: none is left for a later call
        for reference in list(self._running.values()):
            with suppress(Exception):  # it may have ended meanwhile
                self._ray.cancel(reference, force=True)
        if wait and self._running:
            self._ray.wait(
                list(self._running.values()), num_returns=len(self._running), timeout=CONNECT_S
            )
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False

    def _nodes(self) -> list[tuple[int, int]]:
        """The processors and the memory of each node that can take work."""
        nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return [(int(n["CPU"]), int(n.get("memory", 0))) for n in nodes if n.get("CPU", 0) >= 1]

    def _granted(self, cpus: int, memory: int) -> int:
        """The processors to ask for: no more than a node with the memory has."""
        nodes = self._nodes()
        if not nodes:
            raise ReshardError(
                f"the Ray cluster at {self._address!r} has no host with processors; add one with `ray start --address=…`, and run again"
            )
        most = max(n for _, n in nodes)
        if most < memory:
            raise PlanError(
                f"a part needs {format_bytes(memory)} of memory, but no host lends more than {format_bytes(most)} to Ray; allow less "
                "(max_memory), or begin Ray there with more (--memory)"
            )
        return min(cpus, max(c for c, n in nodes if n >= memory))


class _TaskFuture(Future[Any]):
    """The future of a task of Ray. Only Ray knows whether the task has begun, so that it ends when Ray says so."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__()
        self._cancel_task = cancel

    def cancel(self) -> bool:
        """Withdraws a task that waits for a host, and interrupts one that is at work."""
        with suppress(Exception):  # it may have ended meanwhile
            self._cancel_task()
        return False


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


def first_line(error: BaseException) -> str:
    """The first line of an error of Ray; its messages have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


class Answer(Struct, frozen=True):
    """The value of a call on another host, or its error."""

    value: Any = None
    error: BaseException | None = None


def answered(work: Callable[..., Any], *arguments: Any) -> Answer:
    """The result or the error of ``work(*arguments)``; Ray would change the class of an error that is raised."""
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
