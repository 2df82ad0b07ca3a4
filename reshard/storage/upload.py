"""A file that a thread of its own writes in order while its bytes are made."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from reshard.errors import StorageError
from reshard.storage.location import Location

PIECE_BYTES = 8 << 20
_LOOK_S = 1.0
"""Seconds between checks that the thread still lives."""


class _AbortedError(Exception):
    """Ends an upload."""


class Upload:
    """One file in the making; used by one thread at a time. It appears when ``finish`` returns, or not at all.

    Args:
        check: called after the last byte and before the file appears; an error that it raises ends the upload.

    Attributes:
        done_bytes: number of bytes that were added.
    """

    def __init__(
        self, place: Location, nbytes: int, check: Callable[[], None] | None = None
    ) -> None:
        self.done_bytes = 0
        self._place = place
        self._nbytes = nbytes
        self._check = check
        self._piece = bytearray()
        self._pieces: queue.Queue[bytes | bytearray | None] = queue.Queue(maxsize=1)
        self._is_aborted = False
        self._version = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reshard.upload", daemon=True)
        self._thread.start()

    @property
    def is_whole(self) -> bool:
        """True if every byte was added."""
        return self.done_bytes == self._nbytes

    def write(self, data: bytes | memoryview) -> None:
        """Adds bytes, which may change afterwards; waits for a slower store. Raises the store's errors."""
        rest = memoryview(data).cast("B")
        self.done_bytes += len(rest)
        while len(rest):
            taken = rest[: PIECE_BYTES - len(self._piece)]
            self._piece += taken
            rest = rest[len(taken) :]
            if len(self._piece) == PIECE_BYTES:
                self._hand_over()

    def finish(self) -> str:
        """Ends the file after its last byte; returns its version."""
        if self._piece:
            self._hand_over()
        self._put(None)
        self._thread.join()
        self._raise()
        return self._version

    def abort(self) -> None:
        """Ends the upload early; nothing of the file is stored."""
        self._is_aborted = True
        with self._pieces.mutex:
            self._pieces.queue.clear()
            self._pieces.not_full.notify_all()
        self._put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        piece, self._piece = self._piece, bytearray()
        self._put(piece)

    def _put(self, piece: bytearray | None) -> None:
        while self._thread.is_alive():
            try:
                self._pieces.put(piece, timeout=_LOOK_S)
                return
            except queue.Full:
                continue
        if piece is not None:
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._version = self._place.write_pieces(self._given(), self._nbytes)
        except _AbortedError:
            return
        except StorageError as error:
            self._error = self._error or error
        except BaseException as error:  # noqa: BLE001  raised by whoever writes
            if not self._is_aborted:
                self._error = self._error or error

    def _given(self) -> Iterator[memoryview]:
        while (piece := self._pieces.get()) is not None:
            yield memoryview(piece)
        if self._is_aborted:
            raise _AbortedError
        if self._check is not None:
            self._error = _raised_by(self._check)
            if self._error is not None:
                raise _AbortedError


def _raised_by(check: Callable[[], None]) -> BaseException | None:
    """The error of a call in a thread of its own: no other request is possible within the client of a bucket."""
    with ThreadPoolExecutor(1, "reshard.check") as threads:
        return threads.submit(check).exception()
