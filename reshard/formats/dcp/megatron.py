"""Megatron's additions to torch's distributed checkpoint, in its format ``torch_dist``.

::

    folder/metadata.json     {"sharded_backend": "torch_dist", "sharded_backend_version": 1, …}, written last of all
    folder/common.pt         the values that all ranks share, an archive of torch.save; newer versions have an item common_state/shard_0_1
    folder/.metadata, …      as of any distributed checkpoint

Names are flat: ``decoder.layers.mlp.linear_fc2.weight``. The name of a rank's value ends with its offset and the shape of all:
``rng_state/shard_0.1_1.2``. ``megatron/core/dist_checkpointing`` declares all of it.
"""

from __future__ import annotations

import re
from typing import Any

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.dcp.entries import Entries, ItemPlace, TensorEntry, ValueEntry
from reshard.formats.dcp.files import is_dcp
from reshard.formats.dcp.tiled_tensor import filled
from reshard.formats.format import PlaceNames
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.storage.location import Location

FORMAT = "torch_dist"

CONFIG, COMMON = "metadata.json", "common.pt"

_BACKEND, _VERSION = "sharded_backend", "sharded_backend_version"

_MAX_CONFIG_BYTES = 1 << 16
"""Megatron's file takes some 120 bytes; a larger one is of another program."""

_BUFFER = re.compile(r"(?:.*\.)?distributed\.dp_group_idx_[0-9]+\..*", re.DOTALL)

_WAY = "which --dist-ckpt-optim-fully-reshardable saves as tensors"
_IN_BUFFERS = f"a buffer of Megatron's optimizer, {_WAY}"
_FLATTENED = f"a flattened tensor of Megatron's optimizer, {_WAY}"


def is_megatron(names: PlaceNames) -> bool:
    """True for the names of a folder of torch's distributed checkpoint, finished or not, that is of Megatron."""
    if CONFIG not in names.files or not is_dcp(names):
        return False
    return COMMON in names.files or _BACKEND in _config(names.root)


def _check_config(root: Location) -> None:
    """Raises FormatError for a way to store tensors that is not read."""
    config = _config(root)
    found = config.get(_BACKEND, FORMAT), config.get(_VERSION, 1)
    if found != (FORMAT, 1):
        raise FormatError(
            f"{root / CONFIG}: {_BACKEND} is {shorten(found[0])}, version {shorten(found[1])}; expected {FORMAT!r}, version 1: load the checkpoint "
            "with Megatron, and save it with --ckpt-format torch_dist"
        )


def entries_of(root: Location, entries: Entries) -> Entries:
    """The entries with ``common.pt`` among them; errors for a way to store tensors that is not read."""
    _check_config(root)
    found: dict[str, TensorEntry | ValueEntry] = {}
    status = (root / COMMON).status()
    if status is not None and status.kind == "file":
        found[COMMON] = ValueEntry(COMMON, (ItemPlace(COMMON, 0, status.nbytes),))
    found |= readable(entries).entries
    return Entries(found, entries.paths)


def readable(entries: Entries) -> Entries:
    """The entries; a tensor that only Megatron can put together becomes an unread value, whatever lies beside it."""
    found: dict[str, TensorEntry | ValueEntry] = {}
    for name, entry in entries.entries.items():
        kind = _unread_kind(name, entries)
        found[name] = _unread(entry, kind) if kind and isinstance(entry, TensorEntry) else entry
    return Entries(found, entries.paths)


def _unread_kind(name: str, entries: Entries) -> str:
    if name in entries.flattened:
        return _FLATTENED
    return _IN_BUFFERS if _BUFFER.fullmatch(name) else ""


def _unread(entry: TensorEntry, kind: str) -> TensorEntry | ValueEntry:
    places = tuple(place for piece in filled(entry) for place in piece.places)
    return ValueEntry(entry.name, places, kind) if places else entry


def _config(root: Location) -> dict[str, Any]:
    """The content of ``metadata.json``; empty if it is missing, or of another program."""
    file = root / CONFIG
    status = file.status()
    if status is None or status.kind != "file" or status.nbytes > _MAX_CONFIG_BYTES:
        return {}
    try:
        found = json_value(read_bytes(file, _MAX_CONFIG_BYTES), str(file))
    except (CorruptError, FormatError):
        return {}
    return found if isinstance(found, dict) else {}
