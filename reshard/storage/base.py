"""The protocol of a store, a place with files, and the records that it exchanges.

A store is the local file system or a bucket. Checkpoints are read and written through ``Location``, a path in a store, so that no
format knows where its files are. Paths are texts with slashes; every failure is a StorageError that names the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from reshard.storage.requests import RequestTraits

FileKind = Literal["file", "folder", "other"]
"""``other`` is what has no bytes to read, such as a named pipe."""


class FileStatus(Struct, frozen=True):
    """What is at a path.

    Attributes:
        nbytes: of a file.
        version: which content the file has, by the store's own name for it (ETag, generation), so that a later read
            can ask for that very content; "" where the store has no such names.
    """

    kind: FileKind
    nbytes: int = 0
    version: str = ""


class Traits(Struct, frozen=True):
    """What is known of a place with files without asking it; the defaults are those of a local disk.

    Attributes:
        prefix: what precedes a slash and a path in its text, such as ``s3://bucket``; "" where the path is the text.
        range_bytes: how many bytes one request should ask for, since each takes long to begin; 0 where short reads are cheap.
        memory_bytes: what the store keeps in memory of its files: the listing of a view of a bucket.
        renames: whether a folder gets its name at once, when it is complete; else a file in it says that it is.
        in_place: whether a part of a file can be written, and written again; else a file is written whole, once, and in order.
        has_folders: whether folders are made before files are written in them.
        has_versions: whether each file has a version, which tells its content from any other.
        has_free_bytes: whether room is limited, and the store tells how much is left.
        by_hosts: whether processes on other hosts may write there too.
        requests: what its requests do, and how many it answers.
    """

    prefix: str = ""
    range_bytes: int = 0
    memory_bytes: int = 0
    renames: bool = True
    in_place: bool = True
    has_folders: bool = True
    has_versions: bool = False
    has_free_bytes: bool = True
    by_hosts: bool = False
    requests: RequestTraits = RequestTraits()

    def text(self, path: str) -> str:
        """A path as users name it; ``locate`` gives the same location for it in any process."""
        return f"{self.prefix}/{path}" if self.prefix and path else self.prefix or path

    @property
    def by_requests(self) -> bool:
        """Whether each call is a request to a service, which takes long and is counted."""
        return self.range_bytes > 0

    @property
    def by_one_task(self) -> bool:
        """Whether each file must be written by one task, or by the tasks of one batch in order."""
        return self.by_hosts or not self.in_place


ON_DISK = Traits()


class Entry(Struct, frozen=True):
    """A name in a folder.

    Attributes:
        is_folder: whether it is a folder or a link to one.
        is_link: whether it is a symbolic link, which only local folders have.
    """

    name: str
    is_folder: bool
    is_link: bool = False


class OpenFile(Protocol):
    """A file that is open for reading. It is used by one thread at a time."""

    def fill(self, offset: int, out: memoryview) -> int:
        """Fills ``out`` with the bytes from ``offset``; how many there were, fewer only at the file's end."""
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from ``offset``, fewer only at the file's end."""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...


class Pieces(Struct, frozen=True):
    """The content of a file, in order, and its size."""

    pieces: Iterable[bytes | memoryview]
    nbytes: int


WriteMode = Literal["whole", "new", "replace"]
"""How a file is written.

- ``whole``: nothing is synced. Where files can be written in place, one that is there is replaced; else TargetExistsError is
  raised for it, unless it has the same bytes.
- ``new``: durably, in one step, and only where nothing is, else TargetExistsError. Missing folders are made.
- ``replace``: durably, in one step, in place of what is there.
"""


class Store(Protocol):
    """Where files are. Safe from any thread, and in another process after pickling.

    ``what`` names what a file is for, and begins the message of an error.
    """

    @property
    def traits(self) -> Traits:
        """What it can do."""
        ...

    def status(self, path: str, what: str = "") -> FileStatus | None:
        """What is at the path, links followed; None for nothing.

        Raises StorageError where the store refuses to tell, which does not prove that nothing is there.
        """
        ...

    def entries(self, folder: str) -> Sequence[Entry]:
        """Every name in a folder, sorted. Raises StorageError where it cannot be listed."""
        ...

    def files(self, folder: str) -> Iterator[str]:
        """The path from the folder of every file below it, in no certain order; links to folders count as files."""
        ...

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        """Opens a plain file for reading, in that version if one is given.

        Raises StorageError where it cannot be opened, FormatError where it is not a plain file.
        """
        ...

    def view(self, folder: str) -> Store:
        """This store as a checkpoint in ``folder`` is read: it must not lead elsewhere, nor change meanwhile.

        Locally, symbolic links that lead out of the folder are refused, but for those of a snapshot in the cache of
        huggingface_hub to its blobs. A bucket is listed once: later lookups are answered from the listing, and reads
        ask for the versions that it named. ``folder`` may also be a single file.
        """
        ...

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        """Writes a whole file; its version, "" where files have none.

        A store that does not write in place keeps some of the pieces in memory (``target.memory_of_put``).
        """
        ...

    def remove(self, path: str) -> None:
        """Removes a file, if it is there."""
        ...


class StoreWrapper(Struct, frozen=True):
    """Passes every call on to ``store``; implements ``base.Store``."""

    store: Store

    @property
    def traits(self) -> Traits:
        return self.store.traits

    def status(self, path: str, what: str = "") -> FileStatus | None:
        return self.store.status(path, what)

    def entries(self, folder: str) -> Sequence[Entry]:
        return self.store.entries(folder)

    def files(self, folder: str) -> Iterator[str]:
        return self.store.files(folder)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        return self.store.open(path, version, what)

    def view(self, folder: str) -> Store:
        return self.store.view(folder)

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        return self.store.write(path, data, how)

    def remove(self, path: str) -> None:
        self.store.remove(path)
