"""The files that are read as weights of Keras: the meaning of their names, and HDF5 files opened with h5py, from disks and buckets alike.

h5py reads through a Python file object, so that it opens no file by itself, neither the given one nor one that a link
names. It is imported when a file is opened. Its errors get one form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import SEEK_CUR, SEEK_END, RawIOBase
from typing import TYPE_CHECKING

from reshard.errors import CorruptError, FormatError, MissingPackageError, ReshardError
from reshard.formats.limits import MAX_HDF5_BYTES
from reshard.storage.base import FileStatus
from reshard.storage.calls import open_for_parts
from reshard.storage.location import Location
from reshard.version import how_to_install

if TYPE_CHECKING:
    import h5py


MAGIC = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""

_BLOCK_BYTES = 512 << 10
"""Bytes that one request asks a bucket for: h5py reads some hundred bytes at a time."""

_MOST_TEXT = 200
"""Characters of a message of HDF5 that are shown."""


def require_h5py() -> None:
    """Raises MissingPackageError where h5py cannot be imported."""
    try:
        import h5py  # noqa: F401  whether it is there
    except ImportError as error:
        raise MissingPackageError(
            f"Keras' .weights.h5 files need h5py, which cannot be imported ({error}); {how_to_install('keras')}"
        ) from error


@contextmanager
def opened_hdf5(place: Location) -> Iterator[h5py.File]:
    """The open HDF5 file; any error of h5py in the block becomes one error of this project.

    Raises MissingPackageError without h5py, StorageError where the file cannot be read, CorruptError where it is damaged.
    """
    require_h5py()
    import h5py

    found = place.status()
    if found is None or found.kind != "file":
        raise FormatError(f"{place} is no file; expected an HDF5 file, such as Keras' .weights.h5")
    failure: ReshardError | None = None
    with closing(_Content(place, found)) as content:
        try:
            with h5py.File(content, "r") as file:
                yield file
        except Exception as error:  # noqa: BLE001  h5py raises errors of any type for a damaged file
            failure = _own_error(place, error)
        failure = content.failure or failure
    if failure is not None:
        # Raised here, without the error of h5py: it holds objects of HDF5, which must not outlive the interpreter.
        raise failure


def _own_error(place: Location, error: Exception) -> ReshardError:
    if isinstance(error, ReshardError):
        return error.with_traceback(None)
    text = " ".join(str(error).split())[:_MOST_TEXT] or type(error).__name__
    return CorruptError(
        f"{place} is damaged, or no HDF5 file: h5py says {text!r}; restore the file from a copy"
    )


class _Content(RawIOBase):
    """The bytes of a file as a file object of Python, for h5py.

    Attributes:
        failure: the error of a read. It is not raised there: HDF5 goes on calling with an error that is set, and crashes. It reads zeros
            from then on.
    """

    def __init__(self, place: Location, found: FileStatus) -> None:
        self.failure: ReshardError | None = None
        self._place, self._found = place, found
        self._file = open_for_parts(place, found, _BLOCK_BYTES)
        self._at = self._read = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {SEEK_CUR: self._at, SEEK_END: self._found.nbytes}.get(whence, 0)
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # h5py gives a memoryview
        out = memoryview(buffer).cast("B")
        try:
            if self.failure is None:
                self._fill(out)
        except ReshardError as error:
            self.failure = error.with_traceback(None)  # which holds this object
        if self.failure is not None:
            out[:] = bytes(len(out))
        self._at += len(out)
        return len(out)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _fill(self, out: memoryview) -> None:
        self._read += len(out)
        if self._read > MAX_HDF5_BYTES:
            raise FormatError(
                f"{self._place} has more than {MAX_HDF5_BYTES:,} bytes of metadata, or repeats them; it is damaged, or no file of weights"
            )
        if self._at < 0 or self._at + len(out) > self._found.nbytes:
            raise CorruptError(
                f"{self._place} has {self._found.nbytes:,} bytes, but its metadata names bytes at {self._at:,}; it was cut short or is damaged: "
                "restore the file from a copy"
            )
        if self._file.fill(self._at, out) < len(out):
            raise CorruptError(f"{self._place} became shorter while it was read; try again")


ENDING = ".weights.h5"
"""Keras loads and saves weights by this ending alone."""

ARCHIVE = ".keras"
"""Of a whole model, a zip with weights in it."""

HDF5_ENDINGS = (".h5", ".hdf5")
"""Of other HDF5 files, which are looked for where no file is named."""

ONLY_FILE = f"model{ENDING}"
"""The file of a target while it is written; also the one in a ``.keras`` archive."""

_SHARD = re.compile(r"_[0-9]{5}\.weights\.h5\Z")


def is_keras(file: Location) -> bool:
    """True for an HDF5 file, and for a file with a name that Keras gives, so that a damaged one gets an error of its own."""
    return file.name.endswith(ENDING) or is_hdf5(file)


def is_hdf5(file: Location) -> bool:
    """True if a file begins as HDF5."""
    with closing(file.open()) as opened:
        return opened.read(0, len(MAGIC)) == MAGIC


def is_shard(name: str) -> bool:
    """True for the name of one of several files, which Keras writes beside a ``.weights.json``.

    >>> is_shard("model_00001.weights.h5"), is_shard("model.weights.h5")
    (True, False)
    """
    return _SHARD.search(name) is not None


def weights_text(folder: Location) -> str:
    """A hint for a folder that is not a checkpoint but holds an HDF5 file; "" for any other folder.

    Files that a ``.weights.json`` lists are parts of one.
    """
    names = [entry.name for entry in folder.entries() if not entry.is_folder]
    found = sorted(name for name in names if name.endswith(HDF5_ENDINGS))
    if not found or any(name.endswith(".weights.json") for name in names):
        return ""
    return f"it holds an HDF5 file, so name that: {folder / found[0]}"
