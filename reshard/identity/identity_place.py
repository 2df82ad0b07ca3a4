"""The folder into which the files of an identity are written: files that it may have, that are replaced, or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from reshard.errors import CorruptError, FormatError, PlanError
from reshard.formats.json.safe_json import checked_text, read_bytes
from reshard.formats.record_names import (
    IDENTITY_NAME,
    PROBE_NAME,
    RECEIPT_NAME,
    SHA256_NAME,
    SIGNATURE_NAME,
)
from reshard.identity.envelope import recorded_signature
from reshard.identity.hashes import is_root
from reshard.identity.identity_file import read_identity
from reshard.identity.receipt import read_receipt
from reshard.storage.location import Location, locate

_OTHER = "it was of other weights"
_UNREADABLE = "it could not be read"
_REMEDY = "move it away, or name another folder (out)"


def place_for(checkpoint: str, *, write: bool, out: str | None) -> Location | None:
    """The place for the files of an identity: the checkpoint, or a folder; None for nowhere.

    Raises PlanError for a checkpoint that is one file or several below a name, which has no place for them.
    """
    if write and out is not None:
        raise PlanError(
            "the files of the identity are written into the checkpoint (write) or into a folder (out); ask for one of both"
        )
    if out is not None:
        return locate(out)
    if not write:
        return None
    root = locate(checkpoint)
    if not root.is_folder():
        raise PlanError(
            f"{checkpoint} is no folder, so that it has no place for the files of an identity; name a folder for them (out)"
        )
    return root


def prepare_place(place: Location) -> None:
    """Makes the folder, and tests on a disk that files can be written there, before hours of reading.

    Raises FormatError where another program or a newer version wrote files of these names; damaged files are replaced.
    StorageError where nothing can be written.
    """
    for name, read in _READERS.items():
        try:
            if (place / name).exists():
                read(place)
        except CorruptError:
            continue
        except FormatError as error:
            raise FormatError(f"{str(error).rsplit('; ', 1)[0]}; {_REMEDY}") from None
    place.make_folder(PROBE_NAME)


def refuse_other_sha256(place: Location) -> None:
    """Raises FormatError where ``sha256.json`` would be replaced, and is something else."""
    file = place / SHA256_NAME
    if file.exists() and not _is_sha256(file):
        raise FormatError(
            f"{file} is not the SHA-256s of tensors: expected 64 hex digits by name; {_REMEDY}"
        )


def outdated_files(place: Location, root: str) -> Iterator[tuple[str, str]]:
    """The files beside an identity that are of weights with another root, or cannot be read, each with the reason."""
    for name in (SIGNATURE_NAME, RECEIPT_NAME):
        why = _why(place, name, root)
        if why:
            yield name, why
    # It names no root: it belongs to the weights of the identity beside it.
    if _why(place, IDENTITY_NAME, root) and _is_sha256(place / SHA256_NAME):
        yield SHA256_NAME, _OTHER


def _why(place: Location, name: str, root: str) -> str:
    """The reason why a file does not belong to a root; "" where it does, or is not there."""
    try:
        if not (place / name).exists():
            return ""
        return "" if _READERS[name](place) == root else _OTHER
    except FormatError:
        return _UNREADABLE


def _identified(place: Location) -> str:
    found = read_identity(place)
    return "" if found is None else found.root


def _signed(place: Location) -> str:
    found = recorded_signature(place)
    return "" if found is None else found.root


_READERS: dict[str, Callable[[Location], str]] = {
    IDENTITY_NAME: _identified,
    SIGNATURE_NAME: _signed,
    RECEIPT_NAME: lambda place: read_receipt(place).target,
}
"""Functions that read the root of each file in a folder."""


def _is_sha256(file: Location) -> bool:
    """True if a file is there that has 64 hex digits by name, as ``streaming/sha256.py`` writes it."""
    if not file.exists():
        return False
    try:
        found = msgspec.json.decode(checked_text(read_bytes(file), str(file)), type=dict[str, str])
    except (FormatError, msgspec.DecodeError):
        return False
    return all(map(is_root, found.values()))
