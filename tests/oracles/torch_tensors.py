"""What the processes of torch say of a tensor, so that it can be compared with one elsewhere bit by bit."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """The dtype, the shape, and a digest of the row-major bytes."""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(raw_bytes(tensor)).hexdigest(),
    }


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The row-major bytes, of any dtype."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
