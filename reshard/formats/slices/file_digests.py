"""Digests of whole files, and a list of the files in a folder whose digests are recorded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reshard.errors import CorruptError, FormatError
from reshard.formats.slices.slice_file import digest_of
from reshard.storage.local import size_if_there, storage_error, storage_errors

PIECE_BYTES = 1 << 20

THREADS = 4
"""Files read at once; each takes the memory of one piece."""


def digest_of_file(path: str | Path) -> str:
    """CRC-64/NVME of a file's bytes, 16 hex digits, read in pieces.

    Raises StorageError if it cannot be read, FormatError if it is not a plain file.
    """
    from awscrt.checksums import crc64nvme

    with storage_errors("read", path):
        # Without O_NONBLOCK a named pipe in place of a file would block the reader.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FormatError(f"{path} should be a plain file, but is not")
            crc = 0
            while data := os.read(fd, PIECE_BYTES):
                crc = crc64nvme(data, crc)
        finally:
            os.close(fd)
    return f"{crc:016x}"


def size_of(path: Path) -> int:
    """The file's size in bytes; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def digests_of_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The digest of each of these files below the folder, by name; raises as ``digest_of_file``."""
    names = list(names)
    with ThreadPoolExecutor(THREADS, "reshard.files") as threads:
        return dict(
            zip(names, threads.map(digest_of_file, (folder / n for n in names)), strict=True)
        )


def files_below(folder: Path, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """The path of every file below the folder, relative to it; the folders ``but`` directly in it are left out.

    A link to a folder counts as a file, since nothing follows it. Raises StorageError if a folder cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise storage_error("list", error.filename or folder, error) from error

    top = str(folder)
    for path, folders, names in os.walk(top, onerror=refuse):
        below = os.path.relpath(path, top) if path != top else ""
        folders[:] = sorted(n for n in folders if below or n not in but)
        with storage_errors("look at", path):
            links = [n for n in folders if Path(path, n).is_symlink()]
        yield from (f"{below}/{name}" if below else name for name in sorted([*names, *links]))


def check_file(path: Path, recorded: str, what: str) -> None:
    """Raises CorruptError if a file is missing or its digest is not the recorded one."""
    if size_if_there(path) is None:
        raise CorruptError(f"{what} {path} is missing, but is recorded in slices.json; {REMEDY}")
    check_digest(digest_of_file(path), recorded, f"{what} {path}")


def check_bytes(data: bytes, recorded: Mapping[str, str], name: str, what: str) -> None:
    """Raises CorruptError if a digest is recorded under the name and the bytes have another."""
    if name in recorded:
        check_digest(digest_of(data), recorded[name], what)


def check_digest(found: str, recorded: str, what: str) -> None:
    """Raises CorruptError, beginning with ``what``, if the two differ."""
    if found != recorded:
        raise CorruptError(
            f"{what} has digest {found}, but {recorded} is recorded in slices.json: its bytes changed "
            f"since; {REMEDY}"
        )


REMEDY = (
    "restore it from another copy; if it was changed on purpose, record the checkpoint anew (reshard "
    "fingerprint --overwrite)"
)
