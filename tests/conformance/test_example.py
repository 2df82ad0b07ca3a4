"""A format that another distribution may add goes to every other form and back."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from awscrt.checksums import crc32c

import reshard
from reshard.engine import task_stream
from reshard.formats import known_formats
from tests import npy_format
from tests.conformance.conversions import converted
from tests.conformance.forms import FORMS, Form
from tests.conformance.independent import Read
from tests.conformance.same import assert_same_arrays
from tests.conformance.trees import flat
from tests.robustness.crash.interrupted import other_boot, stop

LAYOUT = {"mesh": {"x": 2}, "rules": [{"match": "w", "axes": ["x"]}], "unmatched": "replicate"}
ARRAYS = {
    "layers.0/w": np.arange(24, dtype="float32").reshape(6, 4),
    "turned w": np.asfortranarray(np.arange(24, dtype="int16").reshape(4, 3, 2)),
    "ünï": np.array(True),
    "none": np.zeros((0, 3), "complex64"),
}


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_formats, "FORMATS", (*known_formats.FORMATS, npy_format.NPY))


def read_npy(path: Path) -> Read:
    """By numpy. Each array's bytes have the CRC32C that the format records."""
    arrays = {file.name: np.load(file) for file in path.glob("*.npy")}
    recorded = json.loads((path / "checksums.json").read_bytes())
    assert recorded == {name: crc32c(array.tobytes()) for name, array in arrays.items()}
    return {unquote(name.removesuffix(".npy")): array for name, array in arrays.items()}


NPY_FORM = Form("npy", {"to": "npy"}, ("float32", "int16"), read_npy, only_tensors=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_to_every_form_and_back(form: Form, tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", ARRAYS)
    made = converted(tmp_path / "saved", NPY_FORM, tmp_path / "made", layout=LAYOUT)
    there = converted(made, form, tmp_path / "there", layout=LAYOUT)
    back = converted(there, NPY_FORM, tmp_path / "back")
    for path, of in ((made, NPY_FORM), (there, form), (back, NPY_FORM)):
        assert_same_arrays(of.read(path), ARRAYS)
        assert_same_arrays(flat(reshard.restore(path)), ARRAYS)
        assert reshard.verify(tmp_path / "saved", path).differences == 0
    assert reshard.inspect(back).format == "npy"
    assert b"".join(reshard.open_checkpoint(back).stream("layers.0/w", "1:5,2:3")) == (
        ARRAYS["layers.0/w"][1:5, 2:3].tobytes()
    )


@pytest.mark.parametrize("is_rebooted", [False, True], ids=["stopped", "rebooted"])
def test_a_run_that_resumes_knows_the_checksums_of_the_first(
    is_rebooted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npy_format, "MOST_BYTES_OF_A_CHUNK", 4096)
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)
    arrays = {name: np.arange(48_000, dtype="float32").reshape(6, 8000) for name in "abcdefgh"}
    reshard.save(tmp_path / "saved", arrays)
    target = tmp_path / "made"
    stop(tmp_path / "saved", target, KeyboardInterrupt(), after=3, to="npy", workers=1)
    if is_rebooted:
        other_boot(monkeypatch)
    report = reshard.convert(tmp_path / "saved", target, to="npy", workers=1)
    assert 0 < report.resumed_bytes < report.moved_bytes
    assert_same_arrays(read_npy(target), arrays)


def test_files_of_numpy_are_read(tmp_path: Path) -> None:
    (tmp_path / "npy").mkdir()
    for name, array in ARRAYS.items():
        np.save(tmp_path / "npy" / f"{name.replace('/', '%2F')}.npy", array)
    assert_same_arrays(reshard.restore(tmp_path / "npy"), ARRAYS)


def test_what_the_example_cannot_hold_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(["text"], object))
    with pytest.raises(reshard.FormatError, match="has the dtype object, which is not supported"):
        reshard.inspect(tmp_path)
    np.save(tmp_path / "a.npy", np.zeros(8))
    with (tmp_path / "a.npy").open("ab") as file:
        file.write(b"x")
    with pytest.raises(reshard.CorruptError, match="has 193 bytes, not those of its shape"):
        reshard.inspect(tmp_path)
