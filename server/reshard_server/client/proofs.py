"""Checks slices and shard files that a server sends by the root of their identity.

Neither the server nor its storage is trusted. Every slice of a shard file is the identity's, and none is missing.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard import Box, TensorIdentity, WeightsIdentity
from reshard.errors import FormatError, TreeError, VerificationError
from reshard.formats.safetensors.slices import FileSlice, slices_of
from reshard.geometry.dtypes import PACKED, numpy_dtype, opaque_dtype, storage_bytes
from reshard.identity.identity_file import hashed_dtype, parse_identity, tree_of_identity
from reshard.identity.leaf_tree import HASH_BYTES
from reshard.identity.slice_proof import aligned_slice, check_aligned, check_slice, proof_hashes
from reshard.storage.location import locate
from reshard.streaming.tensor_stream import slice_box
from reshard_server.client.transport import Transport

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LONGEST_IDENTITY = 256 << 20
"""An identity of 30,000 tensors has 10 MB."""

_PROOF_BESIDES = 64 << 10
"""Room for the other members of an answer with a proof."""


def fetched_identity(transport: Transport, asked: Mapping[str, Any], root: str) -> WeightsIdentity:
    """The identity with this root, as the server's checkpoint records it; VerificationError for another."""
    where = f"the identity of {asked['checkpoint']} at this server"
    found = parse_identity(
        _bounded_answer(transport, "/v1/tensors/identity", asked, LONGEST_IDENTITY, where), where
    )
    if found.root != root:
        raise VerificationError(
            f"{where} has the root {found.root}, but expected is {root}; ask for the checkpoint that has it, or find out who changed this one"
        )
    return found


@dataclass(frozen=True)
class WantedSlice:
    """A slice to pull, and its tensor in the identity.

    Attributes:
        box: the requested slice.
        aligned: the slice to pull: the smallest one around ``box`` that has a proof.
    """

    tensor: TensorIdentity
    box: Box
    aligned: Box

    @property
    def text(self) -> str:
        """The slice to pull, as the API writes it."""
        return str(self.aligned)[1:-1].replace(" ", "")

    @property
    def nbytes(self) -> int:
        """Bytes of the slice to pull."""
        return self.aligned.size * storage_bytes(hashed_dtype(self.tensor))

    @property
    def proof_bytes(self) -> int:
        """Bytes of its proof."""
        return HASH_BYTES * proof_hashes(tree_of_identity(self.tensor), self.aligned)

    def bounded(self, taken: bytearray) -> Callable[[bytes], None]:
        """Puts pieces into ``taken``; VerificationError as soon as there are more bytes than the slice has."""

        def put(piece: bytes) -> None:
            if len(taken) + len(piece) > self.nbytes:
                raise self._other_size(f"more than {self.nbytes:,}")
            taken.extend(piece)

        return put

    def checked(self, taken: bytearray | Array, proof: str) -> Array:
        """The requested slice; VerificationError if it is not that of the identity.

        Args:
            taken: the bytes of the aligned slice; bits that do not count are cleared in place.
        """
        import numpy as np

        if len(taken) != self.nbytes:
            raise self._other_size(f"{len(taken):,}")
        try:
            hashes = base64.b64decode(proof, validate=True)
        except (binascii.Error, ValueError) as error:
            raise VerificationError(
                f"the proof of the slice {self.aligned} of {self.tensor.name!r} is not base64 ({error}); check that client and server "
                "have the same version"
            ) from None
        dtype = hashed_dtype(self.tensor)
        elements: Array = np.frombuffer(taken, opaque_dtype(storage_bytes(dtype)))
        elements = elements.reshape(self.aligned.shape)
        tree = tree_of_identity(self.tensor)
        check_slice(self.tensor.name, tree, self.aligned, elements, dtype, hashes, self.tensor.top)
        cut = np.ascontiguousarray(elements[self.box.relative_to(self.aligned.start).slices])
        if dtype in PACKED:  # numpy has no such type
            *rows, last = cut.shape
            return cut.reshape(-1).view(np.uint8).reshape(*rows, last * cut.itemsize)
        return cut.view(numpy_dtype(dtype)).reshape(self.box.shape)

    def _other_size(self, found: str) -> VerificationError:
        return VerificationError(
            f"the server sent {found} bytes for the slice {self.aligned} of {self.tensor.name!r}; expected {self.nbytes:,}, as the "
            "identity says; find out who changed the checkpoint"
        )


def wanted_slice(known: WeightsIdentity, name: str, part: str | None) -> WantedSlice:
    """The slice to pull; TreeError for a tensor that the identity lacks, LayoutError for a slice outside of it or an empty one."""
    tensor = known.tensors.get(name)
    if tensor is None:
        raise TreeError(
            f"the identity {known.root} has no tensor {name!r}; it has {len(known.tensors)}"
        )
    return slice_with_proof(tensor, slice_box(name, tensor.shape, part))


def slice_with_proof(tensor: TensorIdentity, box: Box) -> WantedSlice:
    """The smallest slice around a box of a tensor that has a proof; LayoutError for an empty box."""
    tree = tree_of_identity(tensor)
    aligned = aligned_slice(tree, box)
    check_aligned(tensor.name, tree, aligned)
    return WantedSlice(tensor, box, aligned)


def fetched_proof(transport: Transport, query: Mapping[str, Any], wanted: WantedSlice) -> str:
    """The proof of a slice, in base64; VerificationError for an answer that is longer than its proof may be."""
    what = f"the proof of the slice {wanted.aligned} of {wanted.tensor.name!r}"
    data = _bounded_answer(
        transport, "/v1/tensors/proof", query, 2 * wanted.proof_bytes + _PROOF_BESIDES, what
    )
    try:
        proof = json.loads(data)["proof"]
    except (ValueError, RecursionError, KeyError, TypeError):
        proof = None
    if not isinstance(proof, str):
        raise VerificationError(
            f"{what} was not answered with a proof; check that client and server have the same version"
        )
    return proof


def _bounded_answer(
    transport: Transport, path: str, query: Mapping[str, Any], most_bytes: int, what: str
) -> bytes:
    found = bytearray()
    with transport.stream(path, params=query) as answer:
        for piece in answer.iter_raw():
            found += piece
            if len(found) > most_bytes:
                raise VerificationError(
                    f"{what} has more than {most_bytes:,} bytes; check that the URL is that of a reshard server"
                )
    return bytes(found)


MOST_HEADER_BYTES = 100 << 20
"""A little more than the format allows."""

_ASK = "find out who changed the checkpoint, or whether client and server have different versions"


def bounded(
    put: Callable[[bytes], object], known: WeightsIdentity, names: Iterable[str]
) -> Callable[[bytes], None]:
    """Passes on the bytes of a shard; VerificationError as soon as they exceed all of its tensors and a header."""
    tensors = [known.tensors[name] for name in names]
    nbytes = sum(math.prod(t.shape) * storage_bytes(hashed_dtype(t)) for t in tensors)
    most = MOST_HEADER_BYTES + nbytes
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
