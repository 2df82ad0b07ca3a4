"""State dicts that torch saves as distributed checkpoints, and what torch itself loads from such folders.

Imported by ``torch_process.py``, inside the environment of torch.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
)
from torch_tensors import described

warnings.filterwarnings("ignore", module="torch")

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip


def random_bits(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits, but for bool."""
    wanted = getattr(torch, dtype)
    empty = torch.empty(shape, dtype=wanted)
    generator = torch.Generator().manual_seed(len(dtype))
    top = 2 if dtype == "bool" else 256
    bits = torch.randint(0, top, (empty.nbytes,), dtype=torch.uint8, generator=generator)
    return bits.view(wanted).reshape(shape)


def plain() -> dict[str, Any]:
    return {
        "model": OrderedDict(
            {
                "layers.0.weight": torch.arange(40.0).reshape(5, 8),
                "layers.0.bias": torch.ones(3, dtype=torch.bfloat16),
                "scale": torch.tensor(3),
            }
        ),
        "lists": [torch.zeros(2), {"a": torch.ones(1)}, [torch.full((2,), 7)]],
        "empty": {"rows": torch.zeros(0, 3), "columns": torch.zeros(4, 0, dtype=torch.int8)},
        "values": {
            "rate": 0.25, "steps": 5, "wide": -(2**40), "widest": 2**64 - 1, "yes": True, "none": None, "name": "Adam",
            "long": "x" * 300, "wave": 1 + 2j, "betas": (0.9, 0.999), "list": [], "tuple": (), "infinite": float("inf"),
            "nested": [1, {"a": "b", 3: None}, (2, [])],
        },
        3: torch.arange(3),
        "dotted.name": torch.arange(2),
    }  # fmt: skip


def strides() -> dict[str, Any]:
    block = torch.arange(2 * 3 * 4 * 5, dtype=torch.int32).reshape(2, 3, 4, 5)
    return {
        "transposed": torch.arange(40.0).reshape(5, 8).t(),
        "channels_last": block.to(memory_format=torch.channels_last),
        "permuted": block.permute(3, 1, 0, 2),
        "ones": torch.arange(6).reshape(1, 6, 1).transpose(0, 1),
        "sliced": torch.arange(100).reshape(10, 10)[2:5, 3:7],
        "expanded": torch.arange(3).expand(4, 3),
        "offset": torch.arange(30)[7:19],
        "every_other": torch.arange(30)[::2],
        "": torch.arange(3),
    }


def training() -> dict[str, Any]:
    model, optimizer = _trained()
    return {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 2}


def named_training() -> dict[str, Any]:
    model, optimizer = _trained()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def flattened_training() -> dict[str, Any]:
    """Options of an optimizer under one key each, and tuples in lists and tuples."""
    model, optimizer = _trained()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    of_optimizer = get_optimizer_state_dict(model, optimizer, options=options)
    return {
        "optimizer": of_optimizer,
        "sizes": (1, (2, [3, (4, None)])),
        "betas": [0.5],
        "pairs": [("a", 1), ()],
    }


def _trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    return model, optimizer


def hidden() -> dict[str, Any]:
    return {
        "w": torch.ones(2),
        "pair": (1, torch.ones(2)),
        "bytes": b"abc",
        "large": 2**70,
        "set": {"a"},
        "dtype": torch.float32,
    }


def opaque() -> dict[str, Any]:
    """Objects among other values, in lists of dicts as optimizers have them."""
    groups = [
        {"w": torch.ones(2), "state": {"a"}, "lr": 0.5},
        {"w": torch.ones(3), "state": None, "lr": 1.5},
    ]
    others = {"pair": (1, torch.ones(2)), "large": 2**70, "dtype": torch.float32, "bare": b"abc"}
    return {"groups": groups, "mixed": [1, {2}], **others}


STATES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": plain,
    "strides": strides,
    "dtypes": lambda: {dtype: random_bits(dtype, (3, 4)) for dtype in DTYPES},
    "training": training,
    "named_training": named_training,
    "flattened_training": flattened_training,
    "hidden": hidden,
    "opaque": opaque,
    "conj": lambda: {"w": torch.tensor([1 + 2j]).conj()},
    "neg": lambda: {"w": torch._neg_view(torch.ones(1))},
    "packed": lambda: {"w": random_bits("float4_e2m1fn_x2", (3, 4))},
    "floats": lambda: {"a": torch.ones(40), "b": torch.zeros(3, 4)},
    "half_complex": lambda: {"w": torch.zeros(3, dtype=torch.complex32)},
    "large": lambda: {"w": torch.arange(3_000_000, dtype=torch.int32).reshape(1500, 2000).t()},
}


def save_dcp(state: str, folder: str, **options: Any) -> Any:
    """Saves one of ``STATES``; ``options`` are those of ``FileSystemWriter``, and ``format``."""
    if "format" in options:
        options["serialization_format"] = SerializationFormat[options.pop("format")]
    writer = dcp.FileSystemWriter(folder, **options)
    dcp.save(STATES[state](), storage_writer=writer)


def load_dcp(folder: str) -> Any:
    """The full state dict as torch loads it: each leaf by its keys, joined with slashes."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "all.pt"
        dcp_to_torch_save(folder, file)
        return dict(leaves_of(torch.load(file, weights_only=False), ()))


def load_containers(folder: str) -> Any:
    """The text of each value of a full state dict that is no tensor and no dict, by its keys."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "all.pt"
        dcp_to_torch_save(folder, file)
        return dict(_texts(torch.load(file, weights_only=False), ()))


def _texts(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _texts(child, (*keys, str(key)))
    elif not isinstance(node, torch.Tensor):
        yield "/".join(keys), repr(node)


def restricted_metadata(folder: str) -> Any:
    """The entries of ``.metadata`` as torch's own restricted unpickler reads them, and whether torch itself reads it alike."""
    from torch import _weights_only_unpickler
    from torch.distributed.checkpoint import filesystem, metadata
    from torch.serialization import _get_layout, safe_globals

    names = ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata", "MetadataIndex",
             "_MEM_FORMAT_ENCODING")  # fmt: skip
    allowed = [getattr(metadata, name) for name in names] + [filesystem._StorageInfo, _get_layout]
    with safe_globals(allowed), Path(folder, ".metadata").open("rb") as file:
        found = _weights_only_unpickler.load(file)
    whole = dcp.FileSystemReader(folder).read_metadata()
    is_same = all(getattr(found, name) == getattr(whole, name)
                  for name in ("state_dict_metadata", "planner_data", "storage_data", "version"))  # fmt: skip
    paths = {name: list(path) for name, path in found.planner_data.items()}
    return {"version": found.version, "paths": paths, "is_same": is_same}


def load_values(folder: str, state: dict[str, Any]) -> Any:
    """A state dict of values that are no tensors, as ``dcp.load`` fills it; lists in ``betas`` stand for tuples."""
    for group in state.get("groups", []):
        group["betas"] = tuple(group["betas"])
    dcp.load(state, checkpoint_id=folder)
    return repr(state)


def leaves_of(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    children: list[Any] = []
    if isinstance(node, dict):
        children = list(node.items())
    elif isinstance(node, list | tuple):
        children = list(enumerate(node))
    for key, child in children:
        yield from leaves_of(child, (*keys, str(key)))
    if not children:
        yield "/".join(keys), described(node) if isinstance(node, torch.Tensor) else repr(node)
