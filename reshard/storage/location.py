"""Location: a path in a store, used like ``pathlib.Path``.

Other distributions add stores by entry points of the group ``reshard.stores``, named by their URLs' scheme. The object of such an entry
point takes a URL and gives its ``Location``. Checkpoints are read from there.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from reshard.errors import ReshardError, StorageError
from reshard.storage.base import Entry, FileStatus, OpenFile, Pieces, Store, Traits
from reshard.storage.buckets.clouds import is_bucket_scheme, other_scheme, parse_url
from reshard.storage.local.files import make_folder, open_new, storage_errors, write_all
from reshard.storage.local.store import LOCAL, LocalStore, bytes_left, file_states

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(?i)(file|gs|s3|az|hf|https?):/(?!/)")
_ODD = re.compile("[\\\\\ud800-\udfff]")
"""A backslash, and the characters to which a name that is not UTF-8 decodes."""


class Location(Struct, frozen=True):
    """A file or folder, or nothing yet, at a path in a store.

    ``str`` gives the users' text for it, and ``locate`` takes that text.
    """

    store: Store
    path: str

    def __str__(self) -> str:
        return self.store.traits.text(self.path)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"

    def __truediv__(self, below: str) -> Location:
        return Location(self.store, join(self.path, below))

    @property
    def traits(self) -> Traits:
        """The traits of its store."""
        return self.store.traits

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """Its parent folder."""
        return Location(self.store, self.path.rstrip("/").rpartition("/")[0])

    @property
    def local(self) -> Path | None:
        """Its path on the local file system; None in a bucket."""
        return Path(self.path) if isinstance(self.store, LocalStore) else None

    @property
    def kept_bytes(self) -> int:
        """Memory that its store keeps: the listing of a view of a bucket."""
        return self.traits.memory_bytes

    def read_bytes(self, near: int, most: int = 1 << 62) -> int:
        """The size of one read: ``near`` if short reads are cheap, else the best size of a request, at most ``most``."""
        return min(self.traits.range_bytes, most) or near

    def status(self, what: str = "") -> FileStatus | None:
        """The status of the path, links followed; None if nothing is there."""
        return self.store.status(self.path, what)

    def exists(self, what: str = "") -> bool:
        """True if anything is there."""
        return self.status(what) is not None

    def is_file(self, what: str = "") -> bool:
        """True if a plain file is there."""
        found = self.status(what)
        return found is not None and found.kind == "file"

    def is_folder(self, what: str = "") -> bool:
        """True if a folder is there."""
        found = self.status(what)
        return found is not None and found.kind == "folder"

    def entries(self) -> Sequence[Entry]:
        """Every name in it, sorted."""
        return self.store.entries(self.path)

    def folders(self) -> list[str]:
        """The names of the folders in it, sorted, without links to folders."""
        return [entry.name for entry in self.entries() if entry.is_folder and not entry.is_link]

    def files(self) -> Iterator[str]:
        """The path from here of every file below."""
        return self.store.files(self.path)

    def open(self, version: str = "", what: str = "") -> OpenFile:
        """Opens it for reading."""
        return self.store.open(self.path, version, what)

    def write(self, data: bytes | memoryview) -> str:
        """Writes it as a whole file; returns its version. See ``Store.write``."""
        return self.store.write(self.path, data)

    def write_new(self, data: bytes) -> None:
        """Writes it as a whole file, durably and in one step. TargetExistsError if something is there."""
        self.store.write(self.path, data, "new")

    def write_pieces(self, pieces: Iterable[bytes | memoryview], nbytes: int) -> str:
        """Writes it as a file of ``nbytes`` from pieces; returns its version. See ``Store.write``."""
        return self.store.write(self.path, Pieces(pieces, nbytes))

    def replace(self, data: bytes) -> None:
        """Writes it as a whole file, durably, replacing an existing one."""
        self.store.write(self.path, data, "replace")

    def write_ranges(
        self, ranges: Iterable[tuple[int, bytes | memoryview]], nbytes: int | None = None
    ) -> bool:
        """Writes bytes at offsets of a file, which is made if it is missing; the rest of it stays, and nothing is synced.

        False, without asking for any range, if the store takes files in order only. ``nbytes``: the size that the file gets first.
        """
        if not self.traits.in_place:
            return False
        fd = open_new(self.path)
        try:
            if nbytes is not None:
                with storage_errors("write", self.path):
                    os.ftruncate(fd, nbytes)
            for offset, data in ranges:
                write_all(fd, memoryview(data), offset, self.path)
        finally:
            with storage_errors("close", self.path):
                os.close(fd)
        return True

    def remove(self) -> None:
        """Removes the file, if it is there."""
        self.store.remove(self.path)

    def make_folder(self, probe: str = "") -> None:
        """Makes the folder and missing parents, if the store has folders.

        ``probe``: the name of a file that is written and removed on a disk, to test that files can be written.
        """
        if not self.traits.has_folders:
            return  # and no probe: a bucket may let write and not delete, so that it would stay
        make_folder(self.path)
        if probe:
            try:
                (self / probe).write(b"")
            finally:
                (self / probe).remove()

    def make_folders(self, names: Iterable[str]) -> None:
        """Makes folders below it, if the store has folders."""
        if self.traits.has_folders:
            for name in names:
                make_folder(join(self.path, name))

    def free_bytes(self) -> int | None:
        """Bytes that may still be written here; None if no limit is known."""
        return bytes_left(self.path) if self.traits.has_free_bytes else None

    def view(self) -> Location:
        """The same location, read as one checkpoint; see ``Store.view``."""
        return Location(self.store.view(self.path), self.path)

    def remembered(self) -> Location:
        """The same location, for looking through the folders below it: a bucket then lists each folder once.

        A view of it, and the state, are listed once, too. It notices no change: do not keep it.
        """
        if not self.traits.by_requests:
            return self
        from reshard.storage.buckets.views import remembered

        return Location(remembered(self.store, self.path), self.path)

    def state(self, but: frozenset[str] = frozenset()) -> Iterator[str]:
        """A line for each file below it, or for the file itself; a line changes when its file does.

        Files named in ``but`` are left out. A missing place has a line, too. Raises StorageError if a folder cannot
        be listed.
        """
        if not self.traits.has_versions:
            return file_states(self.path, but)
        return _versions(self.view(), but)


def _versions(view: Location, but: frozenset[str]) -> Iterator[str]:
    """The lines of ``state`` if each file has a version."""
    found = view.status()
    files = view.files() if found is not None and found.kind == "folder" else iter(())
    first = next(files, None)
    if first is None:
        yield _state_line("", found)
        return
    for file in itertools.chain([first], files):
        if not but.intersection(file.split("/")):
            yield _state_line(f"/{file}", (view / file).status())


MISSING = "\0missing"
"""The only line of the state of a place with nothing there."""


def _state_line(below: str, found: FileStatus | None) -> str:
    return f"{below}\0{found.nbytes}\0{found.version}" if found else f"{below}{MISSING}"


def locate(path: str | os.PathLike[str]) -> Location:
    """The location that a local path or a URL names. Nothing is looked up; a local path becomes absolute.

    ``file://``, ``gs://``, ``s3://``, ``az://`` and ``hf://`` are taken, and the schemes that other distributions add. Raises
    StorageError for another scheme, or a URL that is not clean.
    """
    text = os.fspath(path)
    if text[:5].lower() == "hf://":
        from reshard.storage.hub.store import hub_location

        return hub_location(text)
    match = _SCHEME.match(text)
    if match is None or not is_bucket_scheme(match[1]):
        if match is not None and match[1].lower() != "file":
            found = locate_added(match[1], text)
            if found is not None:
                return found
        return Location(LOCAL, str(Path(local_path(text)).absolute()))
    from reshard.storage.buckets.store import BucketStore

    scheme, bucket, key = parse_url(text)
    return Location(BucketStore(scheme, bucket), key)


def local_path(text: str, *, writing: bool = False) -> str:
    """The local path that a path or a ``file://`` URL names, unchanged.

    Raises StorageError for an empty text or one with a NUL, for another scheme, and for a URL that lacks a slash or has any of ``%?#|``.
    """
    if "\0" in text or not text:
        wanted = "the folder to write" if writing else "the directory of a checkpoint"
        raise StorageError(f"{text!r} is no path; expected {wanted}")
    match = _SCHEME.match(text)
    if match is None:
        if lost := _LOST_SLASH.match(text):  # else a folder named s3: would be made here
            raise StorageError(
                f"{text!r} is no URL, since a slash is missing; write {lost[1]}://{text[lost.end() :]}, or ./{text} for a folder of that name"
            )
        _refuse_odd(text)
        return text
    path = text[match.end() :]
    if match[1].lower() != "file":
        raise StorageError(f"{text}: {_unsupported(match[1], writing)}")
    if not path.startswith("/") or any(c in path for c in "%?#|"):
        raise StorageError(f"{text} should be file:// with an absolute path without any of % ? # |")
    _refuse_odd(path)
    return path


def real_text(place: Location) -> str:
    """The same text for every name of a place: a local path with its links resolved."""
    return os.path.realpath(place.path) if isinstance(place.store, LocalStore) else str(place)


def stamp(place: Location) -> tuple[object, ...] | None:
    """A stamp that changes when another folder or file replaces a local one; None if nothing is there.

    A new folder may reuse an inode, but not also the time. In a bucket the stamp is always the same: reads ask for the
    listed versions, so that changed objects are refused.
    """
    if (path := place.local) is None:
        return ()
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def source_text(text: str) -> str:
    """The text for a source in records and messages: the path of a ``file://`` URL, any other text unchanged.

    Raises as ``locate``.
    """
    locate(text)
    return without_scheme(text)


def without_scheme(text: str) -> str:
    """The path of a ``file://`` URL, any other text unchanged; it names a location."""
    match = _SCHEME.match(text)
    return text[match.end() :] if match is not None and match[1].lower() == "file" else text


