"""Reads a checkpoint once for its identity, and writes the files of the identity, signed or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, field
from msgspec.structs import replace

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.missing_chunks import filled_chunks, missing_warnings
from reshard.formats.record_names import IDENTITY_NAME, SIGNATURE_NAME, TREE_NAME
from reshard.formats.registry import open_reader
from reshard.geometry.sizes import format_bytes
from reshard.identity.envelope import SignedAs, signed_envelope
from reshard.identity.identity_file import render_identity, render_tree
from reshard.identity.identity_place import outdated_files, prepare_place
from reshard.identity.keys import PrivateKey
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity, identity_of
from reshard.storage.location import Location


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
