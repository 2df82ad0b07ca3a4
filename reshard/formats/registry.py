"""The formats by name and by their marks on disk. A new format is one more entry of ``FORMATS``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from reshard.errors import (
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
    StorageError,
    TargetExistsError,
)
from reshard.formats.base import Item, Reader, Record
from reshard.formats.known_format import KnownFormat
from reshard.formats.options import FormatOption
from reshard.formats.orbax.container import is_finished
from reshard.formats.orbax.known import ORBAX
from reshard.formats.safetensors.known import SAFETENSORS
from reshard.formats.slices.record_files import RecordedFolder
from reshard.formats.steps import committed, committed_steps
from reshard.storage.local import storage_error, storage_errors
from reshard.storage.location import local_path
from reshard.storage.staging import staging_above

FORMATS = (ORBAX, SAFETENSORS)
"""In the order in which they are tried."""


def open_reader(uri: str, record: Record = "checked", *, staged: bool = False) -> Reader:
    """Open the checkpoint at ``uri`` with the reader of its format.

    Args:
        uri: a local path or a ``file://`` URL of one.
        record: how to use its slices.json.
        staged: whether unpublished output of reshard can be opened too.

    Raises:
        StorageError: nothing is there, or it is not on a local file system.
        IncompleteCheckpointError: it is in the staging folder of an unfinished run.
        NotACheckpointError: no known format; for a folder with steps the message names the latest.
    """
    path = local_path(uri)
    if not staged:
        _refuse_staged(uri, path)
    try:
        return _recognise(uri, Path(path)).open(path, record)
    except OSError as error:  # any error of looking at a path
        raise storage_error("read", error.filename or uri, error) from error


def _refuse_staged(uri: str, path: str) -> None:
    folder = staging_above(Path(path))
    if folder is not None:
        raise IncompleteCheckpointError(
            f"{uri} is unfinished output of reshard, below {str(folder)!r}; run the same command again to finish "
            "it, and read the target that it then becomes"
        )


def _recognise(uri: str, path: Path) -> KnownFormat:
    refuse_missing(uri, str(path))
    for known in FORMATS:
        if known.matches(str(path)):
            return known
    marks = ", ".join(known.marks for known in FORMATS)
    raise NotACheckpointError(
        f"{uri} is not a checkpoint of a known format: looked for {marks}{_hint(uri, path)}"
    )


def is_checkpoint(path: str) -> bool:
    """Whether a local path is a checkpoint of a known format, finished or not."""
    return any(known.matches(path) for known in FORMATS)


def is_written(path: str) -> bool:
    """Whether a local path is a checkpoint that a target may replace, finished or not."""
    return any(known.matches(path) and known.is_ours(path) for known in FORMATS)


def takes_record(reader: Reader) -> bool:
    """Whether ``reshard fingerprint`` can record the digests of an open checkpoint."""
    return _format_of(reader).takes_record(local_path(reader.uri))


def folders_to_record(root: Path, reader: Reader) -> list[RecordedFolder]:
    """The folders of an open checkpoint that get a slices.json, the top last.

    Raises FormatError for a checkpoint that has no room for one.
    """
    return _format_of(reader).folders_to_record(root, reader)


def chunk_test(reader: Reader) -> Callable[[str], bool] | None:
    """Tells whether a file is a chunk, by its path below the open checkpoint; None if its format does not say."""
    return _format_of(reader).chunk_test(reader)


def known_format(name: str) -> KnownFormat:
    """The format of that name."""
    return next(known for known in FORMATS if known.name == name)


def format_names() -> tuple[str, ...]:
    """The names of all formats."""
    return tuple(known.name for known in FORMATS)


def format_options() -> dict[str, FormatOption]:
    """The options that targets of all formats have, by name."""
    return {name: option for known in FORMATS for name, option in known.options.items()}


def format_with(option: str) -> KnownFormat:
    """The first format whose targets have that option."""
    return next(known for known in FORMATS if option in known.options)


def named_options(
    path: str, to: str | None, options: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The format that is asked for or that the target's name says, and the options of all formats, which it may change.

    Raises PlanError for options that contradict the name.
    """
    for known in FORMATS:
        if to in (None, known.name) and (named := known.named_options(path, options)) is not None:
            return known.name, named
    return to, options


