"""The forms that a target can have: its format, and that format's own options."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

FormatName = Literal["orbax", "safetensors"]
"""The formats that are written."""

FilesOf = Literal["one", "shards", "ranks", "dcp"]
"""The files of a safetensors target: one file, Hugging Face shards with an index, a file for each device, or
the files of torch's distributed checkpoint, which hold each slice once."""

SHARD_BYTES = 5_000_000_000
"""Most bytes of tensors in one of several shards, as Hugging Face writes them."""


class OrbaxForm(Struct, frozen=True):
    """An Orbax target.

    Attributes:
        ocdbt: whether all arrays of an item are kept in one OCDBT database.
    """

    ocdbt: bool = False

    @property
    def format(self) -> FormatName:
        return "orbax"


class SafetensorsForm(Struct, frozen=True):
    """A safetensors target.

    Attributes:
        file_bytes: for shards, the most bytes of tensors in one file; a larger tensor has a file of its own.
        file_names: the pattern of the files' names; None for the usual ones.
        carried: files of the source that are copied as they are.
    """

    files: FilesOf = "shards"
    file_bytes: int = SHARD_BYTES
    file_names: str | None = None
    carried: tuple[Path, ...] = ()

    @property
    def format(self) -> FormatName:
        return "safetensors"


Form = OrbaxForm | SafetensorsForm
