"""What is shown of one checkpoint: its content, its split by a layout, its digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from reshard.documents.shared import Axes, Digest, MeshDocument, QuantizedText, Shape

AxisTypes = tuple[Literal["Auto", "Explicit", "Manual"], ...] | None


class RecordedMesh(MeshDocument, frozen=True):
    """A mesh with the recorded types of its axes and its devices."""

    axis_types: AxisTypes
    device_ids: tuple[int, ...] | None


class InspectedTensor(Struct, frozen=True):
    """A tensor of a checkpoint."""

    name: str
    item: str | None
    shape: Shape
    dtype: str
    nbytes: int
    chunk_shape: Shape | None
    chunks: int
    compressor: str
    level: int | None
    checksum: bool
    mesh: MeshDocument | None
    axes: Axes | None
    shards: Annotated[
        int, Meta(description="Number of different parts that the tensor was saved in.")
    ]
    partition: Annotated[
        Mapping[str, Any] | None,
        Meta(
            description="How it was split beyond mesh axes, if it was: strategy, axis, shards and partitioner."
        ),
    ]
    digest: Digest | None
    is_key: Annotated[bool, Meta(description="Whether it is a PRNG key.")]
    # A server of an older version leaves out what follows.
    largest_chunk: Annotated[
        Shape | None, Meta(description="Shape of the largest chunk, without its padding.")
    ] = None
    axis_order: Annotated[
        Shape,
        Meta(
            description="Axes as a chunk stores them, slowest first; empty if row-major. One more than it has: the bytes of an element."
        ),
    ] = ()
    is_gathered: Annotated[
        bool, Meta(description="Whether chunks are gathered from raw pieces of several files.")
    ] = False
    mesh_number: Annotated[
        int | None, Meta(description="Which of the checkpoint's meshes it was saved on.")
    ] = None


class ItemReport(Struct, frozen=True):
    """An item of a checkpoint."""

    name: str
    directory: str
    is_tree: bool
    handler: str | None


class LeafReport(Struct, frozen=True):
    """A leaf of a checkpoint's tree."""

    name: str
    item: str | None
    is_tensor: bool
    # A server of an older version leaves out what follows.
    kind: Annotated[
        str | None,
        Meta(description="What a value is that is not read, such as 20 strings; null for others."),
    ] = None
    shape: Annotated[Shape | None, Meta(description="Of a tensor of strings; null for others.")] = (
        None
    )


class Inspection(Struct, frozen=True):
    """What ``reshard inspect --json`` prints."""

    uri: str
    format: str
    style: Annotated[
        str | None,
        Meta(description="Orbax's form of the checkpoint, v0 or v1; null in other formats."),
    ]
    nbytes: int
    tensors: tuple[InspectedTensor, ...]
    items: tuple[ItemReport, ...]
    meshes: tuple[RecordedMesh, ...]
    leaves: tuple[LeafReport, ...]
    warnings: tuple[str, ...] = ()
    quantized: QuantizedText | UnsetType = UNSET


class LaidOutTensor(Struct, frozen=True):
    """How a layout splits a tensor; shape and bytes are the largest shard's."""

    source: str
    target: str
    shape: Shape
    dtype: str
    source_mesh: MeshDocument | None
    source_axes: Axes | None
    source_shards: Shape | None
    target_mesh: MeshDocument | None
    target_axes: Axes | None
    target_shards: Shape
    target_shard_shape: Shape
    target_shard_bytes: int
    partition: Mapping[str, Any] | None


class LayoutAnswer(Struct, frozen=True, kw_only=True):
    """What ``reshard layout --json`` prints; shapes and bytes are the largest shard's."""

    # Set by the command; a preview in Python has neither.
    file: Annotated[
        str | UnsetType | None,
        Meta(description="The stored layout's name, if the request names one."),
    ] = UNSET
    source: str | UnsetType = UNSET
    tensors: tuple[LaidOutTensor, ...]
    device_bytes: Annotated[int, Meta(description="Bytes on each device of the mesh.")]
    partitioned_bytes: Annotated[
        int, Meta(description="Bytes of tensors that are split by count or size instead.")
    ]
    warnings: tuple[str, ...] = ()


class TensorDigest(Struct, frozen=True):
    """The recorded digest of a tensor."""

    name: str
    digest: Digest


class IdentifiedTensor(Struct, frozen=True):
    """A tensor of an identity."""

    name: str
    dtype: str
    shape: Shape
    top: Annotated[str, Meta(description="The hash of its tree, 64 hex digits.")]
    crc64nvme: Digest


class SliceProofDocument(Struct, frozen=True):
    """The proof that a slice is part of a tensor of an identity."""

    root: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    top: str
    slice: Annotated[str, Meta(description="start:stop for each dimension.")]
    proof: Annotated[str, Meta(description="The hashes, in base64.")]


class IdentityAnswer(Struct, frozen=True):
    """What ``reshard identify --json`` and ``sign --json`` print."""

    uri: str
    root: Annotated[
        str, Meta(description="Over names, dtypes, shapes and bits of all tensors, 64 hex digits.")
    ]
    contents: Annotated[str, Meta(description="The same without names.")]
    rest: Annotated[str, Meta(description="Digest of the leaves that are no tensors.")]
    nbytes: int
    tensors: tuple[IdentifiedTensor, ...]
    written: tuple[str, ...]
    signer: Annotated[
        str | None, Meta(description="Id of the key that signed; null where none did.")
    ]
    seconds: float
    warnings: tuple[str, ...] = ()


class FingerprintAnswer(Struct, frozen=True):
    """What ``reshard fingerprint --json`` prints."""

    uri: str
    tensors: tuple[TensorDigest, ...]
    files: int
    nbytes: int
    written: tuple[str, ...]
    seconds: float
    warnings: tuple[str, ...] = ()
