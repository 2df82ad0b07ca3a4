"""CheckpointInfo: the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from msgspec import Meta, Struct

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.answers.shared import (
    Axes,
    AxisTypes,
    Digest,
    MeshDocument,
    QuantizedText,
    RecordedMesh,
    Shape,
)
from reshard.arithmetic.asked import quantized_text
from reshard.formats.base import Reader
from reshard.formats.contents import Item, Leaf, StoredTensor
from reshard.formats.lacks import record_warnings, unprotected
from reshard.formats.quantized import bare_warnings, quantization
from reshard.geometry.sizes import format_bytes
from reshard.layout.axes import show_axes
from reshard.layout.device_mesh import DeviceMesh


class TensorInfo(Record, frozen=True, kw_only=True):
    """A tensor of a checkpoint.

    Attributes:
        partition: ``strategy`` ("div" and "mod" for a ShardedVariable, else the kind of partition that a layout file names), ``axis``,
            number of ``shards``, and the ``partitioner`` of a ShardedVariable.
        shards: 1 if nothing else is recorded.
        spec, encoding: the tensor and its storage in detail; None where a server tells it.
    """

    JSON: ClassVar[Json] = Json(
        (
            "name", "item", "shape", "dtype", "nbytes", "chunk_shape", "chunks", "compressor", "level", "checksum", "mesh",
            "axes", "shards", "partition", "digest", "is_key", "largest_chunk", "axis_order", "is_gathered", "mesh_number",
        ),
        later=("largest_chunk", "axis_order", "is_gathered", "mesh_number"),
    )  # fmt: skip

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
    spec: Any = None
    encoding: Any = None

    @classmethod
    def of(cls, stored: StoredTensor, item: str = "", mesh_number: int | None = None) -> TensorInfo:
        """The record of a stored tensor; ``mesh_number`` as in the answer."""
        spec, encoding, partition = stored.spec, stored.encoding, stored.partition
        shards = (partition or {}).get("shards")
        return cls(
            name=spec.name,
            item=item,
            shape=spec.shape,
            dtype=spec.dtype,
            nbytes=spec.nbytes,
            chunk_shape=spec.chunk_shape,
            chunks=spec.storage.count,
            compressor=encoding.compressor,
            level=encoding.level,
            checksum=encoding.checksum,
            mesh=spec._mesh_document,
            axes=spec._axes,
            shards=shards if isinstance(shards, int) else spec.slices.count,
            partition=partition,
            digest=stored.digest,
            is_key=stored.is_key,
            largest_chunk=spec.storage.largest,
            axis_order=encoding.axis_order,
            is_gathered=encoding.gathered != "no",
            mesh_number=mesh_number,
            spec=spec,
            encoding=encoding,
        )

    def __repr__(self) -> str:
        axes = "" if self.axes is None else f" {show_axes(self.axes)}"
        return f"TensorInfo({self.name!r}: {self.dtype} {list(self.shape)}{axes})"


class LeafInfo(Struct, frozen=True):
    """A leaf of a checkpoint's tree."""

    JSON: ClassVar[Json] = Json(later=("kind", "shape"))

    name: str
    item: str | None
    is_tensor: bool
    kind: Annotated[
        str | None,
        Meta(description="What a value is that is not read, such as 20 strings; null for others."),
    ] = None
    shape: Annotated[Shape | None, Meta(description="Of a tensor of strings; null for others.")] = (
        None
    )

    @classmethod
    def of(cls, leaf: Leaf) -> LeafInfo:
        """The record of a leaf."""
        kind = leaf.kind if leaf.is_object else None
        shape = leaf.carried.shape if leaf.carried is not None else ()
        return cls(leaf.name, leaf.item, leaf.tensor, kind, shape or None)


