"""The parts of one conversion, each done by a process of its own: the places of their records, and the file that they share.

::

    .name.reshard-partial/parts/request        the request that all parts share; the first part writes it
    .name.reshard-partial/parts/stop           asks all parts to end
    .name.reshard-partial/parts/00003-of-00016 of part 3: its lock or lease, its journal and, on a disk, its files

In a bucket this folder also has the lease and the records; the objects are below the target's own name, or, if it is to be overwritten, in
``parts/objects`` until the commit copies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

from msgspec import Struct

from reshard.errors import PlanError, TargetBusyError, TargetExistsError
from reshard.storage.local.staging import take_files
from reshard.storage.local.syncing import fsync, sync_tree
from reshard.storage.local.transaction import lock_part_folder, part_staging, remove_part_folders
from reshard.storage.location import Location
from reshard.storage.targets import is_local, state_of
from reshard.storage.transaction import Transaction

MAX_PARTS = 65_536
"""A larger number is a mistake: each part keeps a folder, and ``commit`` reads all of them."""

_PART = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)
_FOLDER = re.compile(r"([0-9]{5})-of-([0-9]{5})", re.ASCII)
_REQUEST_BYTES = 64 << 20


class Part(Struct, frozen=True, order=True):
    """One of ``count`` parts; the first has the number 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.number:05d}-of-{self.count:05d}"


def parse_part(text: object) -> Part:
    """The part that a text such as ``"3/16"`` names; PlanError for any other text."""
    match = _PART.fullmatch(text) if isinstance(text, str) else None
    part = Part(int(match[1]), int(match[2])) if match else Part(0, 0)
    if not 1 <= part.number <= part.count <= MAX_PARTS:
        raise PlanError(
            f"part is {text!r}; expected i/n with i from 1 to n, and n at most {MAX_PARTS:,}, such as 3/16"
        )
    return part


def lock_part(
    target: Location,
    part: Part,
    *,
    unsafe: bool = False,
    state: str | None = None,
    overwrite: bool = False,
    run: str = "",
) -> AbstractContextManager[Transaction]:
    """The transaction of one part, as its last run left it; no other process can have it in the block.

    Its ``commit`` and its markers are never used. ``overwrite``: the target may exist. ``run``: the name of the run that writes the part; "" for
    one that reads. Raises TargetBusyError, naming the holder, if another live process does this part.
    """
    if is_local(target):
        return lock_part_folder(Path(target.path), part.folder, run)
    from reshard.storage.buckets.transaction import lock_part_in_bucket

    options = {"unsafe": unsafe, "is_staged": overwrite}
    return lock_part_in_bucket(target, part.folder, state=state, **options)


def part_root(
    target: Location, part: Part, run: str, state: str | None = None, *, overwrite: bool = False
) -> str:
    """The text of the folder for the files of a run of a part; arguments as of ``lock_part``."""
    if is_local(target):
        return f"{part_staging(Path(target.path), part.folder).root}-{run}"
    if not overwrite:
        return str(target)
    from reshard.storage.buckets.transaction import STAGED_OBJECTS

    return str(_parts_folder(target, state) / STAGED_OBJECTS)


def parts_request(target: Location, state: str | None = None) -> bytes | None:
    """The request that the parts of a target share; None if there is no part."""
    place = _request(target, state)
    if not place.exists():
        return None
    with closing(place.open(what="the record that all parts share")) as file:
        return file.read(0, _REQUEST_BYTES)


def claim_request(target: Location, data: bytes, state: str | None = None) -> bytes:
    """Records the request of the parts of a target unless one is recorded; returns the recorded one."""
    place = _request(target, state)
    with suppress(TargetExistsError):  # another part was first: its request counts
        place.write_new(data)
    found = parts_request(target, state)
    return data if found is None else found


def stop_parts(target: Location, state: str | None = None) -> None:
    """Asks the parts of a target that are at work, on any host, to end soon."""
    _stop(target, state).write(b"stop")


def is_stopped(target: Location, state: str | None = None) -> bool:
    """True once the parts of a target were asked to end."""
    return _stop(target, state).exists()


def allow_parts(target: Location, state: str | None = None) -> None:
    """Lets the parts of a target begin again."""
    if is_stopped(target, state):
        _stop(target, state).remove()


class PartJournal(Struct, frozen=True, order=True):
    """A file with records of a part: its journal on a disk, one of several in a bucket."""

    part: Part
    path: str


def journals_of(target: Location, state: str | None = None) -> list[PartJournal]:
    """The files with the records of all parts that were begun."""
    if is_local(target):
        staged = (part_staging(Path(target.path), each.folder) for each in parts_of(target))
        paths = [(each.folder.name, each.journal) for each in staged]
        found = [(name, str(path)) for name, path in paths if path.exists()]
    else:
        folder = _parts_folder(target, state)
        files = (file for file in folder.files() if "/journal/" in file)
        found = [(file.partition("/")[0], str(folder / file)) for file in files]
    named = ((_FOLDER.fullmatch(name), path) for name, path in found)
    return [PartJournal(Part(int(m[1]), int(m[2])), path) for m, path in named if m]


def has_parts(target: Location, state: str | None = None) -> bool:
    """True if a part of a target was begun, and not committed yet."""
    return _request(target, state).exists()


def parts_of(target: Location, state: str | None = None) -> list[Part]:
    """Every part that was begun."""
    folder = _parts_folder(target, state)
    if is_local(target):
        names = [entry.name for entry in folder.entries()] if folder.is_folder() else []
    else:
        names = sorted({file.partition("/")[0] for file in folder.files()})
    found = filter(None, map(_FOLDER.fullmatch, names))
    return [Part(int(match[1]), int(match[2])) for match in found]


def seal_part(target: Location, part: Part, transaction: Transaction, record: str) -> None:
    """Makes the files of a held part durable, and then its last record, which marks it as done."""
    if not is_local(target):
        transaction.append(record)
        transaction.close()
        return
    staging = part_staging(Path(target.path), part.folder)
    sync_tree(
        Path(transaction.root.path)
    )  # before the record, which says that the files are durable
    transaction.append(record)
    transaction.close()
    fsync(staging.journal)
    fsync(staging.folder)


def move_files_of_part(
    part: Transaction,
    whole: Transaction,
    files: Iterable[str],
    heads: Mapping[str, tuple[bytes, int]],
) -> None:
    """Moves files of a part that were not moved before below the root of the whole target; ``heads`` as of ``staging.take_files``."""
    take_files(part.root.path, whole.root.path, files, heads)


def remove_parts(target: Location, state: str | None = None) -> None:
    """Removes the folders of all parts. TargetBusyError, naming the part, if one is at work."""
    for part in parts_of(target, state):
        try:
            with lock_part(target, part, unsafe=True, state=state) as transaction:
                transaction.abort()
        except TargetBusyError as error:
            raise TargetBusyError(f"part {part}: {error}") from None
    if is_local(target):
        remove_part_folders(Path(target.path))
    else:
        from reshard.storage.buckets.transaction import remove_staged

        remove_staged(_parts_folder(target, state))
        allow_parts(target, state)
        _request(target, state).remove()


def _parts_folder(target: Location, state: str | None) -> Location:
    return state_of(target, state) / "parts"


def _stop(target: Location, state: str | None) -> Location:
    return _parts_folder(target, state) / "stop"


def _request(target: Location, state: str | None) -> Location:
    return _parts_folder(target, state) / "request"
