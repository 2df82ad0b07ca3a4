"""Reads msgpack bytes as the project does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reshard.formats.orbax.aggregate_file import MsgpackTree, Value
from reshard.formats.orbax.msgpack_values import ArrayBytes, MsgpackCursor
from reshard.geometry.dtypes import numpy_dtype
from reshard.storage.location import locate


def cursor_of(folder: Path, data: bytes) -> MsgpackCursor:
    """A cursor at the start of a file of these bytes."""
    (folder / "checkpoint").write_bytes(data)
    file = locate(folder / "checkpoint")
    found = file.status()
    assert found is not None
    return MsgpackCursor(file, found, "F")


def leaves_of(folder: Path, data: bytes) -> dict[str, Value]:
    """The leaves of the tree in these bytes by their keys, joined with slashes."""
    tree = MsgpackTree(cursor_of(folder, data))
    return {"/".join(key.key for key in path): value for path, value in tree}


def array_of(value: Any, data: bytes) -> Any:
    """A value of which an array is read from the bytes that it is in."""
    if not isinstance(value, ArrayBytes):
        return value
    flat = b"".join(data[at : at + nbytes] for at, nbytes in value.parts)
    return np.frombuffer(flat, numpy_dtype(value.dtype)).reshape(value.shape)
