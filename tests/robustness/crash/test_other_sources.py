"""Conversions from checkpoints of torch, Megatron, TensorFlow and Keras, killed and run again; and one wrong bit in such a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import reshard
from reshard.errors import CorruptError
from tests.campaigns import singly
from tests.checkpoint_files import files_of
from tests.robustness.crash.killing import Point, run_killed
from tests.saved_elsewhere import BIAS, ROWS, SOURCES, of_objects, of_strings

APPEND = "reshard.storage.local.transaction:LocalTransaction.append"
POINTS = [
    Point(APPEND, "after", 2),
    Point("reshard.conversion.convert:finish_target", "after"),
]
OPTIONS = {"workers": 2, "chunk_bytes": 400}


@pytest.mark.parametrize(("form", "point"), singly([*SOURCES], POINTS))
def test_killed_and_run_again(form: str, point: Point, tmp_path: Path) -> None:
    source = SOURCES[form][0](tmp_path / "made")
    assert run_killed(point, source, tmp_path / "t", to="orbax", **OPTIONS) == -9
    assert not (tmp_path / "t").exists()
    report = reshard.convert(source, tmp_path / "t", to="orbax", **OPTIONS)
    assert report.resumed_bytes
    found = reshard.restore(tmp_path / "t")
    assert found["rows"].tobytes() == ROWS.tobytes()
    assert found["bias"].tobytes() == BIAS.tobytes()


@pytest.mark.parametrize(("make", "point"), singly([of_objects, of_strings], POINTS))
def test_values_that_are_not_read_after_a_kill(
    make: Callable[[Path], Path], point: Point, tmp_path: Path
) -> None:
    """They are written when the target is finished, which may happen twice."""
    source, layout = make(tmp_path / "made"), {"partitions": [{"match": "rows", "fixed_shards": 4}]}
    reshard.convert(source, tmp_path / "undisturbed" / "t", layout=layout, workers=2)
    assert run_killed(point, source, tmp_path / "t", layout=layout, workers=2) == -9
    reshard.convert(source, tmp_path / "t", layout=layout, workers=2)
    made = files_of(tmp_path / "t")
    assert len(made) > 4
    assert made == files_of(tmp_path / "undisturbed" / "t")
    assert reshard.diff(source, tmp_path / "t").differences == 0


@pytest.mark.parametrize("form", ["dcp", "torch_dist", "torch", "tensorflow"])
def test_a_flipped_bit_of_the_elements_publishes_nothing(form: str, tmp_path: Path) -> None:
    source = SOURCES[form][0](tmp_path / "made")
    bits = BIAS.tobytes()
    (file,) = [one for one in (tmp_path / "made").rglob("*") if one.is_file() and bits in one.read_bytes() and "saved" not in one.parts]  # fmt: skip
    for record in (tmp_path / "made").rglob("*slices.json"):
        record.unlink()  # a digest in it would tell
    data = bytearray(file.read_bytes())
    data[data.index(bits) + 9] ^= 4
    file.write_bytes(data)
    with pytest.raises(CorruptError, match="CRC") as caught:
        reshard.convert(source, tmp_path / "t", to="orbax")
    assert "bias" in str(caught.value)
    assert not (tmp_path / "t").exists()
    assert reshard.verify(source).differences
