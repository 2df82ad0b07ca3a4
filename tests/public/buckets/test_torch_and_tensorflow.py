"""Checkpoints of torch, Megatron, TensorFlow and Keras in buckets: seen, converted and verified as on a disk, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

import reshard
from reshard.errors import IncompleteCheckpointError
from tests.emulators.buckets import Bucket
from tests.public.buckets.uploads import upload
from tests.saved_elsewhere import BIAS, ROWS, SOURCES


@pytest.mark.parametrize("lent", ["s3_bucket", "gcs_bucket"])
@pytest.mark.parametrize("form", SOURCES)
def test_a_source_in_a_bucket(
    form: str, lent: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    make, name, _ = SOURCES[form]
    local = make(tmp_path / "made")
    url = upload(bucket, local, f"run/{name}")
    assert reshard.inspect(url).format == form
    if form != "keras":  # which has no steps
        assert reshard.steps(f"{bucket.url}/run") == {7: name}
        latest = reshard.inspect(f"{bucket.url}/run", step="latest")
        assert latest.uri == url
    reshard.convert(url, tmp_path / "orbax", to="orbax", layout={"mesh": {"x": 2}, "rules": [{"match": "rows", "axes": ["x"]}]})  # fmt: skip
    found = reshard.restore(tmp_path / "orbax")
    assert found["rows"].tobytes() == ROWS.tobytes()
    assert found["bias"].tobytes() == BIAS.tobytes()
    assert reshard.verify(url, tmp_path / "orbax").differences == 0
    stream = reshard.open_checkpoint(url).stream("rows", "5:25,3:8")
    assert b"".join(stream) == ROWS[5:25, 3:8].tobytes()


@pytest.mark.parametrize("form", [name for name, (_, _, last) in SOURCES.items() if last])
def test_what_is_not_finished_in_a_bucket(form: str, s3_bucket: Bucket, tmp_path: Path) -> None:
    make, name, last = SOURCES[form]
    local = make(tmp_path / "made")
    (local / last).unlink()
    url = upload(s3_bucket, local, f"run/{name}")
    assert reshard.steps(f"{s3_bucket.url}/run") == {}
    with pytest.raises(IncompleteCheckpointError, match="the save did not finish"):
        reshard.inspect(url)
