"""A checkpoint with an identity."""

from __future__ import annotations

from pathlib import Path

import pytest

import reshard
from tests.signing_keys import tree


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """An Orbax checkpoint with an ``identity.json`` and an ``identity.tree``."""
    reshard.save(tmp_path / "ckpt", tree())
    reshard.identify(tmp_path / "ckpt", write=True)
    return tmp_path / "ckpt"
