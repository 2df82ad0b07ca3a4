"""KnownFormat: what the registry knows of a format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from reshard.formats.base import Form, Reader, Record
from reshard.formats.contents import Item, Stored
from reshard.formats.slices.record_files import RecordedFolder
from reshard.options import Option
from reshard.storage.location import Location


class KnownFormat(Struct, frozen=True, kw_only=True):
    """A format that is read and written.

    Attributes:
        name: of the format, which its reader and its forms have too.
        title: the name in sentences, such as ``"Orbax"``.
        marks: the files by which its checkpoints are recognised, for messages.
        matches: whether such files are at a location.
        files_of: the files that a location stands for; None where it is one file or a folder. A format whose checkpoints
            are named by a prefix gives, in a fixed order, the files ``run/ckpt-1000.index``, … of ``run/ckpt-1000``.
            It matches only where no file or folder has that very name. An index stands for itself and the files beside it.
        is_finished: whether no mark says that the checkpoint was not committed.
        open: the reader of the checkpoint at a location, which is viewed as one checkpoint; how its record is used, and
            the text by which the user named it.
        open_all: the same, with tensors and files that no index lists; None for a format without an index.
        count_leaves: about how many leaves a checkpoint has, without opening it; 0 where it cannot be read.
        leaf_bytes: memory that opening it takes for each leaf, an overestimate.
        is_ours: whether what is there may be replaced by a target: nothing of it is lost but a checkpoint.
        is_no_run: whether it is certainly one checkpoint, and not the folder of a training run.
        takes_record: whether ``reshard fingerprint`` can record digests in an open checkpoint.
        folders_to_record: the folders of an open checkpoint that get a record.
        options: those of a target's options that the format has.
        form: the form of a target, from these options, parsed, and the open source. Raises PlanError for options that
            contradict each other or the source.
        named_options: the options of a target by its path, where the name says that it has this format; else None.
        items: the items of a checkpoint; none for a format without items.
        tensors_only: whether its checkpoints have no place for strings, None and empty containers.
        lacking_chunks: of these tensors of an open checkpoint, those of which chunks are not stored: from a listing or an
            index, without a look-up of each chunk.
        with_missing: the open checkpoint, in which chunks that are not stored mean the fill value, or are damage. A format
            without fill values has neither function.
        chunk_test: tells whether a file is a chunk, by its path below the open checkpoint. A file that is none, and that
            the record does not name, is damage. None if that is not known.
    """

    name: str
    title: str
    marks: str
    matches: Callable[[Location], bool]
    open: Callable[[Location, Record, str], Reader]
    count_leaves: Callable[[Location], int]
    leaf_bytes: int
    is_ours: Callable[[Location], bool]
    is_no_run: Callable[[Location], bool]
    takes_record: Callable[[Reader], bool]
    folders_to_record: Callable[[Location, Reader], list[RecordedFolder]]
    options: Mapping[str, Option]
    form: Callable[[Mapping[str, Any], Reader], Form]
    open_all: Callable[[Location, Record, str], Reader] | None = None
    files_of: Callable[[Location], tuple[Location, ...] | None] = lambda _: None
    is_finished: Callable[[Location], bool] = lambda _: True
    named_options: Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None] = lambda *_: None
    items: Callable[[Location], tuple[Item, ...]] = lambda _: ()
    tensors_only: bool = False
    lacking_chunks: Callable[[Reader, Iterable[str]], dict[str, Stored]] = lambda *_: {}
    with_missing: Callable[[Reader, bool], Reader] = lambda reader, _: reader
    chunk_test: Callable[[Reader], Callable[[str], bool] | None] = lambda _: None