def _format_of(reader: Reader) -> KnownFormat:
    return known_format(reader.format)


def is_no_run(path: str) -> bool:
    """Whether a local path is certainly one checkpoint, and not the folder of a training run."""
    return any(known.is_no_run(path) for known in FORMATS)


def items_of(path: str) -> tuple[Item, ...]:
    """The items of the checkpoint at a local path; none for a format without items."""
    return next((known.items(Path(path)) for known in FORMATS if known.matches(path)), ())


def price_of_opening(path: str) -> tuple[int, int]:
    """About how many leaves the checkpoint at a local path has, and the bytes that they take once opened; 0 of none."""
    try:
        for known in FORMATS:
            if known.matches(path):
                leaves = known.count_leaves(path)
                return leaves, leaves * known.leaf_bytes
    except OSError:  # opening it says why
        pass
    return 0, 0


def committed_format(path: str) -> str | None:
    """The name of the format of a finished checkpoint at a local path; None where there is none."""
    known = next((known for known in FORMATS if known.matches(path)), None)
    return known.name if known is not None and is_finished(path) else None


def refuse_other_content(target: Path) -> None:
    """Raises TargetExistsError for a target with anything but a checkpoint in it: overwriting replaces all of it."""
    with storage_errors("look at", target):
        if not target.exists() or is_written(str(target)):
            return
        if target.is_file():
            raise TargetExistsError(
                f"the target {str(target)!r} is a file that is not a checkpoint, and was left untouched; overwriting "
                "replaces only checkpoints and empty folders: choose another target, or remove it"
            )
        if not any(target.iterdir()):
            return
    raise TargetExistsError(
        f"the target {str(target)!r} is a folder that contains something other than a checkpoint, and was left "
        "untouched; overwriting replaces only checkpoints and empty folders: choose another target, or empty it"
    )


def refuse_missing(uri: str, path: str, expected: str = "the directory of a checkpoint") -> None:
    """Raises MissingError where nothing is at the local ``path``, StorageError where the system refuses access."""
    try:
        with storage_errors("read", uri):
            os.scandir(path).close()
    except StorageError as error:
        reason = error.__cause__
        if isinstance(reason, FileNotFoundError):
            raise MissingError(
                f"{uri} does not exist: expected {expected}; check the path"
            ) from None
        if not (isinstance(reason, NotADirectoryError) and Path(path).exists()):
            raise


def target_path(target: str) -> str:
    """The local path of a target; its last part is a name, so that a staging folder can be made beside it."""
    path = local_path(target, writing=True)
    # A path such as ``.`` or ``a/..`` has no name at its end; its real path has.
    return path if Path(path).name not in ("", "..") else os.path.realpath(path)


def _hint(uri: str, path: Path) -> str:
    """What the folder is instead, and which path to give."""
    if not path.is_dir():
        return _file_hint(path)
    below = uri.rstrip("/")
    if steps := committed_steps(str(path)):
        last = f"{below}/{steps[max(steps)]}"
        return f"; it holds steps of a training run, so name one of them: {last}"
    if names := list(islice(committed(str(path)), 4)):
        more = " or another" if names[3:] else ""
        some = ", ".join(f"{below}/{name}" for name in names[:3])
        return f"; it holds checkpoints, so name one of them: {some}{more}"
    return ""


_PICKLE_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")
"""A pickle of protocol 2 or later, and the zip archive that torch.save puts one into."""


def _file_hint(path: Path) -> str:
    with storage_errors("read", path), path.open("rb") as file:
        start = file.read(4)
    if path.suffix in _PICKLE_ENDINGS and start.startswith(_PICKLE_STARTS):
        return (
            "; it is a pickle, which can run any code when it is loaded, so it is never read: where you trust it, load it "
            "with torch.load(weights_only=True) and write it with safetensors.torch.save_file"
        )
    return "; it is a file, expected a safetensors file or the directory of a checkpoint"
