"""A Ray cluster: the connection to it, its nodes, and the actor that carries out batches on each.

An actor runs batches in threads that share a pool of buffers; errors travel as values.
"""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from reshard.engine.buffers import ArenaPool
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
