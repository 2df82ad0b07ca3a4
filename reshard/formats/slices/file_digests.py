"""Digests of whole files, and the comparison of a folder's files with the records that it has of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Literal

from msgspec import Struct

from reshard.errors import CorruptError, ReshardError, StorageError
from reshard.formats.names import OF_RECORDS
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import FILE_NAME, SliceFile, digest_of
from reshard.storage.location import Location

DigestStatus = Literal["recorded", "different", "missing", "unexpected", "unreadable", "added"]


class FileVerdict(Struct, frozen=True):
    """The comparison of a file with its record.

    Attributes:
        name: its path below the checkpoint.
        status: "unexpected" for a file without a record that a reader may use; "added" for one that no reader uses
            (a README), which is not damage.
        stored: CRC-64/NVME of its bytes, 16 hex digits; None if it was not read.
        recorded: its recorded digest.
        detail: the fault, in words.
        side: the checkpoint of the two that it is part of.
    """

    name: str
    status: DigestStatus
    stored: str | None = None
    recorded: str | None = None
    detail: str = ""
    side: Literal["A", "B"] = "A"

    @property
    def is_difference(self) -> bool:
        """True if the file is damaged or missing, or should not be there."""
        return self.status not in ("recorded", "added")


PIECE_BYTES = 1 << 20

THREADS = 4
"""Files read at once; each takes the memory of one piece."""


def digest_of_file(file: Location) -> str:
    """CRC-64/NVME of a file's bytes, 16 hex digits, read in pieces.

    Raises StorageError if it cannot be read, FormatError if it is not a plain file.
    """
    from awscrt.checksums import crc64nvme

    found = file.status()
    version, end = (found.version, found.nbytes) if found is not None else ("", 0)
    piece_bytes = file.read_bytes(PIECE_BYTES)
    crc = done = 0
    with closing(file.open(version)) as opened:
        while done < end and (data := opened.read(done, min(piece_bytes, end - done))):
            crc, done = crc64nvme(data, crc), done + len(data)
    return f"{crc:016x}"


def size_or_zero(file: Location) -> int:
    """The file's size in bytes; 0 if it cannot be looked up."""
    try:
        found = file.status()
    except ReshardError:
        return 0
    return found.nbytes if found is not None else 0


def digests_of_files(folder: Location, names: Iterable[str]) -> dict[str, str]:
    """The digest of each of these files below the folder, by name; raises as ``digest_of_file``."""
    names = list(names)
    with ThreadPoolExecutor(THREADS, "reshard.files") as threads:
        return dict(
            zip(names, threads.map(digest_of_file, (folder / n for n in names)), strict=True)
        )


def files_below(folder: Location, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """The path of every file below the folder, relative to it; the folders ``but`` directly in it are left out.

    A link to a folder counts as a file, since nothing follows it. Raises StorageError if a folder cannot be listed.
    """
    for entry in folder.entries():
        if entry.is_link or not entry.is_folder:
            yield entry.name
        elif entry.name not in but:
            yield from (f"{entry.name}/{name}" for name in (folder / entry.name).files())


def check_file(file: Location, recorded: str, what: str) -> None:
    """Raises CorruptError if a file is missing or its digest is not the recorded one."""
    if not file.exists():
        raise missing_file(file, what)
    check_digest(digest_of_file(file), recorded, f"{what} {file}")


def missing_file(file: Location, what: str) -> CorruptError:
    """The error for a file that is recorded but not there."""
    return CorruptError(f"{what} {file} is missing, but is recorded in slices.json; {REMEDY}")


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


_READ = re.compile(
    r"_|[.]z|zarr|checkpoint|commit_success|manifest|ocdbt|orbax|slices[.]json|descriptor",
    re.IGNORECASE,
)
"""The beginnings of the names of files that Orbax, TensorStore or this package may read unasked."""


class FolderRecord(Struct, frozen=True):
    """One slices.json of a checkpoint.

    Attributes:
        folder: "" for the checkpoint itself.
        error: its damage, if there is any; then ``file`` is None.
    """

    folder: str
    file: SliceFile | None
    error: str = ""

    def below(self, name: str) -> str:
        """A path in this folder, from the checkpoint's root."""
        return f"{self.folder}/{name}" if self.folder else name


def folder_records(root: Location) -> list[FolderRecord]:
    """Every slices.json of a checkpoint, damaged ones too; none if nothing was recorded."""
    found = [_folder_record(root, folder) for folder in ("", *_folders(root))]
    return [record for record in found if record is not None]


def _folders(root: Location) -> list[str]:
    try:
        return [entry.name for entry in root.entries() if entry.is_folder]
    except StorageError:
        return []


def _folder_record(root: Location, folder: str) -> FolderRecord | None:
    try:
        file = read_slices(root / folder)
    except ReshardError as error:
        return FolderRecord(folder, None, str(error))
    return None if file is None else FolderRecord(folder, file)


def file_verdicts(
    root: Location,
    records: list[FolderRecord],
    is_chunk: Callable[[str], bool] | None,
    read: Callable[[str], None] = lambda _: None,
) -> list[FileVerdict]:
    """A verdict on every recorded file, and on files without a record.

    Args:
        is_chunk: tells if a path below the root is a tensor's chunk in a plain file; None if the checkpoint cannot be
            opened; unexpected files are then not looked for.
        read: called with each file's name before it is read.
    """
    verdicts: list[FileVerdict] = []
    for record in records:
        own = record.below(FILE_NAME)
        if record.file is None:
            verdicts.append(FileVerdict(own, "different", detail=record.error))
            continue
        verdicts.append(FileVerdict(own, "recorded"))
        for name, digest in record.file.every_file.items():
            read(record.below(name))
            verdicts.append(_verdict(root, record.below(name), digest))
        verdicts += _unexpected(root, record, record.file, records, is_chunk)
    return verdicts


def _verdict(root: Location, name: str, recorded: str) -> FileVerdict:
    path = root / name
    try:
        if not path.exists():
            detail = "the file is gone"
            return FileVerdict(name, "missing", None, recorded, detail)
        stored = digest_of_file(path)
    except ReshardError as error:
        return FileVerdict(name, "unreadable", None, recorded, str(error))
    if stored != recorded:
        detail = "its bytes are not those that were recorded"
        return FileVerdict(name, "different", stored, recorded, detail)
    return FileVerdict(name, "recorded", stored, recorded)


def _unexpected(
    root: Location,
    record: FolderRecord,
    file: SliceFile,
    records: list[FolderRecord],
    is_chunk: Callable[[str], bool] | None,
) -> Iterator[FileVerdict]:
    if file.data_files is None or is_chunk is None:
        return
    others = frozenset(r.folder for r in records if r.folder and not record.folder)
    known: Mapping[str, str] = {**file.every_file, **dict.fromkeys(OF_RECORDS, "")}
    try:
        for name in files_below(root / record.folder, others):
            if name not in known and not is_chunk(record.below(name)):
                detail = "the file was not there when the others were recorded"
                status: DigestStatus = (
                    "added" if ("/" not in name and _READ.match(name) is None) else "unexpected"
                )
                yield FileVerdict(record.below(name), status, detail=detail)
    except ReshardError as error:
        yield FileVerdict(record.below(""), "unreadable", detail=str(error))
