"""A small tensor as an item of a distributed checkpoint, and how a folder is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError, FormatError, MissingError
from tests.dcp_files import Item, entry, tensor_archive, whole

W = np.arange(12, dtype=np.int32).reshape(4, 3)
WHOLE = Item("w", (0, 0), tensor_archive(W))
LISTED = {"w": entry(whole(W))}


def refusal(folder: Path, kind: type[FormatError] | type[MissingError] = CorruptError) -> str:
    """The message, without the folder."""
    with pytest.raises(kind) as error:
        reshard.inspect(folder)
    return str(error.value).replace(str(folder), "DIR")
