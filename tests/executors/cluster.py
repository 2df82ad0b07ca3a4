"""Ray clusters of local nodes, whose processes tests can find, kill and freeze."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

MIB = 1 << 20
NODE = {"num_cpus": 2, "memory": 2048 * MIB, "object_store_memory": 80 * MIB}

QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}
"""A node that does not answer for about a quarter of a minute is dead; one on a busy machine answers sooner."""


@contextmanager
def ray_cluster(nodes: int = 3, **head: Any) -> Iterator[Any]:
    """A cluster of so many nodes, the head among them."""
    records = logging.getLogRecordFactory()  # Ray puts one of its own in its place
    import ray
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**NODE, "_system_config": QUICK, "include_dashboard": False, **head},
    )
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**NODE)
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()
        logging.setLogRecordFactory(records)


def workers(cluster: Any) -> list[psutil.Process]:
    """The processes that do parts on a cluster now; others on this machine are of no concern."""
    among = [process for node in cluster.list_all_nodes() for process in processes_of(node)]
    return [process for process in among if "ray::answered" in _title(process)]


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def processes_of(node: Any) -> list[psutil.Process]:
    """Every process of a node."""
    found: dict[int, psutil.Process] = {}
    for infos in node.all_processes.values():
        for info in infos:
            with suppress(psutil.Error):
                one = psutil.Process(info.process.pid)
                found[one.pid] = one
                found |= {child.pid: child for child in one.children(recursive=True)}
    return list(found.values())


def send(processes: list[psutil.Process], what: signal.Signals) -> None:
    """Sends a signal to processes that are still there."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(what)


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
