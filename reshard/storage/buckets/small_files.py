"""Small objects that are read one after another, such as the metadata file of each tensor, fetched many at once."""

from __future__ import annotations

import threading
from bisect import bisect_left
from concurrent.futures import Future
from itertools import islice

from reshard.storage.base import OpenFile
from reshard.storage.buckets.file import BucketFile
from reshard.storage.buckets.listing import Listing
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.threads import REQUESTS_AT_ONCE, request_threads

SMALL_BYTES = 64 << 10
MOST_BYTES = 4 << 20
"""Objects that are fetched and not read yet take at most so much."""


MOST_LOOKED_AT = 2000
"""So far behind an object the next ones are looked for."""


class SmallFiles:
    """Objects of one listing. With one of them, the next ones of the same name in other folders are fetched."""

    def __init__(self, store: BucketStore, folder: str, listing: Listing) -> None:
        self._store = store
        self._begin = f"{folder}/" if folder else ""
        self._listing = listing
        self._fetched: dict[int, Future[bytes]] = {}
        self._asked: set[int] = set()
        self._names: set[str] = set()
        self._nbytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SmallFiles], tuple[BucketStore, str, Listing]]:
        return SmallFiles, (self._store, self._begin.removesuffix("/"), self._listing)

    def open(self, below: str, what: str) -> OpenFile:
        """A small object as it was listed, by its path from the folder."""
        return _SmallFile(self, bisect_left(self._listing.paths, below), what)

    def read(self, place: int, what: str) -> bytes:
        """All of an object. It is fetched once for each time that it is read."""
        with self._lock:
            found = self._fetched.pop(place, None)
            if found is not None:
                self._nbytes -= self._listing.sizes[place]
            self._asked.add(place)
        self._fetch_next(place)
        return self._get(place, what) if found is None else found.result()

    def _fetch_next(self, place: int) -> None:
        """Begins to fetch objects that follow, as many as there are requests at once and memory for."""
        name = self._listing.paths[place].rpartition("/")[2]
        with self._lock:
            if name not in self._names or len(self._fetched) > REQUESTS_AT_ONCE // 2:
                self._names.add(name)  # with the second of this name, more are expected
                return
            end = min(len(self._listing.paths), place + MOST_LOOKED_AT)
            following = (
                other
                for other in range(place + 1, end)
                if other not in self._asked and self._is_small_and_named(other, name)
            )
            for other in islice(following, REQUESTS_AT_ONCE - len(self._fetched)):
                if self._nbytes + self._listing.sizes[other] > MOST_BYTES:
                    return
                self._nbytes += self._listing.sizes[other]
                self._asked.add(other)
                self._fetched[other] = request_threads().submit(self._get, other, "")

    def _is_small_and_named(self, place: int, name: str) -> bool:
        path = self._listing.paths[place]
        return path.endswith(f"/{name}") and self._listing.sizes[place] <= SMALL_BYTES

    def _get(self, place: int, what: str) -> bytes:
        path = self._begin + self._listing.paths[place]
        size, version = self._listing.sizes[place], self._listing.versions[place]
        client, url = self._store.client(path), self._store.text(path)
        return BucketFile(client, path, url, version, size, what).read(0, size)


class _SmallFile:
    """Implements ``base.OpenFile``."""

    def __init__(self, files: SmallFiles, place: int, what: str) -> None:
        self._files = files
        self._place = place
        self._what = what
        self._data: bytes | None = None

    def fill(self, offset: int, out: memoryview) -> int:
        data = self.read(offset, len(out))
        out[: len(data)] = data
        return len(data)

    def read(self, offset: int, nbytes: int) -> bytes:
        if self._data is None:
            self._data = self._files.read(self._place, self._what)
        return self._data[offset : offset + nbytes]

    def close(self) -> None:
        """There is nothing to close."""
