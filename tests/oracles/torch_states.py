"""State dicts that torch saves in one file, and what torch itself loads of such files.

Imported by ``torch_process.py``, inside the environment of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.serialization import set_crc32_options
from torch_dcp import STATES as OF_DCP
from torch_dcp import leaves_of, random_bits
from torch_tensors import described


class Tied(torch.nn.Module):
    """A small model whose output layer is its embedding, with buffers, a convolution and a module without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm1d(4)
        self.act = torch.nn.ReLU()
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


class Poison:
    """An object that would run a command where it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (self.command,))


class Wrapped(torch.Tensor):
    """A tensor whose elements are in another one, as those of torchao and DTensor are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self._inner = inner

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


def module() -> dict[str, Any]:
    torch.manual_seed(5)
    return Tied().state_dict()


def training() -> dict[str, Any]:
    torch.manual_seed(5)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        model.head(model.norm(model.embed(torch.arange(6)))).sum().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "tied"}  # fmt: skip


def views() -> dict[str, Any]:
    """Tensors that share storages: tied, rows of one, the same in another order."""
    flat = torch.arange(60, dtype=torch.int32)
    return {
        "all": flat,
        "again": flat,
        "rows": flat[15:45].reshape(6, 5),
        "turned": flat[:30].reshape(5, 6).t(),
        "last": flat[59],
        "nothing": flat[7:7],
    }


def strides() -> dict[str, Any]:
    block = torch.arange(2 * 3 * 4 * 5, dtype=torch.int32).reshape(2, 3, 4, 5)
    return {
        "transposed": torch.arange(40.0).reshape(5, 8).t(),
        "channels_last": block.to(memory_format=torch.channels_last),
        "permuted": block.permute(3, 1, 0, 2),
        "ones": torch.arange(6).reshape(1, 6, 1).transpose(0, 1),
    }


STATES: dict[str, Callable[[], Any]] = {
    **{name: OF_DCP[name] for name in ("plain", "dtypes", "packed", "conj", "neg", "half_complex", "large")},
    "module": module,
    "training": training,
    "views": views,
    "strides": strides,
    "parameters": lambda: {"w": torch.nn.Parameter(torch.ones(2)), "frozen": torch.nn.Parameter(torch.zeros(1), requires_grad=False)},
    "empty_module": lambda: {"relu": torch.nn.ReLU().state_dict(), "w": torch.ones(1)},
    "quantised": lambda: {"w": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)},
    "by_channel": lambda: {"w": torch.quantize_per_channel(torch.ones(3, 2), torch.ones(3), torch.zeros(3), 0, torch.quint8)},
    "sparse": lambda: {"a": {"w": torch.eye(3).to_sparse()}},
    "csr": lambda: {"w": torch.eye(3).to_sparse_csr()},
    "meta": lambda: {"w": torch.ones(3, device="meta")},
    "list": lambda: [torch.ones(3)],
    "storage": lambda: {"w": torch.ones(3).untyped_storage()},
    "bytes": lambda: {"a": [b"abc"]},
    "size": lambda: {"w": torch.Size([1, 2])},
    "device": lambda: {"w": torch.device("cpu")},
    "set": lambda: {"w": {1}},
    "keys": lambda: {"w": {(1, 2): torch.ones(1), 2: torch.ones(2), None: torch.ones(3)}},
    "nested": lambda: {"w": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])},
    "wrapped": lambda: {"w": Wrapped(torch.ones(3))},
    "wide": lambda: {"w": 2**64},
}  # fmt: skip


def save_state(
    file: str,
    state: str = "",
    poison: str = "",
    crcs: bool = True,
    beside: bool = False,
    **options: Any,
) -> None:
    """Saves one of ``STATES``, perhaps with another tensor beside it, or an object that would run the command ``poison``.

    ``options`` are those of ``torch.save``.
    """
    set_crc32_options(crcs)
    try:
        made = {"w": torch.ones(2), "x": Poison(poison)} if poison else STATES[state]()
        torch.save({**made, "beside": torch.ones(2)} if beside else made, file, **options)
    finally:
        set_crc32_options(True)


def load_state(file: str) -> Any:
    """Each leaf by its keys, joined with slashes, as torch's own restricted loader reads the file."""
    return dict(leaves_of(torch.load(file, weights_only=True), ()))


def load_legacy(file: str) -> None:
    """Turns a file that torch saved before 1.6, or a damaged archive, into an archive, as its refusal says."""
    torch.save(torch.load(file, weights_only=True), f"{file}.pt")


def save_script(file: str, state: str) -> Any:
    """Saves a program, and its tensors as the refusal of it says; what torch reads of these."""
    torch.jit.script(torch.nn.Linear(3, 2)).save(file)
    torch.save(torch.jit.load(file).state_dict(), state)
    return load_state(state)


def save_model_files(folder: str) -> Any:
    """A model in two shards with an index, as Hugging Face wrote them before safetensors; all of its tensors."""
    tensors = {f"layers.{n}.weight": random_bits("bfloat16", (3, n + 2)) for n in range(4)}
    tensors["lm_head.weight"] = tensors["layers.0.weight"]
    weight_map = {name: f"pytorch_model-0000{1 + n % 2}-of-00002.bin" for n, name in enumerate(tensors)}  # fmt: skip
    for file in set(weight_map.values()):
        torch.save({n: t for n, t in tensors.items() if weight_map[n] == file}, Path(folder) / file)
    return {"weight_map": weight_map, "tensors": {n: described(t) for n, t in tensors.items()}}
