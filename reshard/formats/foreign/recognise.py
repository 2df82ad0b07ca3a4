"""Recognises formats that are not read, by names and first bytes. It is asked only when no reader wants what is there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import closing

from reshard.formats.foreign import formats
from reshard.formats.foreign.formats import Foreign
from reshard.storage.location import Location

_ZIP = b"PK\x03\x04"
_MAP_OF_TEXT = re.compile(rb"(?:[\x81-\x8f]|\xde..|\xdf....)[\xa0-\xbf\xd9-\xdb]", re.DOTALL)
"""A msgpack map whose first key is text."""

_TORCH = re.compile(rb"PK\x03\x04.{26}[^/]{1,80}/data\.pkl", re.DOTALL)
"""An archive whose first record is the one that ``torch.save`` writes first."""

_START_BYTES, _END_BYTES = 128, 16

_FILES: tuple[tuple[str, bytes, Foreign], ...] = (
    (r"saved_model\.pb", b"", formats.SAVED_MODEL),
    (r".*", b"GGUF", formats.GGUF),
    (r".*", b"\x93NUMPY", formats.NPY),
    (r".*\.npz", _ZIP, formats.NPZ),
    (r".*\.keras", _ZIP, formats.KERAS),
    (r".*\.weights\.json", b"{", formats.KERAS_SHARDS),
    (r".*\.(?:pt|pth|bin|ckpt|pkl|pickle)", b"\x80", formats.PICKLE),
)
"""A file by its name and its first bytes."""

_FOLDERS: tuple[tuple[tuple[str, ...], Foreign], ...] = (
    ((r"latest_checkpointed_iteration\.txt|mp_rank_\d.*",), formats.MEGATRON),
    ((r"metadata\.pkl",), formats.TORCH_CHECKPOINTING),
    ((r"zero_to_fp32\.py",), formats.DEEPSPEED),
    ((r"saved_model\.pb",), formats.SAVED_MODEL),
    ((r"model_index\.json",), formats.DIFFUSERS),
    ((r"manifest\.ocdbt",), formats.OCDBT),
)
"""A folder by names in it: each pattern matches one."""

_HELD: tuple[tuple[str, Foreign], ...] = (
    (r".*\.gguf", formats.GGUF),
    (r".*\.weights\.json", formats.KERAS_SHARDS),
    (r".*\.keras", formats.KERAS),
    (r".*\.msgpack", formats.MSGPACK),
    (r".*\.npz", formats.NPZ),
)
"""A file in a folder by its name."""

_ZARR_NAMES = frozenset({".zarray", ".zgroup", "zarr.json"})
_MOST_LISTED = 16
"""Folders that are listed to find a zarr array: the deepest trees have ten levels."""


def foreign_text(root: Location) -> str:
    """What is at a location instead of a checkpoint that is read, and the way from there; "" for what is not recognised.

    Raises StorageError where it cannot be looked at.
    """
    if root.is_folder():
        found = _of_folder(root)
        if found is not None:
            return f"it is {_text(found)}"
        held = _held([entry.name for entry in root.entries() if not entry.is_folder])
        return f"it holds {held[0]!r}, which is {_text(held[1])}" if held else ""
    found = _of_file(root)
    return f"it is {_text(found)}" if found is not None else ""


def _text(found: Foreign) -> str:
    return f"{found.name}, which reshard does not read; {found.way}"


def _of_file(file: Location) -> Foreign | None:
    start, _ = _ends(file)
    for name, first, found in _FILES:
        if start.startswith(first) and re.fullmatch(name, file.name, re.DOTALL):
            return found
    if _TORCH.match(start):
        return formats.TORCH_ELSEWHERE
    return formats.MSGPACK if _MAP_OF_TEXT.match(start) else None


def _of_folder(folder: Location) -> Foreign | None:
    entries = folder.entries()
    names = [entry.name for entry in entries]
    for patterns, found in _FOLDERS:
        if all(
            any(re.fullmatch(pattern, name, re.DOTALL) for name in names) for pattern in patterns
        ):
            return found
    if any(entry.name == "checkpoint" and not entry.is_folder for entry in entries):
        found_in = _of_checkpoint_file(folder / "checkpoint")
        if found_in is not None:
            return found_in
    if any(_ZARR_NAMES & set(listed) for listed in _listings(folder)):
        return formats.LEVANTER if "metadata.json" in names else formats.ZARR
    return None


def _of_checkpoint_file(file: Location) -> Foreign | None:
    """Of a file that T5X and Orbax before 0.4.2 each write into a folder, as TensorFlow does."""
    start, end = _ends(file)
    if not _MAP_OF_TEXT.match(start):
        return None
    # T5X saves {"version": 3, "optimizer": …}, whose keys Flax sorts.
    is_t5x = start.startswith(b"\x82") and (
        start[1:].startswith(b"\xa7version") or b"\xa7version" in end
    )
    return formats.T5X if is_t5x else formats.MSGPACK


def _held(names: Collection[str]) -> tuple[str, Foreign] | None:
    for pattern, found in _HELD:
        for name in names:
            if re.fullmatch(pattern, name, re.DOTALL):
                return name, found
    return None


def _listings(folder: Location) -> Iterator[list[str]]:
    """The names in the first folders below, the deepest first."""
    waiting = [folder]
    for _ in range(_MOST_LISTED):
        if not waiting:
            return
        place = waiting.pop()
        entries = place.entries()
        yield [entry.name for entry in entries]
        waiting += [
            place / entry.name
            for entry in reversed(entries)
            if entry.is_folder and not entry.is_link
        ]


def _ends(file: Location) -> tuple[bytes, bytes]:
    """The first and the last bytes of a plain file; nothing for anything else."""
    found = file.status()
    if found is None or found.kind != "file":
        return b"", b""
    with closing(file.open()) as opened:
        end = max(0, found.nbytes - _END_BYTES)
        return opened.read(0, _START_BYTES), opened.read(end, _END_BYTES)