class CheckpointInfo(Record, frozen=True, kw_only=True):
    """The content of a checkpoint, from its metadata alone.

    Attributes:
        nbytes: of all tensors, decoded.
        tensors: by name, in the tree's order.
        items: such as ``model`` and ``metrics``.
        meshes: the different meshes that tensors were saved on, in order of appearance.
        leaves: every leaf, tensors included, in the tree's order.
        warnings: one sentence each.
        quantized: "" for none.
    """

    JSON: ClassVar[Json] = Json(left_out=("quantized",), listed=("tensors",), later=("warnings",))

    uri: str
    format: str
    style: Annotated[
        str | None,
        Meta(description="Orbax's form of the checkpoint, v0 or v1; null in other formats."),
    ]
    nbytes: int
    tensors: Mapping[str, TensorInfo]
    items: tuple[Item, ...]
    meshes: tuple[RecordedMesh, ...]
    leaves: tuple[LeafInfo, ...]
    warnings: tuple[str, ...] = ()
    quantized: QuantizedText = ""

    def __repr__(self) -> str:
        size = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(self.nbytes)}"
        on = f", saved on {', '.join(map(str, self.device_meshes))}" if self.meshes else ""
        headline = f"{self.uri!r}: {self.format_and_style}, {size}{on}"
        parts = list(self.tensors.values())
        return several("CheckpointInfo", headline, parts, warned(self.warnings))

    @property
    def device_meshes(self) -> tuple[DeviceMesh, ...]:
        """The meshes as layouts and ``convert`` take them."""
        return tuple(
            DeviceMesh(m.shape, m.axes, axis_types=m.axis_types, device_ids=m.device_ids)
            for m in self.meshes
        )

    @property
    def format_and_style(self) -> str:
        """``orbax v1``, or the name of a format without styles."""
        return f"{self.format} {self.style}" if self.style else self.format


def describe(reader: Reader) -> CheckpointInfo:
    """The information of an open checkpoint."""
    stored = {leaf.name: reader.tensors[leaf.name] for leaf in reader.leaves if leaf.tensor}
    items = {leaf.name: leaf.item for leaf in reader.leaves if leaf.tensor}
    layouts = {name: tensor.spec.layout for name, tensor in stored.items()}
    meshes = {name: found.device_mesh for name, found in layouts.items() if found is not None}
    numbers = {m: n for n, m in enumerate(dict.fromkeys(filter(None, meshes.values())))}
    number_of = {name: numbers[mesh] for name, mesh in meshes.items() if mesh is not None}
    tensors = {
        name: TensorInfo.of(tensor, items[name], number_of.get(name))
        for name, tensor in stored.items()
    }
    quantized = quantization(reader)
    return CheckpointInfo(
        uri=reader.uri,
        format=reader.format,
        style=reader.container.style,
        nbytes=sum(tensor.nbytes for tensor in tensors.values()),
        tensors=tensors,
        items=reader.container.items,
        meshes=tuple(
            RecordedMesh(m.axis_names, m.shape, cast("AxisTypes", m.axis_types), m.device_ids)
            for m in numbers
        ),
        leaves=tuple(map(LeafInfo.of, reader.leaves)),
        warnings=(
            *reader.warnings,
            *bare_warnings(quantized),
            *record_warnings(unprotected(reader)),
        ),
        quantized=quantized_text(reader, quantized),
    )


def recorded_identity(path: str) -> dict[str, Any] | None:
    """The root and the signers recorded beside weights, for pages; not verified. None without an identity.

    ``root`` is null if ``identity.json`` cannot be read; ``problem`` says why it, or the signature, cannot.
    """
    from reshard.errors import ReshardError
    from reshard.identity.envelope import recorded_signers
    from reshard.identity.identity_file import read_identity
    from reshard.storage.location import locate

    folder = locate(path).view()
    root: str | None = None
    try:
        found = read_identity(folder)
        if found is None:
            return None
        root = found.root
        return {"root": root, "signers": recorded_signers(folder), "problem": ""}
    except ReshardError as error:
        return {"root": root, "signers": (), "problem": str(error)}
