"""A conversion enters no file of a feature that nobody asks for."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import reshard

HOME = Path(reshard.__file__).parent
FEATURES = (
    "conversion/identity.py",
    "conversion/most_requests.py",
    "conversion/parts/",
    "deltas/",
    "executors/",
    "formats/delta/",
    "conversion/lost_metadata.py",
    "formats/quantized.py",
    "identity/",
    "maps/",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "source", {"w": np.ones((8, 4), np.float32)})
    return tmp_path / "source"


def entered(source: Path, target: Path, **options: Any) -> set[str]:
    """The files of features that a conversion enters; imports do not count."""
    reshard.convert(source, target.with_name("warm"), **options)
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(HOME):
            found.add(path.relative_to(HOME).as_posix())

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        reshard.convert(source, target, **options)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {name for name in found if name.startswith(FEATURES)}


def test_a_plain_conversion_enters_none(source: Path, tmp_path: Path) -> None:
    layout = reshard.LayoutMap(reshard.DeviceMesh((4,), ("model",)))
    layout["w"] = (None, "model")
    assert entered(source, tmp_path / "target", layout=layout) == set()


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"identity": "compute"}, "conversion/identity.py"),
        ({"map": {"map": [{"from": "w", "to": "v"}]}}, "maps/given_map.py"),
        ({"to": "safetensors"}, "conversion/lost_metadata.py"),
    ],
)
def test_one_that_is_asked_for_is_entered(
    source: Path, tmp_path: Path, options: dict[str, Any], file: str
) -> None:
    assert file in entered(source, tmp_path / "target", **options)
