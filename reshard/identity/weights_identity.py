"""WeightsIdentity: one root for the weights of a checkpoint, equal for every mesh, chunking, codec and format of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from reshard.answers.shared import Digest
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage
from reshard.errors import CorruptError
from reshard.formats.base import Reader
from reshard.formats.contents import Leaf
from reshard.formats.names import IDENTITY_NAME
from reshard.geometry.dtypes import VALUE_BITS
from reshard.identity.leaf_tree import contents_of, identity_entry, rest_of, root_of
from reshard.identity.read_leaves import tensor_hashes

_KEY_IMPLEMENTATION = "random_key_impl"


class TensorIdentity(Struct, frozen=True):
    """A tensor of an identity.

    Attributes:
        dtype: as numpy and ml_dtypes name it; of a PRNG key its implementation.
        crc64nvme: the digest that ``fingerprint`` records.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    top: Annotated[str, Meta(description="The hash of its tree, 64 hex digits.")]
    crc64nvme: Digest

    @property
    def entry(self) -> bytes:
        """The bytes that the root hashes for it besides its name."""
        return identity_entry(self.dtype, self.shape, bytes.fromhex(self.top))


class WeightsIdentity(Struct, frozen=True):
    """The identity of the weights of a checkpoint.

    Attributes:
        root: 64 hex digits, over the tensors by name.
        contents: the same without names, over each different tensor: equal after renames, and for tied weights.
        rest: digest of the leaves that are no tensors.
        tensors: by name, in the order of the names' bytes.
        nodes: by name, the hashes of each tensor's tree at its ``kept_level``.
    """

    root: str
    contents: str
    rest: str
    tensors: Mapping[str, TensorIdentity]
    nodes: Mapping[str, bytes]

    @classmethod
    def of(
        cls, tensors: Sequence[TensorIdentity], nodes: Mapping[str, bytes], rest: str
    ) -> WeightsIdentity:
        """The identity of tensors that were hashed."""
        tensors = sorted(tensors, key=lambda tensor: tensor.name.encode(errors="surrogatepass"))
        return cls(
            root_of((tensor.name, tensor.entry) for tensor in tensors).hex(),
            contents_of(tensor.entry for tensor in tensors).hex(),
            rest,
            {tensor.name: tensor for tensor in tensors},
            nodes,
        )


def identity_of(
    reader: Reader,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    stage: Stage = "reading",
) -> WeightsIdentity:
    """Reads every tensor once and makes the identity; errors as for ``tensor_hashes``."""
    hashes = tensor_hashes(reader, limits, progress, stage)
    dtypes = identity_dtypes(reader)
    tensors = [
        TensorIdentity(
            name, dtypes[name], reader.tensors[name].spec.shape, found.top.hex(), found.crc
        )
        for name, found in hashes.items()
    ]
    nodes = {name: found.nodes for name, found in hashes.items()}
    return WeightsIdentity.of(tensors, nodes, rest_of_leaves(reader.leaves))


def identity_dtypes(reader: Reader) -> dict[str, str]:
    """The dtype of each tensor as an identity has it: of a PRNG key its implementation."""
    keys = {leaf.name: leaf for leaf in reader.leaves if leaf.tensor}
    return {
        name: key_implementation(keys[name]) if stored.is_key else stored.spec.dtype
        for name, stored in reader.tensors.items()
    }


def key_implementation(leaf: Leaf) -> str:
    """The implementation of PRNG keys, which is their dtype in an identity."""
    metadata = leaf.meta.get("ext_metadata") or {}
    return str(metadata.get(_KEY_IMPLEMENTATION, "key"))


def rest_of_leaves(leaves: Sequence[Leaf]) -> str:
    """The digest of the leaves that are no tensors, 64 hex digits."""
    return rest_of((leaf.name, *_kind_and_value(leaf)) for leaf in leaves if not leaf.tensor).hex()


def _kind_and_value(leaf: Leaf) -> tuple[str, str]:
    if leaf.text is not None:
        return "string", leaf.text
    if leaf.is_object:
        return "object", str(leaf.meta["digest"])
    return leaf.value_type or "empty", ""


def check_identity_of(reader: Reader, found: WeightsIdentity) -> None:
    """Raises CorruptError where an identity that a checkpoint records is one of other tensors, or of other bytes than its digests."""
    dtypes = identity_dtypes(reader)
    stored = {name: (dtypes[name], tensor.spec.shape) for name, tensor in reader.tensors.items()}
    recorded = {name: (tensor.dtype, tensor.shape) for name, tensor in found.tensors.items()}
    for name in [*stored, *recorded]:
        if stored.get(name) != recorded.get(name):
            raise CorruptError(
                f"{IDENTITY_NAME} in {reader.uri!r} does not fit its tensors: it has {name!r} as {_said(recorded.get(name))}, and the "
                f"checkpoint has {_said(stored.get(name))}; make it anew with reshard identify --write, or remove it"
            )
    for name, tensor in reader.tensors.items():
        known = found.tensors[name].crc64nvme
        # Digests of types below 8 bits cover bits that are no part of the identity.
        if tensor.digest not in (None, known) and tensor.spec.dtype not in VALUE_BITS:
            raise CorruptError(
                f"{name!r} in {reader.uri!r} records the digest {tensor.digest}, but its {IDENTITY_NAME} has {known}: one of both is of "
                "other bytes; see which the tensor has with reshard verify, and make the identity anew with reshard identify --write"
            )


def changed_once_identified(uri: str, name: str, found: str, known: str) -> CorruptError:
    """The error where a tensor of a checkpoint has not the digest that its identity records."""
    return CorruptError(
        f"{name!r} in {uri!r} has digest {found}, but its {IDENTITY_NAME} has {known}: its bytes changed since it was "
        "identified; restore it from another copy, or make the identity anew with reshard identify --write"
    )


def _said(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if tensor is None else f"{tensor[0]} {list(tensor[1])}"
