"""CheckpointInfo: the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import UNSET

from reshard.documents.checkpoints import (
    AxisTypes,
    InspectedTensor,
    Inspection,
    ItemReport,
    LeafReport,
    RecordedMesh,
)
from reshard.formats.base import Reader
from reshard.formats.checksum_warnings import record_warnings, unprotected
from reshard.formats.contents import Container, Item, Leaf, Style
from reshard.formats.encoding import Encoding
from reshard.formats.quantized.pairs import bare_warnings, quantization
from reshard.geometry.sizes import format_bytes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_spec import TensorSpec
from reshard.record import Record, counted, several, warned


class TensorInfo(Record, frozen=True):
    """One tensor: its spec, its storage, and its recorded digest, if any.

    Attributes:
        partition: its split beyond mesh axes, if any: ``strategy`` ("div" and "mod" for a ShardedVariable, else
            the kind of partition that a layout file names), ``axis``, number of ``shards``, and the ``partitioner`` of a
            ShardedVariable.
    """

    spec: TensorSpec
    encoding: Encoding
    digest: str | None
    is_key: bool
    item: str
    partition: Mapping[str, Any] | None = None

    @property
    def shards(self) -> int:
        """Number of different parts in which the tensor was saved; 1 if nothing else is recorded."""
        recorded = (self.partition or {}).get("shards")
        return recorded if isinstance(recorded, int) else self.spec.slices.count

    def __repr__(self) -> str:
        return f"TensorInfo{repr(self.spec).removeprefix('TensorSpec')}"

    def _document(self, mesh_number: int | None = None) -> InspectedTensor:
        spec, encoding = self.spec, self.encoding
        return InspectedTensor(
            name=spec.name,
            item=self.item,
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
            shards=self.shards,
            partition=self.partition,
            digest=self.digest,
            is_key=self.is_key,
            largest_chunk=spec.storage.largest,
            axis_order=encoding.axis_order,
            is_gathered=encoding.gathered != "no",
            mesh_number=mesh_number,
        )


class CheckpointInfo(Record, frozen=True):
    """A checkpoint's content, from its metadata alone.

    Attributes:
        tensors: by name, in the tree's order.
        leaves: every leaf, tensors included, in the tree's order.
        warnings: one sentence each.
        quantized: the weights that are codes with scales, in words; "" for none.
    """

    uri: str
    format: str
    container: Container
    tensors: Mapping[str, TensorInfo]
    leaves: tuple[Leaf, ...]
    warnings: tuple[str, ...] = ()
    quantized: str = ""

    def __repr__(self) -> str:
        size = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(self.nbytes)}"
        on = f", saved on {', '.join(map(str, self.meshes))}" if self.meshes else ""
        headline = f"{self.uri!r}: {self.format_and_style}, {size}{on}"
        parts = list(self.tensors.values())
        return several("CheckpointInfo", headline, parts, warned(self.warnings))

    def _document(self) -> Inspection:
        numbers = {mesh: number for number, mesh in enumerate(self.meshes)}
        return Inspection(
            uri=self.uri,
            format=self.format,
            style=self.style,
            nbytes=self.nbytes,
            tensors=tuple(t._document(_number(t.spec, numbers)) for t in self.tensors.values()),
            items=tuple(ItemReport(i.name, i.directory, i.is_tree, i.handler) for i in self.items),
            meshes=tuple(
                RecordedMesh(m.axis_names, m.shape, cast("AxisTypes", m.axis_types), m.device_ids)
                for m in numbers
            ),
            leaves=tuple(map(_leaf_report, self.leaves)),
            warnings=self.warnings,
            quantized=self.quantized or UNSET,
        )

    @property
    def style(self) -> Style | None:
        """Orbax's form of the container, ``v0`` or ``v1``; None in other formats."""
        return self.container.style

    @property
    def format_and_style(self) -> str:
        """``orbax v1``, or the name of a format without styles."""
        return f"{self.format} {self.style}" if self.style else self.format

    @property
    def items(self) -> tuple[Item, ...]:
        """The items of the checkpoint, such as ``model`` and ``metrics``."""
        return self.container.items

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, decoded."""
        return sum(t.spec.nbytes for t in self.tensors.values())

    @property
    def meshes(self) -> tuple[DeviceMesh, ...]:
        """The different meshes that tensors were saved on, in order of appearance."""
        found = (
            t.spec.layout.device_mesh for t in self.tensors.values() if t.spec.layout is not None
        )
        return tuple(dict.fromkeys(m for m in found if m is not None))


def _leaf_report(leaf: Leaf) -> LeafReport:
    kind = leaf.kind if leaf.is_object else None
    shape = leaf.carried.shape if leaf.carried is not None else ()
    return LeafReport(leaf.name, leaf.item, leaf.tensor, kind, shape or None)


def _number(spec: TensorSpec, numbers: Mapping[DeviceMesh, int]) -> int | None:
    mesh = spec.layout and spec.layout.device_mesh
    return numbers[mesh] if mesh else None


def describe(reader: Reader) -> CheckpointInfo:
    """The information of an open checkpoint."""
    tensors = {
        leaf.name: TensorInfo(
            tensor.spec, tensor.encoding, tensor.digest, tensor.is_key, leaf.item, tensor.partition
        )
        for leaf in reader.leaves
        if leaf.tensor
        for tensor in [reader.tensors[leaf.name]]
    }
    quantized = quantization(reader)
    return CheckpointInfo(
        reader.uri,
        reader.format,
        reader.container,
        tensors,
        tuple(reader.leaves),
        (*reader.warnings, *bare_warnings(quantized), *record_warnings(unprotected(reader))),
        "" if quantized is None else quantized.text,
    )
