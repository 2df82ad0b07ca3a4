"""The records of a checkpoint's files, one slices.json per folder, and the check of files against them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from reshard.errors import ReshardError, StorageError
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.slices.file_digests import (
    DigestStatus,
    FileVerdict,
    digest_of_file,
    files_below,
)
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import FILE_NAME, SliceFile
from reshard.storage.location import Location

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
        verdicts += _own_verdict(record)
        if record.file is not None:
            for name, digest in record.file.every_file.items():
                read(record.below(name))
                verdicts.append(_verdict(root, record.below(name), digest))
            verdicts += _unexpected(root, record, record.file, records, is_chunk)
    return verdicts


def _own_verdict(record: FolderRecord) -> list[FileVerdict]:
    name = record.below(FILE_NAME)
    if record.file is None:
        return [FileVerdict(name, "different", detail=record.error)]
    return [FileVerdict(name, "recorded")]


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
                status: DigestStatus = "added" if _is_read_by_none(name) else "unexpected"
                yield FileVerdict(record.below(name), status, detail=detail)
    except ReshardError as error:
        yield FileVerdict(record.below(""), "unreadable", detail=str(error))


def _is_read_by_none(name: str) -> bool:
    """True if no reader looks at a file, by its path below the folder: people may add such files."""
    return "/" not in name and _READ.match(name) is None