def _unsupported(scheme: str, writing: bool) -> str:
    if writing and scheme.lower() == "hf":
        return "the hub gets whole conversions only (convert, merge); write to a local disk, and convert that to the hub"
    if writing:
        return (
            f"writing to {scheme}:// is not supported yet; write to a local disk and copy the "
            "checkpoint from there"
        )
    if is_bucket_scheme(scheme):
        return (
            f"reading from {scheme}:// is not supported yet; copy the checkpoint to a local disk and "
            "give its path"
        )
    return f"reading from {scheme}:// is not supported; {other_scheme(scheme)}"


def _refuse_odd(path: str) -> None:
    """Refuses paths for TensorStore: it takes a backslash for a slash, and only UTF-8."""
    whole = str(Path(path).absolute())
    if _ODD.search(whole):
        raise StorageError(
            f"the path {whole!a} holds a backslash or bytes that are not UTF-8; an OCDBT database cannot be "
            "read or written there; rename the folder, or give it another name by a symbolic link"
        )


def is_in_bucket(source: object) -> bool:
    """True if a user's source names a place in a bucket, which the hub may have."""
    match = _SCHEME.match(source) if isinstance(source, str) else None
    is_of_hub = match is not None and match.string[:13].lower() == "hf://buckets/"
    return is_of_hub or (match is not None and is_bucket_scheme(match[1]))


