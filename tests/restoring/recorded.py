"""Adding slice metadata to a checkpoint that stock Orbax wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from awscrt.checksums import crc64nvme

from reshard.formats.slices.slice_file import FILE_NAME, SliceEntry, SliceFile, render_slices


def record(path: Path, arrays: Mapping[str, np.ndarray], **partitions: Mapping[str, Any]) -> None:
    """Writes ``slices.json``: digests of the arrays, and partitions by name."""
    entries = {
        name: SliceEntry(
            path=tuple(name.split("/")),
            dtype=str(array.dtype),
            shape=array.shape,
            parts=(1,) * array.ndim,
            partition=partitions.get(name),
            digest=f"{crc64nvme(np.ascontiguousarray(array).reshape(-1).view(np.uint8)):016x}",
        )
        for name, array in arrays.items()
    }
    (path / FILE_NAME).write_bytes(render_slices(SliceFile(entries)))
