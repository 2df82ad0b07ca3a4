"""A checkpoint of DeepSeek-V3, or of a wider model, as the metadata of an Orbax checkpoint in a bucket: nothing is stored.

The large kernels are those of the published configuration, the experts of a layer stacked. Training shards every kernel over two axes;
serving splits experts over one axis and the other kernels over the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reshard.formats.codecs import read_ahead
from reshard.formats.contents import Encoding, StoredTensor
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate
from tests.conversion.test_target_plan import Source, leaf

SOURCE = "gs://training/run/100/default"
LAYERS, DENSE, EXPERTS, VOCABULARY, QUERIES, OUTPUTS = 61, 3, 256, 129_280, 24_576, 16_384
WIDENED = (7168, 1536, 18_432, 2048)
"""The hidden size, the rank of queries, and the widths of a dense layer and of an expert."""


RULES = {"experts": ["expert", None, "model"], "kernel": [None, "model"]}
SERVING = {
    "mesh": {"axes": ["expert", "model"], "shape": [64, 16]},
    "rules": [{"match": match, "axes": axes} for match, axes in RULES.items()],
}
STATES = {"params": "bfloat16", "master": "float32", "mu": "float32", "nu": "float32"}
"""A training state: the weights, their exact copy, and the two moments of Adam."""


def model(width: float, states: Sequence[str], side: int) -> Source:
    """The states of a model as training stored them, a chunk for each shard of a mesh of ``side`` by ``side``; ``width`` widens every layer."""
    mesh, tensors = DeviceMesh((side, side), ("fsdp", "model")), dict[str, StoredTensor]()
    encoding = read_ahead(Encoding("zstd", 1), locate(SOURCE).store)
    for state in states:
        for kernel, shape in _kernels(width):
            axes = ("model", "fsdp", None) if "experts" in kernel else ("fsdp", "model")
            layout, name = TensorLayout(axes, mesh), f"{state}/{kernel}/kernel"
            stored = (STATES[state], layout.grid(shape), layout.shard_shape(shape), layout)
            spec = TensorSpec(name, shape, *stored)
            tensors[name] = StoredTensor(spec, encoding, bytes(spec.itemsize), may_be_missing=False)
    return Source(tensors, list(map(leaf, tensors)), uri=SOURCE)


def _kernels(width: float) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, query, dense, expert = (round(width * size) for size in WIDENED)
    yield from (("embed", (VOCABULARY, d)), ("head", (d, VOCABULARY)))
    for n in range(LAYERS):
        attention = {"q_a": (d, query), "q_b": (query, QUERIES), "out": (OUTPUTS, d)}
        yield from ((f"layers_{n}/{name}", shape) for name, shape in attention.items())
        wide = dense if n < DENSE else expert
        for name, shape in (("gate", (d, wide)), ("up", (d, wide)), ("down", (wide, d))):
            yield f"layers_{n}/mlp/{name}", shape
            if n >= DENSE:
                yield f"layers_{n}/experts/{name}", (EXPERTS, *shape)
