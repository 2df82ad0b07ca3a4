"""The index of a model in several files, as Hugging Face writes it: the file of each tensor.

::

    {"metadata": {…}, "weight_map": {NAME: FILE}}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, MissingError, NotACheckpointError
from reshard.formats.delta.index import is_delta
from reshard.formats.safe_json import expect, json_value, read_bytes
from reshard.formats.slices.slice_file import digest_of
from reshard.storage.location import Location


class ModelIndex(Struct, frozen=True):
    """An index that was read.

    Attributes:
        digest: CRC-64/NVME of its bytes, 16 hex digits.
        weight_map: the file of each tensor.
        metadata: the member of that name; empty where that is no object.
    """

    file: Location
    digest: str
    weight_map: dict[str, str]
    metadata: Mapping[str, Any]

    @property
    def files(self) -> list[str]:
        """The names of its files, sorted."""
        return sorted(set(self.weight_map.values()))


def read_model_index(file: Location, there: Collection[str]) -> ModelIndex:
    """The index in a file; ``there``: the names in its folder.

    Raises NotACheckpointError for the index of a delta, CorruptError where it is damaged or names a file elsewhere, MissingError where one of
    its files is missing.
    """
    data = read_bytes(file, what="the index")
    document = json_value(data, str(file))
    if is_delta(document):
        folder = file.parent
        raise NotACheckpointError(
            f"{folder} is a delta, which is nothing without the version before it; apply it to that (reshard apply BASE {folder} TARGET)"
        )
    weight_map = _weight_map(document, str(file))
    for name, held_by in weight_map.items():
        if "/" in held_by or held_by in ("", ".", ".."):
            raise CorruptError(
                f"{file}: the file of {name[:200]!r} is {held_by[:200]!r}; expected the name of a file in this folder"
            )
        if held_by not in there:
            raise MissingError(
                f"{file} says that {name[:200]!r} is in {held_by!r}, but {file.parent} has no such file; copy it there, or "
                "restore the folder from a copy"
            )
    metadata = document.get("metadata")
    return ModelIndex(
        file, digest_of(data), weight_map, metadata if isinstance(metadata, dict) else {}
    )


def _weight_map(document: Any, index: str) -> dict[str, str]:
    found = expect(document, dict, "the index", index)
    listed = expect(found.get("weight_map"), dict, "weight_map", index)
    if not listed:
        raise CorruptError(f"{index}: weight_map is empty; expected the file of each tensor")
    return {
        name: expect(file, str, f"the file of {name[:200]!r}", index)
        for name, file in listed.items()
    }
