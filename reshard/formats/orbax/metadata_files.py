"""MetadataFiles: the metadata files of one folder of an Orbax checkpoint, known by one listing and compared with their record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from reshard.formats.limits import MAX_JSON_BYTES
from reshard.formats.safe_json import read_bytes
from reshard.formats.slices.file_digests import check_digest, check_file, missing_file
from reshard.formats.slices.slice_file import FILE_NAME, digest_of
from reshard.storage.base import Entry
from reshard.storage.calls import each_at_once
from reshard.storage.location import Location

_WHAT = "the file"


class MetadataFiles:
    """Reads the files at the top of a folder, and those in the folders of metadata below it.

    The folder is listed once, and a file that is not listed is not looked for. In a bucket each read is a request, so that a file is
    compared with its record when it is read, whether the record is known before or after. Used by one thread while a checkpoint is
    opened.

    Args:
        folders: the folders of metadata; the other folders have files that are checked when they are used.
    """

    def __init__(self, folder: Location, folders: frozenset[str] = frozenset()) -> None:
        self.folder = folder
        self._folders = folders
        self._digests: dict[str, str] = {}
        self._recorded: Mapping[str, str] = {}

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """Every name in the folder, sorted."""
        return self.folder.entries()

    @cached_property
    def names(self) -> frozenset[str]:
        """The names in the folder."""
        return frozenset([entry.name for entry in self.entries])

    @cached_property
    def is_recorded(self) -> bool:
        """True if the folder has a record of its files."""
        return FILE_NAME in self.names

    def where(self, name: str) -> str:
        """A file's path, for messages."""
        return str(self.folder / name)

    def read(self, name: str, max_bytes: int = MAX_JSON_BYTES) -> bytes | None:
        """The whole file; None where there is none.

        Raises CorruptError if its digest is not the recorded one or a recorded file is missing, FormatError if it is
        larger than ``max_bytes`` or not a plain file, StorageError if it cannot be read.
        """
        file = self.folder / name
        found = file.status() if name.partition("/")[0] in self.names else None
        if found is None:
            if name in self._recorded:
                raise missing_file(file, _WHAT)
            return None
        data = read_bytes(file, max_bytes, found=found)
        if self.is_recorded:
            self._digests[name] = digest_of(data)
            self._check(name)
        return data

    def expect(self, recorded: Mapping[str, str]) -> None:
        """Takes the digests of a record; raises CorruptError if a file that was read has another one."""
        self._recorded = dict(self._known(recorded))
        for name in self._digests:
            self._check(name)

    def check_unread(self) -> None:
        """Raises CorruptError if a recorded file that was not read is missing or has another digest."""
        unread = [name for name in self._recorded if name not in self._digests]
        for name in each_at_once(self.folder.store, self._checked, unread) if unread else ():
            self._digests[name] = self._recorded[name]

    def _checked(self, name: str) -> str:
        check_file(self.folder / name, self._recorded[name], _WHAT)
        return name

    def _known(self, recorded: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for name, digest in recorded.items():
            folder, slash, _ = name.partition("/")
            if not slash or folder in self._folders:
                yield name, digest

    def _check(self, name: str) -> None:
        if name in self._recorded:
            what = f"{_WHAT} {self.where(name)}"
            check_digest(self._digests[name], self._recorded[name], what)
