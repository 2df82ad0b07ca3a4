"""Whether a safetensors checkpoint may be replaced by a target."""

from __future__ import annotations

from pathlib import Path

from reshard.errors import ReshardError
from reshard.formats.safetensors.files import ENDING, INDEX_ENDING
from reshard.formats.safetensors.header import is_safetensors
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import FILE_NAME


def is_replaceable(path: str) -> bool:
    """Whether a local path is a safetensors file, or a folder with nothing but what this project wrote.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which nobody wants to lose.
    """
    if not Path(path).is_dir():
        return is_safetensors(path)
    try:
        record = read_slices(Path(path))
        names = [file.name for file in Path(path).iterdir()]
    except (ReshardError, OSError):
        return False
    known = frozenset({FILE_NAME, *(record.files if record is not None else ())})
    return record is not None and all(
        n in known or n.endswith((ENDING, INDEX_ENDING)) for n in names
    )
