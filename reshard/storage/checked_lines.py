"""Checked lines: an append-only text file that is read up to the first damaged line.

Every line begins with the CRC-32 of the rest, eight hex digits and a space. Reading stops at a line that a killed
writer left incomplete or that was damaged later.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from reshard.storage.local.files import storage_errors, write_all

JOURNAL, JOURNAL_VERSION = "reshard.journal", 3
"""The format of journals on disks and in buckets. A change to what a result records is a new version, which does not resume older runs."""

MAX_LINE_BYTES = 64 << 20
"""A longer line is damage: the line of a task that fills a million chunks is shorter."""

_CRC_BYTES = 9

_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""With O_NONBLOCK, opening a pipe does not wait for its writer."""


def checked_line(text: str) -> bytes:
    """One line of the file; ``text`` has no line break."""
    data = text.encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def read_lines(path: Path) -> Iterator[bytes]:
    """Every line before the first damaged one; none if there is no file.

    Raises StorageError if the file cannot be read.
    """
    with storage_errors("read", path):
        try:
            fd = os.open(path, _READING)
        except FileNotFoundError:
            return
        with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
            while (line := _valid(file.readline(MAX_LINE_BYTES))) is not None:
                yield line


def valid_lines(content: bytes) -> Iterator[bytes]:
    """Every line of a file's content before the first damaged one."""
    for line in content.splitlines(keepends=True):
        found = _valid(line)
        if found is None:
            return
        yield found


def _valid(line: bytes) -> bytes | None:
    data = line[_CRC_BYTES:-1]
    # Against a line that a killed writer left in part, and one that was damaged later.
    whole = line.endswith(b"\n") and line[:_CRC_BYTES] == b"%08x " % zlib.crc32(data)
    return data if whole else None


class LineFile:
    """A new file of checked lines, open for appending; each call is one write, without a sync."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        # O_NOFOLLOW: against a link to another file, which would be emptied.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with storage_errors("create", path):
            self._fd = os.open(path, flags, 0o666)
        self._end = 0

    def append(self, text: str) -> None:
        """Adds a line; StorageError if the file system refuses."""
        data = checked_line(text)
        write_all(self._fd, memoryview(data), self._end, self._path)
        self._end += len(data)

    def close(self) -> None:
        with storage_errors("close", self._path):
            os.close(self._fd)
