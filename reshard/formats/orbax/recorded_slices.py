"""What a ``slices.json`` beside ``_METADATA`` adds: digests, and layouts with more in them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol

from reshard.layout.mesh import TensorLayout

SLICES = "slices.json"


class RecordedTensor(Protocol):
    """The part of a slice entry that a reader needs."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def layout(self) -> TensorLayout | None: ...
    @property
    def digest(self) -> str | None: ...


Recorded = Mapping[str, RecordedTensor]
"""By name below the item."""


def read_recorded(directory: Path) -> Recorded | None:
    """The entries of ``slices.json``, or None where the folder has none."""
    if not (directory / SLICES).exists():
        return None
    file = import_module("reshard.formats.slices").read_slices(directory)
    return None if file is None else file.tensors
