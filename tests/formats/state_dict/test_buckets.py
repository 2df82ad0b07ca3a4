"""State dicts in buckets: the headers of many storages are asked for together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.storage import calls
from tests.emulators.buckets import Bucket
from tests.state_files import write_state


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(calls, "_READS", calls._RecentReads())


def opened_requests(bucket: Bucket, file: Path) -> int:
    """The requests of opening a file; what it holds is compared too."""
    bucket.store().put(file.name, file.read_bytes())
    bucket.emulator.log.clear()
    opened = reshard.open_checkpoint(f"{bucket.url}/{file.name}")
    count = int(bucket.emulator.log.counts().total())
    here = reshard.restore(file)
    assert all((found == here[name]).all() for name, found in opened.restore().items())
    return count


def test_small_tensors_take_few_requests(gcs_bucket: Bucket, tmp_path: Path) -> None:
    small = np.arange(600, dtype=np.float32)
    found = [
        opened_requests(
            gcs_bucket,
            write_state(tmp_path / f"{count}.pt", {f"w{n}": small + n for n in range(count)}),
        )
        for count in (4, 400)
    ]
    assert found[0] <= 8
    assert found[1] <= found[0] + 4  # 400 headers within a megabyte are two or three ranges


def test_large_tensors_take_a_request_each(gcs_bucket: Bucket, tmp_path: Path) -> None:
    large = {f"w{n}": np.full(50_000, n, np.float32) for n in range(8)}
    assert opened_requests(gcs_bucket, write_state(tmp_path / "x.pt", large)) <= 8 + 8


def test_a_file_that_changes_while_it_is_read_is_noticed(
    gcs_bucket: Bucket, tmp_path: Path
) -> None:
    file = write_state(tmp_path / "x.pt", {"w": np.arange(50_000)})
    gcs_bucket.store().put("x.pt", file.read_bytes())
    opened = reshard.open_checkpoint(f"{gcs_bucket.url}/x.pt")
    gcs_bucket.store().put("x.pt", file.read_bytes()[::-1])
    with pytest.raises(reshard.SourceChangedError):
        opened.restore()
