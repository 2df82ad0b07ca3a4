"""Checks slices that a server sends by the root of their identity: neither the server nor its storage is trusted."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reshard import Box, TensorIdentity, WeightsIdentity
from reshard.errors import TreeError, VerificationError
from reshard.geometry.dtypes import PACKED, numpy_dtype, opaque_dtype, storage_bytes
from reshard.identity.hashes import HASH_BYTES
from reshard.identity.identity_file import hashed_dtype, parse_identity, tree_of_identity
from reshard.identity.slice_proof import aligned_slice, check_aligned, check_slice, proof_hashes
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
