"""A small tree, and the check that opening a checkpoint is refused."""

from __future__ import annotations

import numpy as np
import pytest

from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate

TREE = {"a": np.arange(600, dtype=np.float32), "b": {"c": np.arange(4, dtype=np.int8)}}


def refused(path, error, message):
    with pytest.raises(error) as caught:
        open_orbax(locate(path).view())
    assert message in str(caught.value)
