"""A handle of a conversion on a server: wait for it, cancel it, read its state."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from reshard import ConversionReport, DeltaReport, Progress, Stage, progress_bar
from reshard.answers.record import record_from
from reshard.errors import ReshardError
from reshard_server.client.transport import ServiceError, Transport, UnreachableError, error_of
from reshard_server.schemas.base import Problem
from reshard_server.schemas.conversion import (
    Conversion,
    ProgressState,
)
from reshard_server.schemas.delivery import Delivery, DeliveryList

URL = "/v1/conversions"
POLL_SECONDS = 1.0
SILENT_SECONDS = 40.0
"""The server sends a comment every 15 seconds; a stream that is silent for longer is dead."""

GONE_SECONDS = 300.0
"""Waiting gives up a server that does not answer for this long; until then it may restart."""

_PASSING = (429, 502, 503, 504)
"""Statuses of errors that waiting cures."""

Watcher = Callable[[Progress], None]


def path_of(conversion: str) -> str:
    """The path of a conversion; its id may have any characters."""
    return f"{URL}/{quote(conversion, safe='')}"


Report = TypeVar("Report")


class JobHandle(ABC, Generic[Report]):
    """A conversion or a delta on a server.

    Attributes:
        conversion: its last known state.
    """

    def __init__(self, transport: Transport, conversion: Conversion) -> None:
        self._transport = transport
        self.conversion = conversion
        self._seen: int | None = None
        self._answered = time.monotonic()

    @property
    def id(self) -> str:
        """The conversion's id."""
        return self.conversion.id

    @property
    def url(self) -> str:
        """The URL of the conversion."""
        return str(self._transport.http.base_url).rstrip("/") + self._path

    @property
    def result(self) -> list[Report]:
        """The report of each target, as the library's function returns it.

        Raises the error that it ended with, and ServiceError if it has not ended or was cancelled.
        """
        now = self.conversion
        if now.result_url is not None:  # events contain only a summary
            now = self.refresh()
        if now.state == "succeeded":
            return list(map(self._report, now.result or ()))
        if now.error is not None:
            raise error_of(Problem.model_validate(now.error))
        raise ServiceError(f"conversion {now.id} is {now.state}, and has no result; see {self.url}")

    @abstractmethod
    def _report(self, document: Mapping[str, Any]) -> Report:
        """The record of a report."""

    def refresh(self) -> Conversion:
        """Reads the current state."""
        return self._now(self._transport.model(Conversion, "GET", self._path))

    def cancel(self) -> Conversion:
        """Cancels the conversion; the target does not change."""
        return self._now(self._transport.model(Conversion, "POST", f"{self._path}:cancel"))

    def retry(self) -> Conversion:
        """Queues a failed or cancelled conversion again; it resumes where it stopped."""
        return self._now(self._transport.model(Conversion, "POST", f"{self._path}:retry"))

    def deliveries(self) -> list[Delivery]:
        """The deliveries to the URLs of ``notify``, newest first."""
        path = f"{self._path}/deliveries"
        return self._transport.model(DeliveryList, "GET", path).deliveries

    def resend(self, delivery: str) -> Delivery:
        """Sends a delivery again: the same event, with the same id."""
        path = f"{self._path}/deliveries/{quote(delivery, safe='')}:resend"
        return self._transport.model(Delivery, "POST", path)

    def wait(self, progress: bool | Watcher = False, timeout: float | None = None) -> list[Report]:
        """Waits for the end, and returns the ``result``, or raises its error.

        Args:
            progress: True for a bar on stderr, or a function that is called with each ``Progress``.
            timeout: seconds after which TimeoutError is raised; the conversion continues.

        A lost connection is made again, and missed changes are reported. Without events the server is polled every
        second.
        """
        until = None if timeout is None else time.monotonic() + timeout
        watch = progress if callable(progress) else progress_bar() if progress else None
        for now in self._changes(until):
            if watch is not None and now.progress is not None:
                watch(_as_progress(now.progress))
        return self.result

    @property
    def _path(self) -> str:
        return path_of(self.conversion.id)

    def _now(self, conversion: Conversion) -> Conversion:
        self.conversion = conversion
        self._answered = time.monotonic()
        return conversion

    def _changes(self, until: float | None) -> Iterator[Conversion]:
        """The states of the conversion until it has ended."""
        yield self.conversion
        while not self.conversion.done:
            for look in (self._events, self._polled):
                try:
                    yield from look(until)
                except ServiceError as error:
                    away = time.monotonic() - self._answered
                    passes = isinstance(error, UnreachableError) or error.status in _PASSING
                    if not passes or away > GONE_SECONDS:
                        raise
                if self.conversion.done:
                    return
                _check_time(until, self)
            time.sleep(POLL_SECONDS)

    def _polled(self, until: float | None) -> Iterator[Conversion]:  # noqa: ARG002  (as _events)
        yield self.refresh()

    def _events(self, until: float | None) -> Iterator[Conversion]:
        headers = {"Accept": "text/event-stream"}
        if self._seen is not None:
            headers["Last-Event-ID"] = str(self._seen)
        left = SILENT_SECONDS if until is None else max(0.01, until - time.monotonic())
        silence = httpx.Timeout(min(SILENT_SECONDS, left))
        with self._transport.stream(
            f"{self._path}/events", headers=headers, timeout=silence
        ) as answer:
            for kind, data in _parsed(answer.iter_lines()):
                if kind in ("conversion", "end"):
                    now = self._now(Conversion.model_validate_json(data))
                    self._seen = now.revision
                    yield now
                _check_time(until, self)


class ConversionHandle(JobHandle[ConversionReport]):
    """A conversion on a server; its ``result`` has the reports that ``reshard.convert`` returns."""

    def _report(self, document: Mapping[str, Any]) -> ConversionReport:
        if "old" in document:
            raise ReshardError(
                f"{self.id} is a delta, which has another report; get it as a delta (client.deltas.get)"
            )
        return report_of(document)


class DeltaHandle(JobHandle[DeltaReport | ConversionReport]):
    """A delta on a server; its ``result`` has the report that ``reshard.delta`` returns, or that of the full version in its place."""

    def _report(self, document: Mapping[str, Any]) -> DeltaReport | ConversionReport:
        if "old" not in document:
            return report_of(document)
        tensors = {one["name"]: one for one in document["tensors"]}  # a list, as all reports here
        return record_from(DeltaReport, {**document, "tensors": tensors})


def _parsed(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The events of a stream as kind and data; both are empty for a comment."""
    kind, data = "message", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line.startswith(":"):
            yield "", ""
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []


def _check_time(until: float | None, handle: JobHandle[Any]) -> None:
    if until is not None and time.monotonic() > until and not handle.conversion.done:
        raise TimeoutError(
            f"conversion {handle.id} is still {handle.conversion.state}; it continues, see {handle.url}"
        )


def _as_progress(state: ProgressState) -> Progress:
    return Progress(
        state.moved_bytes,
        state.total_bytes,
        state.tasks_done,
        state.tasks,
        state.tensor,
        cast("Stage", state.stage),
        state.resumed_bytes,
    )


def report_of(document: Mapping[str, Any]) -> ConversionReport:
    """The record of a target's report (docs/reference/json-output.md, convert)."""
    return record_from(ConversionReport, document)
