"""The tensors of the files that belong to a model with an index, and the warnings about the others.

The index decides: it names the file of each tensor. So a tensor that an overlay file replaces is read from the overlay, and
its copy in the base file is left out. A tensor that no index lists is left out, or taken on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.errors import (
    CorruptError,
    IncompleteCheckpointError,
    NotACheckpointError,
    ReshardError,
)
from reshard.formats.safetensors.files import Files, is_skyrl_payload
from reshard.formats.safetensors.header import FileHeader, StoredPiece, read_header
from reshard.formats.safetensors.model_index import ModelIndex
from reshard.storage.calls import each_at_once
from reshard.storage.location import Location

_MOST_SHOWN = 3

_TAKE = 'take them with (unlisted="include")'


class ModelHeaders(Struct, frozen=True):
    """The headers of a model's files, with the tensors of the model only.

    Attributes:
        listed: of the files that the index lists; of all files where there is no index.
        others: of the files that no index lists, where they are taken.
        unlisted: the names of tensors that no index lists, where they are taken.
        warnings: sentences about tensors and files that were left out.
    """

    listed: tuple[FileHeader, ...]
    others: tuple[FileHeader, ...] = ()
    unlisted: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[FileHeader, ...]:
        return (*self.listed, *self.others)


def read_headers(files: Files, unlisted: Unlisted) -> ModelHeaders:
    """Reads the headers of all files.

    Raises the errors of ``read_header`` for a file of the model; CorruptError where the index names a tensor that its file
    does not hold.
    """
    store = files.files[0].store if files.files else None
    headers = [] if store is None else list(each_at_once(store, read_header, files.files))
    if files.index is None:
        _refuse_payloads(files.files, headers)
        return ModelHeaders(tuple(headers))
    _check_held(files.index, files.files, headers)
    if unlisted == "include":
        others = list(each_at_once(files.index.file.store, read_header, files.unlisted))
        return _with_unlisted(files.index, headers, others)
    return _listed_only(files, files.index, headers)


def _refuse_payloads(files: Sequence[Location], headers: Sequence[FileHeader]) -> None:
    """Refuses deltas, which would be read as a model of bytes: those of SkyRL, and those without their index, by the checksum of each tensor."""
    for file, header in zip(files, headers, strict=True):
        if is_skyrl_payload(file.name):
            raise NotACheckpointError(
                f"{file.parent} is a delta of SkyRL, which is nothing without the version before it; apply it to that (reshard apply BASE "
                f"{file.parent} TARGET)"
            )
        if header.pieces and all(
            piece.dtype == "uint8" and len(piece.shape) == 1 and piece.name in header.metadata
            for piece in header.pieces
        ):
            raise IncompleteCheckpointError(
                f"{file} holds the payloads of a delta, but its index, which is written last, is missing: the delta is not finished; wait for it, or "
                "publish it anew"
            )


def _check_held(
    index: ModelIndex, files: Sequence[Location], headers: Sequence[FileHeader]
) -> None:
    held = {
        file.name: {piece.name for piece in header.pieces}
        for file, header in zip(files, headers, strict=True)
    }
    for name, file in index.weight_map.items():
        if name not in held[file]:
            raise CorruptError(
                f"{index.file} says that {name[:200]!r} is in {file!r}, which does not hold it; index and files are "
                "not of one checkpoint"
            )


def _with_unlisted(
    index: ModelIndex, headers: Sequence[FileHeader], others: Sequence[FileHeader]
) -> ModelHeaders:
    """The headers with every tensor that the index does not list; a listed one is read from the file that the index names."""
    kept, added = (
        tuple(
            _kept(header, lambda name, file: index.weight_map.get(name, file) == file)
            for header in each
        )
        for each in (headers, others)
    )
    names = {piece.name for header in (*kept, *added) for piece in header.pieces}
    warnings = _warnings_of_copies(index, [*headers, *others])
    return ModelHeaders(kept, added, frozenset(names - index.weight_map.keys()), warnings)


def _listed_only(files: Files, index: ModelIndex, headers: Sequence[FileHeader]) -> ModelHeaders:
    kept = [
        _kept(header, lambda name, file: index.weight_map.get(name) == file) for header in headers
    ]
    omitted = [
        (piece.name, _file_name(header))
        for header in headers
        for piece in header.pieces
        if piece.name not in index.weight_map
    ]
    others = each_at_once(index.file.store, _tensors_of, files.unlisted)
    beside = list(zip(files.unlisted, others, strict=True))
    warnings = (
        *_warnings_of_copies(index, headers),
        *_warnings_of_omitted(index, omitted),
        *_warnings_of_files(index, beside),
    )
    return ModelHeaders(tuple(kept), warnings=warnings)


def _kept(header: FileHeader, keeps: Callable[[str, str], bool]) -> FileHeader:
    """A header with the tensors that are kept, by their names and that of the file; most files keep all."""
    file = _file_name(header)
    pieces = tuple(piece for piece in header.pieces if keeps(piece.name, file))
    return header if len(pieces) == len(header.pieces) else replace(header, pieces=pieces)


def _file_name(header: FileHeader) -> str:
    return header.path.rpartition("/")[2]


def _tensors_of(file: Location) -> tuple[StoredPiece, ...] | None:
    """The tensors of a file that is left out; None where it cannot be read."""
    try:
        return read_header(file).pieces
    except ReshardError:
        return None


def _warnings_of_copies(index: ModelIndex, headers: Sequence[FileHeader]) -> tuple[str, ...]:
    copies = [
        (piece.name, _file_name(header))
        for header in headers
        for piece in header.pieces
        if index.weight_map.get(piece.name, _file_name(header)) != _file_name(header)
    ]
    if not copies:
        return ()
    shown = [f"{n!r} from {index.weight_map[n]}, not {file}" for n, file in copies[:_MOST_SHOWN]]
    one = len(copies) == 1
    return (
        f"{_counted(len(copies), 'tensor')} {'is' if one else 'are'} in several files, and read from the one that {index.file} names: "
        f"{_some(shown, len(copies))}",
    )


def _warnings_of_omitted(index: ModelIndex, omitted: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    if not omitted:
        return ()
    shown = [f"{name!r} in {file}" for name, file in omitted[:_MOST_SHOWN]]
    return (
        f"{index.file} does not list {_counted(len(omitted), 'tensor')} of its files, left out here: "
        f"{_some(shown, len(omitted))}; {_TAKE}",
    )


def _warnings_of_files(
    index: ModelIndex, files: Sequence[tuple[Location, Sequence[StoredPiece] | None]]
) -> tuple[str, ...]:
    if not files:
        return ()
    shown = [f"{file.name} ({_held_text(pieces)})" for file, pieces in files[:_MOST_SHOWN]]
    return (
        f"{index.file} does not list {_counted(len(files), 'safetensors file')} beside it, left out here: "
        f"{_some(shown, len(files))}; {_TAKE}",
    )


def _held_text(pieces: Sequence[StoredPiece] | None) -> str:
    if pieces is None:
        return "not readable"
    names = [repr(piece.name) for piece in pieces[:_MOST_SHOWN]]
    return (
        f"{_counted(len(pieces), 'tensor')}: {_some(names, len(pieces))}"
        if pieces
        else "no tensors"
    )


def _some(shown: Sequence[str], count: int) -> str:
    more = f" and {count - len(shown):,} more" if count > len(shown) else ""
    return ", ".join(shown) + more


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
