"""Reads a checkpoint once for its identity, writes its files, signed or not, and finds the identity that a caller expects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, field
from msgspec.structs import replace

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.errors import CorruptError, FormatError, MissingError, PlanError, VerificationError
from reshard.formats.lacks import filled_chunks, missing_warnings
from reshard.formats.names import (
    IDENTITY_NAME,
    PROBE_NAME,
    RECEIPT_NAME,
    SHA256_NAME,
    SIGNATURE_NAME,
    TREE_NAME,
)
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.safe_json import checked_text, read_bytes
from reshard.geometry.sizes import format_bytes
from reshard.identity.envelope import SignedAs, recorded_signature, signed_envelope
from reshard.identity.identity_file import (
    folder_of_identity,
    read_identity,
    render_identity,
    render_tree,
)
from reshard.identity.keys import PrivateKey
from reshard.identity.leaf_tree import checked_root, is_root
from reshard.identity.receipt import read_receipt
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity, identity_of
from reshard.storage.location import Location, locate


class Identification(Record, frozen=True):
    """The identity of a checkpoint's weights.

    Attributes:
        root: equal for every mesh, chunking, codec and format of the same weights.
        rest: not every format has a place for these leaves.
        tensors: by name.
        nodes: by name, the hashes of each tensor's tree that ``identity.tree`` keeps, 32 bytes each.
        nbytes: decoded bytes of all tensors.
        written: the files that were written.
        seconds: wall time.
        signer: the SHA-256 of the public key's DER.
        warnings: a sentence each.
    """

    JSON: ClassVar[Json] = Json(
        ("uri", "root", "contents", "rest", "nbytes", "tensors", "written", "signer", "seconds", "warnings"),
        listed=("tensors",),
        later=("warnings",),
    )  # fmt: skip

    uri: str
    root: Annotated[
        str, Meta(description="Over names, dtypes, shapes and bits of all tensors, 64 hex digits.")
    ]
    contents: Annotated[str, Meta(description="The same without names.")]
    rest: Annotated[str, Meta(description="Digest of the leaves that are no tensors.")]
    tensors: Mapping[str, TensorIdentity]
    nodes: Mapping[str, bytes] = field(default_factory=dict)  # a server sends none
    nbytes: int = 0
    written: tuple[str, ...] = ()
    seconds: float = 0.0
    signer: Annotated[
        str | None, Meta(description="Id of the key that signed; null where none did.")
    ] = None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(self.nbytes)}"
        headline = f"{self.uri!r}: {size} in {self.seconds:.1f} s"
        lines = [f"root: {self.root}", *(f"written: {path!r}" for path in self.written)]
        return several("Identification", headline, (), [*lines, *warned(self.warnings)])


def identify_checkpoint(
    chosen: CheckpointPath,
    limits: Limits,
    place: Location | None,
    key: PrivateKey | None = None,
    progress: Callable[[Progress], None] | None = None,
    said: SignedAs = SignedAs(),  # noqa: B008  frozen
) -> Identification:
    """Reads every tensor, and writes the files of the identity into the folder ``place``; see ``reshard.identify`` and ``sign``."""
    started = time.monotonic()
    check_leaves_to_read(limits.max_memory, chosen)
    reader = open_reader(chosen)
    limits = replace(limits, max_memory=left_to_read(limits.max_memory, reader))
    if place is not None:
        prepare_place(place)  # not before the checkpoint is found
    found = identity_of(reader, limits, progress)
    missing = missing_warnings(reader.uri, filled_chunks(reader))
    written, removed = ([], []) if place is None else write_identity(place, found, key, said)
    return Identification(
        chosen.path,
        found.root,
        found.contents,
        found.rest,
        found.tensors,
        found.nodes,
        sum(stored.spec.nbytes for stored in reader.tensors.values()),
        tuple(map(str, written)),
        time.monotonic() - started,
        None if key is None else key.id,
        (*reader.warnings, *missing, *removed),
    )


def write_identity(
    place: Location,
    found: WeightsIdentity,
    key: PrivateKey | None = None,
    said: SignedAs = SignedAs(),  # noqa: B008  frozen
) -> tuple[list[Location], list[str]]:
    """Writes the files of an identity, the signature last; each appears by one rename.

    Files of an earlier identity that do not fit this one are removed. Returns the files, and a warning for each that was removed.
    """
    files = {TREE_NAME: render_tree(found), IDENTITY_NAME: render_identity(found)}
    if key is not None:
        files[SIGNATURE_NAME] = signed_envelope(found, key, said)
    removed = {}
    for name, why in list(outdated_files(place, found.root)):
        (place / name).remove()
        removed[name] = f"removed {place / name}: {why}"
    for name, data in files.items():
        (place / name).replace(data)
    return [place / name for name in files], [w for n, w in removed.items() if n not in files]


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
    """True if a file is there that has 64 hex digits by name, as ``streaming/tensor_stream.py`` writes it."""
    if not file.exists():
        return False
    try:
        found = msgspec.json.decode(checked_text(read_bytes(file), str(file)), type=dict[str, str])
    except (FormatError, msgspec.DecodeError):
        return False
    return all(map(is_root, found.values()))


def expected_weights(
    identity: str | Identification | WeightsIdentity, root: str | None, *, with_tree: bool
) -> WeightsIdentity:
    """The identity that weights must have.

    Args:
        identity: the folder of an ``identity.json``, or that file, as a path.
        with_tree: true if its nodes are needed; an identity that is given keeps those that it has.

    Raises PlanError for a root that is none, MissingError where a folder has none, VerificationError where its root is not the given
    one, and the errors of reading the files.
    """
    root = None if root is None else checked_root("root", root)
    if isinstance(identity, WeightsIdentity):
        where, found = "the identity", identity
    elif isinstance(identity, Identification):
        where = f"the identity of {identity.uri}"
        found = WeightsIdentity(
            identity.root, identity.contents, identity.rest, identity.tensors, identity.nodes
        )
    else:
        folder = folder_of_identity(identity)
        where = str(folder / IDENTITY_NAME)
        read = read_identity(folder, with_tree=with_tree)
        if read is None:
            raise MissingError(
                f"{where} does not exist: expected a folder with the files of an identity; reshard identify --out writes them"
            )
        found = read
    if root not in (None, found.root):
        raise VerificationError(
            f"{where} has the root {found.root}, but expected is {root}; take the files that belong to that root"
        )
    return found
