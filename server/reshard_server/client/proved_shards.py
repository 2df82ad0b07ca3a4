"""Checks a shard file from a server by the root of its identity: every slice is the identity's, and none is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard import TensorIdentity, WeightsIdentity
from reshard.errors import FormatError, VerificationError
from reshard.formats.safetensors.slices import FileSlice, slices_of
from reshard.geometry.dtypes import storage_bytes
from reshard.identity.identity_file import hashed_dtype
from reshard.storage.location import locate
from reshard_server.client.proofs import WantedSlice, slice_with_proof

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MOST_HEADER_BYTES = 100 << 20
"""A little more than the format allows."""

_ASK = "find out who changed the checkpoint, or whether client and server have different versions"


def bounded(
    put: Callable[[bytes], object], known: WeightsIdentity, names: Iterable[str]
) -> Callable[[bytes], None]:
    """Passes on the bytes of a shard; VerificationError as soon as they exceed all of its tensors and a header."""
    most = MOST_HEADER_BYTES + sum(_nbytes(known.tensors[name]) for name in names)
    taken = 0

    def put_some(piece: bytes) -> None:
        nonlocal taken
        taken += len(piece)
        if taken > most:
            raise VerificationError(
                f"the server sent more than {most:,} bytes for a shard, though its tensors have fewer; {_ASK}"
            )
        put(piece)

    return put_some


def _nbytes(tensor: TensorIdentity) -> int:
    return math.prod(tensor.shape) * storage_bytes(hashed_dtype(tensor))


@dataclass(frozen=True)
class ShardFile:
    """A downloaded shard.

    Attributes:
        file: the safetensors file, as the server sent it.
        shown: its name in messages.
        names: the tensors that it must hold.
        fetch_proof: fetches the proof of a slice from the server, in base64; only for slices that have one.
        read: pulls a slice of a tensor, and checks it.
    """

    file: Path
    shown: str
    known: WeightsIdentity
    names: Collection[str]
    fetch_proof: Callable[[WantedSlice], str]
    read: Callable[[WantedSlice], Array]

    def check(self) -> None:
        """Checks the file; VerificationError if it contradicts the identity.

        A slice that cuts tiles of the identity has no proof: the smallest one around it that has one is pulled, and compared.
        """
        for name, found in self._slices().items():
            tensor = self.known.tensors[name]
            if found.box.size:
                self._check(slice_with_proof(tensor, found.box), found)

    def _slices(self) -> dict[str, FileSlice]:
        """The slices by name; each lies in its tensor."""
        try:
            header, found = slices_of(locate(str(self.file)))
        except FormatError as error:
            text = str(error).replace(str(self.file), self.shown)
            raise VerificationError(f"{text}; {_ASK}") from None
        silent = [piece.name for piece in header.pieces if piece.name not in found]
        if silent:
            raise self._wrong(silent[0], "says of no slice where it belongs")
        for name in self.names:
            if name not in found:
                raise self._wrong(name, "is not there")
        for name, one in found.items():
            if name not in self.names:
                raise self._wrong(name, "was not asked for, or is not in the identity")
            if (told := _misfit(one, self.known.tensors[name])) is not None:
                raise self._wrong(name, told)
        return dict(found)

    def _check(self, wanted: WantedSlice, found: FileSlice) -> None:
        import numpy as np

        piece = found.piece
        stored = np.memmap(self.file, np.uint8, "c", piece.offset, (piece.nbytes,))
        if wanted.aligned == wanted.box:
            wanted.checked(stored, self.fetch_proof(wanted))
            return
        right = np.ascontiguousarray(self.read(wanted)).reshape(-1).view(np.uint8)
        if not np.array_equal(right, stored):
            raise self._wrong(piece.name, f"holds other bytes at {wanted.box}")

    def _wrong(self, name: str, what: str) -> VerificationError:
        return VerificationError(
            f"the shard {self.shown} is not that of the identity {self.known.root}: {name!r} {what}; {_ASK}"
        )


def _misfit(found: FileSlice, tensor: TensorIdentity) -> str | None:
    """The mismatch of a slice and a tensor; None if it fits."""
    dtype, piece = hashed_dtype(tensor), found.piece
    if piece.dtype != dtype:
        return f"has the dtype {piece.dtype}, but expected is {dtype}"
    fits = len(found.offset) == len(piece.shape) == len(tensor.shape)
    if found.full_shape != tensor.shape or not fits:
        return f"is a slice of shape {list(piece.shape)} of {list(found.full_shape or ())}, but expected is one of {list(tensor.shape)}"
    if not all(
        start >= 0 and start + n <= size
        for start, n, size in zip(found.offset, piece.shape, tensor.shape, strict=True)
    ):
        return f"has a slice at {list(found.offset)} that reaches outside of {list(tensor.shape)}"
    return None
