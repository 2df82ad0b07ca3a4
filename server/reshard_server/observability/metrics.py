"""Metrics for Prometheus, in a registry of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import get_args

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from reshard_server.auth.limits import Streams
from reshard_server.db.conversions.conversions import count_by_state
from reshard_server.db.conversions.rows import BUCKET_SECONDS, Total, totals
from reshard_server.db.conversions.workload import Workload, workload
from reshard_server.db.deliveries import count_deliveries
from reshard_server.schemas.delivery import DeliveryState

STATES = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled")
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

TEMPLATE_MODULE = b"reshard_server.worker.template"
"""In the command line of the process that forks the workers; distinguishes it from other child processes."""


class Metrics:
    """All metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "reshard_request_seconds",
            "Seconds to answer, by method, route and status.",
            ("method", "route", "status"),
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        sent = "Bytes of views that were sent."
        self.view_bytes = Counter("reshard_view_bytes", sent, registry=self.registry)
        self.views_open = Gauge("reshard_views_open", "Planned views.", registry=self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(_Children())

    def watch(self, database: sa.Engine, streams: Streams) -> None:
        """Adds metrics of the records and of open streams."""
        self.registry.register(_Records(database))
        gauge = Gauge("reshard_streams_open", "Open streams.", registry=self.registry)
        gauge.set_function(lambda: streams.open)


class _Records(Collector):
    """Metrics of the records. They are equal on all replicas: take the maximum, not the sum."""

    def __init__(self, database: sa.Engine) -> None:
        self.database = database

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("reshard_records_up", "Whether the database answers.")
        try:
            families = [
                *_states(self.database),
                *_workload(workload(self.database)),
                *_ended(totals(self.database)),
                _deliveries(self.database),
            ]
        except sa.exc.SQLAlchemyError:
            families = []
        up.add_metric([], float(bool(families)))
        yield from (up, *families)


def _states(database: sa.Engine) -> Iterator[Metric]:
    counts = count_by_state(database)
    states = GaugeMetricFamily(
        "reshard_conversions", "Conversions in the records, by state.", labels=["state"]
    )
    for state in STATES:
        states.add_metric([state], counts.get(state, 0))
    queued = counts.get("queued", 0)
    yield states
    yield GaugeMetricFamily("reshard_queue_depth", "Waiting conversions.", value=queued)


def _workload(now: Workload) -> Iterator[Metric]:
    for name, said, value in (
        ("moving_bytes", "Bytes moved so far by running conversions.", now.moved_bytes),
        ("waiting_slots", "Conversions, parts and commits that wait for a host.", now.waiting),
        ("left_bytes", "Bytes that running conversions have still to move.", now.left_bytes),
        ("bytes_per_second", "Bytes per second of all that runs.", now.bytes_per_second),
    ):
        yield GaugeMetricFamily(f"reshard_{name}", said, value=value)
    parts = "Parts of conversions that have not ended, by state."
    for name, said, label, found in (
        ("parts", parts, "state", {state: now.parts.get(state, 0) for state in STATES}),
        ("host_slots", "What a live host runs at once.", "host", now.slots),
        ("host_running", "What a live host runs now.", "host", now.running),
    ):
        family = GaugeMetricFamily(f"reshard_{name}", said, labels=[label])
        for each, value in sorted(found.items()):
            family.add_metric([each], value)
        yield family


def _deliveries(database: sa.Engine) -> Metric:
    counts = count_deliveries(database)
    states = GaugeMetricFamily(
        "reshard_deliveries",
        "Deliveries of notifications in the records, by state.",
        labels=["state"],
    )
    for state in get_args(DeliveryState):
        states.add_metric([state], counts.get(state, 0))
    return states


def _ended(found: list[Total]) -> Iterator[Metric]:
    moved = sum(t.moved_bytes for t in found)
    yield CounterMetricFamily("reshard_moved_bytes", "Bytes moved by ended conversions.", moved)
    seconds = HistogramMetricFamily(
        "reshard_conversion_seconds",
        "Seconds from start to end of a conversion, by final state.",
        labels=["state"],
    )
    for state in sorted({t.state for t in found}):
        of_state = {t.within_seconds: t for t in found if t.state == state}
        seconds.add_metric([state], _buckets(of_state), sum(t.seconds for t in of_state.values()))
    yield seconds


def _buckets(of_state: dict[int, Total]) -> list[tuple[str, float]]:
    count, buckets = 0, []
    for bound in BUCKET_SECONDS:
        count += of_state[bound].conversions if bound in of_state else 0
        buckets.append((str(float(bound)), float(count)))
    return [*buckets, ("+Inf", float(sum(t.conversions for t in of_state.values())))]


class _Children(Collector):
    """Memory of the processes that convert and answer questions."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        templates = list(filter(_is_template, _children("self")))
        pids = [pid for template in templates for pid in _children(template)]
        yield GaugeMetricFamily(
            "reshard_workers", "Child processes that convert or answer questions.", value=len(pids)
        )
        yield GaugeMetricFamily(
            "reshard_workers_resident_bytes",
            "Resident memory of all child processes, of the one that forks them, and of those that a large conversion starts.",
            value=sum(map(_resident_bytes, (*templates, *pids, *chain(*map(_children, pids))))),
        )


def _children(of: str) -> Iterator[str]:
    for task in Path(f"/proc/{of}/task").glob("*/children"):
        with suppress(OSError):  # the thread ended meanwhile
            yield from task.read_text().split()


def _is_template(pid: str) -> bool:
    try:
        return TEMPLATE_MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _resident_bytes(pid: str) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
