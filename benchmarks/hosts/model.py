"""A model of any number of parameters, as the metadata of an Orbax checkpoint in a bucket: nothing is stored.

64 layers of attention and 256 experts, in bfloat16. Training shards every kernel over two axes; serving splits experts over one
axis and kernels over the other. There is about one device for 1e9 parameters, from 8 to
8,192.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from reshard.formats.codecs import read_ahead
from reshard.formats.contents import Container, Encoding, Extent, Item, Leaf, PathKey, StoredTensor
from reshard.formats.slices.kept_metadata import NO_METADATA
from reshard.geometry.grid import Index
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate

LAYERS, EXPERTS = 64, 256
SOURCE = "gs://training/run/100/default"
COMPRESSED = 0.83
"""Share of a chunk's bytes that zstd leaves of normally distributed weights (measured: 1,883 MiB of 2,144)."""

Kernel = tuple[str, tuple[int, ...], tuple[str | None, ...]]


class Model:
    """Shapes, and the meshes on which the model is trained and served."""

    def __init__(self, parameters: float) -> None:
        per_square = LAYERS * (4 + 3 * EXPERTS / 4)
        self.width = max(128, round(math.sqrt(parameters / per_square) / 128) * 128)
        self.devices = 2 ** min(13, max(3, round(math.log2(max(1, parameters) / 1e9))))

    @property
    def parameters(self) -> int:
        """How many there are, since widths are round numbers."""
        return LAYERS * sum(math.prod(shape) for _, shape, _ in self._kernels())

    @property
    def training(self) -> DeviceMesh:
        """Two axes, the first as long as the second, or twice as long."""
        model = 2 ** (int(math.log2(self.devices)) // 2)
        return DeviceMesh((self.devices // model, model), ("fsdp", "model"))

    @property
    def serving_layout(self) -> dict[str, object]:
        """A layout file: experts over one axis, columns over the other."""
        experts = min(EXPERTS, self.devices // 8)
        return {
            "mesh": {"axes": ["expert", "model"], "shape": [experts, self.devices // experts]},
            "rules": [
                {"match": "experts", "axes": ["expert", None, "model"]},
                {"match": "attention", "axes": [None, "model"]},
            ],
        }

    def specs(self) -> Iterator[TensorSpec]:
        """Its tensors as training stored them: a chunk for each shard."""
        mesh = self.training
        for layer in range(LAYERS):
            for kernel, shape, axes in self._kernels():
                name = f"params/layers_{layer}/{kernel}"
                layout = TensorLayout(axes, mesh)
                chunk = layout.shard_shape(shape)
                yield TensorSpec(name, shape, "bfloat16", layout.grid(shape), chunk, layout)

    def _kernels(self) -> list[Kernel]:
        d = self.width
        square = [f"attention/{name}/kernel" for name in ("query", "key", "value", "out")]
        expert = [f"experts/{name}/kernel" for name in ("up", "gate", "down")]
        return [
            *((name, (d, d), ("fsdp", "model")) for name in square),
            *((name, (EXPERTS, d, d // 4), ("model", "fsdp", None)) for name in expert),
        ]


class ModelReader:
    """The open checkpoint: OCDBT databases, one for each host of eight devices, whose index is in memory."""

    uri = SOURCE
    format = "orbax"
    conversion = ""
    made = None
    metadata = NO_METADATA

    def __init__(self, model: Model) -> None:
        encoding = read_ahead(Encoding("zstd", 1), locate(SOURCE).store)
        self.tensors = {
            spec.name: StoredTensor(spec, encoding, bytes(2), may_be_missing=False)
            for spec in model.specs()
        }
        self.leaves = [Leaf(name, tuple(map(PathKey, name.split("/")))) for name in self.tensors]
        self.container = Container("v0", (Item("", "", is_tree=True),))
        self._files = [
            f"{SOURCE}/ocdbt.process_{host}/d/{host:032x}" for host in range(model.devices // 8)
        ]

    @property
    def metadata_bytes(self) -> int:
        """About 200 bytes of index for each chunk."""
        return 200 * sum(tensor.spec.storage.count for tensor in self.tensors.values())

    def locate(self, name: str, index: Index) -> Extent:
        """Somewhere in the database of the host that holds the chunk."""
        spec = self.tensors[name].spec
        number = _number(index, spec.storage.parts)
        length = int(spec.chunk_bytes * COMPRESSED)
        return Extent(self._files[number % len(self._files)], number * length, length)

    def copies(self, name: str) -> Sequence[tuple[Extent, ...]]:  # noqa: ARG002  the same for every tensor
        """None: every chunk is stored once."""
        return ()


def _number(index: Index, parts: tuple[int, ...]) -> int:
    return sum(i * step for i, step in zip(index, _steps(parts), strict=True))


@cache
def _steps(parts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(parts[dim + 1 :]) for dim in range(len(parts)))
