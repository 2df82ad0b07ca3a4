"""Standard output and error: closed at the start, closed by a reader, or on a full disk.

A reader that has seen enough (``reshard inspect ckpt | head -1``) closes the pipe. The work continues and ends with its
own exit code: output without a reader is not a failure.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

from reshard.errors import StorageError
from reshard.storage.local.files import storage_error

if TYPE_CHECKING:
    from typing import TextIO

    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2


class Descriptor(io.RawIOBase):
    """A descriptor for output, which drops everything after a failed write.

    Attributes:
        failure: the error of the failed write; None also if the reader closed the pipe.
    """

    failure: StorageError | None = None

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: ReadableBuffer, /) -> int | None:
        try:
            return os.write(self._number, data)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno != errno.EPIPE:
                self.failure = storage_error("write to", self._name, error)
            self._lead_nowhere()
            return memoryview(data).nbytes

    def _lead_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._number)
        os.close(nowhere)


def open_streams() -> Descriptor:
    """Puts text streams over such descriptors into ``sys``; returns the descriptor of stdout.

    A character that a stream cannot encode is written as its escape.
    """
    _open_closed()
    out = Descriptor(_STDOUT, "stdout")
    sys.stdout = _text(out, sys.stdout, is_line_buffered=out.isatty())
    sys.stderr = _text(Descriptor(_STDERR, "stderr"), sys.stderr, is_line_buffered=True)
    return out


def _text(raw: Descriptor, before: TextIO, *, is_line_buffered: bool) -> TextIO:
    before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors="backslashreplace",
        line_buffering=is_line_buffered,
    )


def _open_closed() -> None:
    """Opens /dev/null for streams that were closed at the start, so that no file of a run gets their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)
