"""What an identity costs is measured of conversions that succeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.conversion.identity_cost import seconds


def test_a_conversion_that_fails_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="a conversion ended with status"):
        seconds(tmp_path / "missing", tmp_path / "target", "none")
