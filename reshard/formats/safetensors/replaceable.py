"""Whether a safetensors checkpoint may be replaced by a target."""

from __future__ import annotations

from reshard.errors import ReshardError
from reshard.formats.safetensors.files import ENDING, INDEX_ENDING
from reshard.formats.safetensors.header import is_safetensors
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.storage.location import Location


def is_replaceable(root: Location) -> bool:
    """Whether it is a safetensors file, or a folder with nothing but what this project wrote.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which nobody wants to lose.
    """
    if not root.is_folder():
        return is_safetensors(root)
    try:
        record = read_slices(root)
        names = [entry.name for entry in root.entries()]
    except ReshardError:
        return False
    known = frozenset({FILE_NAME, *(record.files if record is not None else ())})
    return record is not None and all(
        n in known or n.endswith((ENDING, INDEX_ENDING)) for n in names
    )
