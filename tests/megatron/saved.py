"""Checkpoints that Megatron Core wrote, from ``saved.txz``, and what was saved; ``save.py`` makes the file.

Its folders, below the version of Megatron Core that wrote them, each by four processes, two that split tensors and two replicas::

    llama, qwen3, mixtral       models, all layers in one tensor
    …-layers                    the same with a tensor for each layer
    fully_reshardable           a model and its optimizer, whose tensors have the shapes of the model's
    dp_reshardable              an optimizer in buffers without names
    flattened                   an optimizer in flattened parts of tensors
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ARCHIVE = Path(__file__).with_name("saved.txz")
LOGITS = Path(__file__).with_name("logits.json")

VOCAB, PADDED = 27, 32
TOKENS = (np.arange(32) * 5 % VOCAB).reshape(2, 16)

SIZES: dict[str, Any] = {
    "num_layers": 3, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 6, "ffn_hidden_size": 20,
    "layernorm_epsilon": 1e-6,
}  # fmt: skip
EXPERTS, CHOSEN = 4, 2


def weight(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The tensor of a name: few digits, so that it is compressed well."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    values = np.round(random.standard_normal(shape) * 16) / 64
    return (np.abs(values) + 0.5 if "norm" in name else values).astype(np.float32)


def unpack(folder: Path) -> Path:
    """All of them, below a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder
