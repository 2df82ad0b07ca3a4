"""Deltas that tests apply in place."""

from __future__ import annotations

from pathlib import Path

import pytest

import reshard
from tests.delta_layout import write_full
from tests.deltas.in_place.versions import LIKE, V0, V1, V2


@pytest.fixture
def deltas(tmp_path: Path) -> list[Path]:
    """Two deltas over V0, of this project, the second one an overwrite."""
    for number, state in enumerate((V0, V1, V2)):
        write_full(tmp_path / "full" / f"v{number}", state, LIKE)
    old, middle, new = ((tmp_path / "full" / f"v{n}") for n in range(3))
    made = [tmp_path / "published" / f"weight_v00000{n}" for n in (1, 2)]
    reshard.delta(old, middle, made[0], encoding="xor-shuffled")
    reshard.delta(middle, new, made[1], encoding="overwrite", checksum="blake3")
    return made
