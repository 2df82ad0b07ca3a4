"""Reads a checkpoint once and records digests of its tensors and files in slices.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.answers.shared import Digest
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress, tell_files
from reshard.engine.read_digests import tensor_digests
from reshard.formats.lacks import filled_chunks, missing_warnings
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.slices.file_digests import size_or_zero
from reshard.formats.slices.record_files import (
    RecordedFolder,
    publish_records,
    refuse_item_of_record,
    refuse_recorded,
    room_for_records,
)
from reshard.geometry.sizes import format_bytes
from reshard.storage.location import Location, locate


class TensorDigest(Struct, frozen=True):
    """The recorded digest of a tensor."""

    name: str
    digest: Digest


class Fingerprint(Record, frozen=True):
    """The recorded digests.

    Attributes:
        tensors: the digests of each tensor's row-major bytes, by name.
        files: the number of other files with a recorded digest.
        nbytes: decoded bytes of all tensors.
        written: the slices.json files that were written.
        seconds: wall time.
        warnings: a sentence about chunks that are not stored, if there are any: their fill value is in the digests.
    """

    JSON: ClassVar[Json] = Json(listed=("tensors",), later=("warnings",))

    uri: str
    tensors: Mapping[str, TensorDigest]
    files: int
    nbytes: int
    written: tuple[str, ...]
    seconds: float
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(self.nbytes)}"
        headline = (
            f"{self.uri!r}: {size} and {counted(self.files, 'other file')} in {self.seconds:.1f} s"
        )
        digests = [f"{one.name!r}: {one.digest}" for one in self.tensors.values()]
        return several(
            "Fingerprint",
            headline,
            digests,
            [*(f"written: {w!r}" for w in self.written), *warned(self.warnings)],
        )


def fingerprint_checkpoint(
    chosen: CheckpointPath,
    limits: Limits,
    overwrite: bool,
    progress: Callable[[Progress], None] | None = None,
) -> Fingerprint:
    """Reads every tensor and every other file, and publishes their digests; see ``reshard.fingerprint``."""
    started = time.monotonic()
    root = locate(chosen.path)
    check_leaves_to_read(limits.max_memory, chosen)
    reader = open_reader(chosen, "ignored")
    folders = reader.chunks.folders_to_record(reader, chosen.root.view())
    if not overwrite:
        refuse_recorded(root, folders)
    refuse_item_of_record(root)
    limits = replace(limits, max_memory=left_to_read(limits.max_memory, reader))
    with room_for_records(root, folders):
        digests = tensor_digests(reader, limits, progress=progress, stage="reading")
        read = _file_progress(root, folders, progress)
        written = publish_records(root, folders, digests, read)
    return Fingerprint(
        chosen.path,
        {name: TensorDigest(name, digest) for name, digest in digests.items()},
        sum(len(folder.files) for folder in folders),
        sum(t.spec.nbytes for t in reader.tensors.values()),
        tuple(map(str, written)),
        time.monotonic() - started,
        missing_warnings(reader.uri, filled_chunks(reader)),
    )


def _file_progress(
    root: Location, folders: Sequence[RecordedFolder], progress: Callable[[Progress], None] | None
) -> Callable[[str], None]:
    sizes = {
        f"{folder.folder}/{name}" if folder.folder else name: size_or_zero(
            root / folder.folder / name
        )
        for folder in folders
        for name in folder.files
    }
    return tell_files(sizes, progress)
