"""A file with bytes between its chunks and behind them that depend on the chunks, written in place and in order."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.engine import task_stream
from reshard.formats import known_formats
from tests.archive_format import ARCHIVE, FILE
from tests.emulators.buckets import Bucket
from tests.equal import assert_same_trees
from tests.robustness.crash.interrupted import stop

ARRAYS = {
    "none": np.zeros((0, 3), "int32"),
    "w": np.arange(6 * 4000, dtype="float32").reshape(6, 4000),
    "ünï": np.array(3, "int8"),
    "bias": np.arange(7, dtype="float16"),
    "last": np.zeros((2, 0), "float64"),
}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(known_formats, "FORMATS", (*known_formats.FORMATS, ARCHIVE))
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)
    reshard.save(tmp_path / "saved", ARRAYS)
    return tmp_path / "saved"


def assert_holds(data: bytes) -> None:
    """By Python's own zipfile, which checks each CRC-32."""
    with zipfile.ZipFile(BytesIO(data)) as file:
        assert file.testzip() is None
        assert set(file.namelist()) == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert file.read(name) == array.tobytes(), name


def test_in_place(saved: Path, tmp_path: Path) -> None:
    report = reshard.convert(saved, tmp_path / "t", to="archive", check="readback")
    assert "an archive of tests is nothing that other programs know" in report.warnings
    assert_holds((tmp_path / "t" / FILE).read_bytes())
    assert_same_trees(reshard.restore(tmp_path / "t"), ARRAYS)
    assert reshard.verify(saved, tmp_path / "t").differences == 0
    assert reshard.convert(saved, tmp_path / "t", to="archive").already_done


def test_after_a_run_that_was_stopped(saved: Path, tmp_path: Path) -> None:
    stop(saved, tmp_path / "t", KeyboardInterrupt(), after=1, to="archive", workers=1)
    report = reshard.convert(saved, tmp_path / "t", to="archive", workers=1)
    assert 0 < report.resumed_bytes < report.moved_bytes
    assert_holds((tmp_path / "t" / FILE).read_bytes())


def test_by_parts(saved: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        reshard.convert(saved, tmp_path / "t", to="archive", executor=executor, parts=2)
    assert_holds((tmp_path / "t" / FILE).read_bytes())


@pytest.mark.parametrize("lent", ["gcs_bucket", "s3_bucket"])
@pytest.mark.parametrize("in_parts", [False, True], ids=["here", "parts"])
def test_uploaded_in_order(
    saved: Path, tmp_path: Path, lent: str, in_parts: bool, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    url = f"{bucket.url}/t"
    with ThreadPoolExecutor(2) as executor:
        parts = 2 if in_parts else None
        reshard.convert(saved, url, to="archive", executor=executor, parts=parts)
    data = bytes(bucket.store().get(f"t/{FILE}").bytes())
    assert_holds(data)
    reshard.convert(saved, tmp_path / "t", to="archive")
    assert data == (tmp_path / "t" / FILE).read_bytes()
    assert_same_trees(reshard.restore(url), ARRAYS)


def test_a_file_without_data(saved: Path, tmp_path: Path, gcs_bucket: Bucket) -> None:
    for target in (str(tmp_path / "t"), f"{gcs_bucket.url}/t"):
        reshard.convert(saved, target, to="archive", select=["none", "last"])
    data = bytes(gcs_bucket.store().get(f"t/{FILE}").bytes())
    assert data == (tmp_path / "t" / FILE).read_bytes()
    with zipfile.ZipFile(BytesIO(data)) as file:
        assert file.testzip() is None
        assert file.namelist() == ["last", "none"] or file.namelist() == ["none", "last"]