def is_in_hub(source: object) -> bool:
    """True if a user's source names a place in a repository of the Hugging Face hub."""
    is_url = isinstance(source, str) and source[:5].lower() == "hf://"
    return is_url and not is_in_bucket(source)


def open_file(text: str, version: str = "", what: str = "") -> OpenFile:
    """Opens the file that the text of a location names, in that version if one is given."""
    if "://" not in text:
        return LOCAL.open(text, version, what)
    return locate(text).open(version, what)


def file_state(text: str) -> str:
    """A text that changes when the file at a location's text does; StorageError if it cannot be looked up."""
    if "://" in text:
        return "\0".join(locate(text).state())
    with storage_errors("look at", text):
        found = os.stat(text)  # noqa: PTH116 - once for each chunk; a Path would be slow
    return f"{found.st_size}\0{found.st_mtime_ns}"


def open_range(
    text: str, version: str, what: str, start: int, end: int, ahead_bytes: int
) -> OpenFile:
    """Opens a file to read a range of it in order; in a bucket ``ahead_bytes`` are read ahead."""
    file = open_file(text, version, what)
    if not ahead_bytes or "://" not in text:
        return file
    from reshard.storage.buckets.file import RANGE_BYTES, ReadAhead

    return ReadAhead(file, start, end, ahead_bytes, RANGE_BYTES, is_pinned=bool(version))


def join(folder: str, below: str) -> str:
    """The path ``below`` in a folder; ``below`` may be "" for the folder itself."""
    if not below or not folder:
        return folder or below
    return f"{folder}{below}" if folder.endswith("/") else f"{folder}/{below}"


GROUP = "reshard.stores"


def locate_added(scheme: str, url: str) -> Location | None:
    """The location that a URL of an added scheme names; None for a scheme that none adds.

    Raises StorageError where the distribution is broken; its own ReshardErrors are passed on.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=scheme.lower()):
        where = f"the entry point {point.name} = {point.value} of the group {GROUP}"
        try:
            found = point.load()(url)
        except ReshardError:
            raise
        except Exception as error:  # a module of others may raise anything
            raise StorageError(
                f"{url}: {where} fails: {type(error).__name__}: {error}; repair or remove its distribution"
            ) from error
        if not isinstance(found, Location):
            raise StorageError(
                f"{url}: {where} gave no Location; repair or remove its distribution"
            )
        return found
    return None
