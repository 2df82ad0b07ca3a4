"""A bucket to which nothing is sent: it counts what writing files to it would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import field
from msgspec.structs import replace

from reshard.storage.base import Entry, FileStatus, OpenFile, Pieces, Store, Traits, Writing
from reshard.storage.requests import Requests, pages
from reshard.storage.wrapper import StoreWrapper


class CountingStore(StoreWrapper, frozen=True):
    """Takes files and forgets their content; implements ``base.Store`` for a writer of metadata.

    Attributes:
        files_put: the size of each file that was written, by path.
        looks: other requests, one for each entry.
    """

    files_put: dict[str, int] = field(default_factory=dict)
    looks: list[Requests] = field(default_factory=list)

    @property
    def requests(self) -> Requests:
        """What all of it would have taken."""
        sent = Requests(put=len(self.files_put), sent_bytes=sum(self.files_put.values()))
        return sum(self.looks, sent)

    @property
    def traits(self) -> Traits:
        return replace(self.store.traits, range_bytes=0)  # nothing takes long

    def status(self, path: str, what: str = "") -> FileStatus | None:  # noqa: ARG002
        nbytes = self.files_put.get(path)
        self.looks.append(Requests(head=1, list=int(nbytes is None)))
        return None if nbytes is None else FileStatus("file", nbytes)

    def entries(self, folder: str) -> Sequence[Entry]:
        found = {
            first: bool(slash)
            for first, slash, _ in (n.partition("/") for n in self._names(folder))
        }
        self.looks.append(Requests(list=pages(len(found))))
        return [Entry(name, is_folder) for name, is_folder in sorted(found.items())]

    def files(self, folder: str) -> Iterator[str]:
        found = list(self._names(folder))
        self.looks.append(Requests(list=pages(len(found))))
        return iter(found)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:  # noqa: ARG002
        nbytes = self.files_put.get(path, 0)
        self.looks.append(Requests(get=1, received_bytes=nbytes))
        return _Zeros(nbytes)

    def view(self, folder: str) -> Store:  # noqa: ARG002
        return self

    def write(self, path: str, data: bytes | memoryview | Pieces, how: Writing = "whole") -> str:  # noqa: ARG002
        self.files_put[path] = data.nbytes if isinstance(data, Pieces) else len(data)
        return ""

    def _names(self, folder: str) -> Iterator[str]:
        begin = f"{folder}/" if folder else ""
        return (path[len(begin) :] for path in self.files_put if path.startswith(begin))


class _Zeros:
    """A file of zeros; implements ``base.OpenFile``."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def fill(self, offset: int, out: memoryview) -> int:
        found = max(0, min(len(out), self._nbytes - offset))
        out[:found] = bytes(found)
        return found

    def read(self, offset: int, nbytes: int) -> bytes:
        return bytes(max(0, min(nbytes, self._nbytes - offset)))

    def close(self) -> None:
        """Nothing."""
