"""Records the version of each file that is written below a root in a bucket, to look for all of them before a target is published."""

from __future__ import annotations

from collections.abc import Mapping

from reshard.storage.base import Pieces, Writing
from reshard.storage.location import Location
from reshard.storage.wrapper import StoreWrapper


class RecordingStore(StoreWrapper, frozen=True):
    """Passes every call on, and records the versions; implements ``base.Store``.

    Attributes:
        put: the version of each file that was written, by its path.
    """

    put: dict[str, str]

    def write(self, path: str, data: bytes | memoryview | Pieces, how: Writing = "whole") -> str:
        self.put[path] = self.store.write(path, data, how)
        return self.put[path]

    def remove(self, path: str) -> None:
        self.put.pop(path, None)
        self.store.remove(path)


def recording_versions(root: Location, put: dict[str, str]) -> Location:
    """The same root, below which the version of every file that is written is recorded; one on a disk as it is: its files have none."""
    return root if root.traits.renames else Location(RecordingStore(root.store, put), root.path)


def record_version(file: Location, version: str) -> None:
    """Records a file that the store made itself, as a copy of another one."""
    if isinstance(file.store, RecordingStore):
        file.store.put[file.path] = version


def first_changed(listed: Location, put: Mapping[str, str]) -> str | None:
    """The text of a file that is gone, or has another version than it was put in; None where all are there.

    ``listed`` is a view of their root. Stores that give no versions show only what is gone.
    """
    for path, version in put.items():
        found = listed.store.status(path)
        if found is None or (version and found.version != version):
            return listed.traits.text(path)
    return None
