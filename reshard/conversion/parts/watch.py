"""PartsWatch: the progress of all parts of a conversion, from their journals."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing, suppress

from msgspec import Struct

from reshard.engine.journal import moved_by
from reshard.engine.progress import Progress, Tell
from reshard.errors import StorageError
from reshard.storage.checked_lines import valid_lines
from reshard.storage.location import Location, locate
from reshard.storage.parts import PartJournal, journals_of

LOOK_S = 0.5
LOOK_IN_BUCKET_S = 5.0
"""Seconds between two looks; a look at a bucket lists the records of all parts, which are put every few seconds."""

READ_BYTES = 4 << 20


class _Seen(Struct):
    """A journal as far as it was read."""

    end: int = 0
    moved_bytes: int = 0
    units: int = 0
    host: str = ""


class PartsWatch:
    """Adds up the journals of all parts; each look reads what was added since the last one.

    Attributes:
        resumed: the bytes that earlier runs have recorded for each place.
    """

    def __init__(
        self,
        places: Sequence[tuple[Location, str | None]],
        total_bytes: int,
        units: int,
        tell: Tell | None,
    ) -> None:
        self._places = places
        self._total_bytes, self._units = total_bytes, units
        self._tell = tell
        self._seen: list[dict[PartJournal, _Seen]] = [{} for _ in places]
        self._pause = max(LOOK_IN_BUCKET_S if p.traits.by_requests else LOOK_S for p, _ in places)
        self._next = time.monotonic()
        self._read()
        self.resumed = [sum(seen.moved_bytes for seen in of.values()) for of in self._seen]

    def look(self) -> None:
        """Tells the progress, if the time for a look has come."""
        if self._tell is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._pause
        self._read()
        found = [seen for of in self._seen for seen in of.values()]
        hosts: dict[str, int] = {}
        for seen in found:
            hosts[seen.host] = hosts.get(seen.host, 0) + seen.moved_bytes
        self._tell(
            Progress(
                min(sum(hosts.values()), self._total_bytes),
                self._total_bytes,
                min(sum(seen.units for seen in found), self._units),
                self._units,
                "",
                resumed_bytes=sum(self.resumed),
                hosts={host: nbytes for host, nbytes in hosts.items() if host},
            )
        )

    def _read(self) -> None:
        for number, (place, state) in enumerate(self._places):
            # A part may be removing its journal, and the run does not depend on it.
            with suppress(StorageError):
                known = self._seen[number]
                self._seen[number] = {j: known.get(j, _Seen()) for j in journals_of(place, state)}
                for journal, seen in self._seen[number].items():
                    _read_on(journal, seen)


def _read_on(journal: PartJournal, seen: _Seen) -> None:
    data = _content(journal.path, seen.end)
    lines = list(valid_lines(data))
    if data and not lines and seen.end:
        # The part was resumed by another run, which has written its journal anew.
        seen.end = seen.moved_bytes = seen.units = 0
        lines = list(valid_lines(_content(journal.path, 0)))
    for line in lines:
        _add(seen, line)


def _add(seen: _Seen, line: bytes) -> None:
    """Counts a record; the first one of a journal on a disk names the host."""
    if line.startswith(b"{"):
        with suppress(ValueError):
            seen.host = str(json.loads(line).get("host", seen.host))
    moved, units = moved_by(line)
    seen.moved_bytes += moved
    seen.units += units
    seen.end += len(line) + LINE_BYTES


LINE_BYTES = 10
"""Bytes of a line beside its record: a checksum, a space and the end of the line."""


def _content(path: str, start: int) -> bytes:
    with closing(locate(path).open()) as file:
        return file.read(start, READ_BYTES)
