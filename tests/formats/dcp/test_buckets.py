"""Distributed checkpoints of torch in buckets: the ends of many archives are asked for together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.storage import calls
from tests.dcp_files import cut, write_dcp
from tests.emulators.buckets import Bucket
from tests.public.buckets.uploads import upload

ROWS = np.arange(600, dtype=np.float32).reshape(60, 10)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(calls, "_READS", calls._RecentReads())


def requests_of(bucket: Bucket, url: str) -> int:
    bucket.emulator.log.clear()
    reshard.open_checkpoint(url)
    return bucket.emulator.log.counts().total()


def test_small_tensors_take_few_requests(gcs_bucket: Bucket, tmp_path: Path) -> None:
    found = []
    for count in (6, 60):
        tree = {f"w{number}": cut(ROWS, 3) for number in range(count)} | {"rate": 0.5}
        folder = write_dcp(tmp_path / str(count), tree, files=2)
        url = upload(gcs_bucket, folder, str(count))
        found.append(requests_of(gcs_bucket, url))
        restored = reshard.restore(url)
        assert all((restored[name] == ROWS).all() for name in tree if name != "rate")
    assert found[1] <= found[0] + 2 <= 12


def test_large_tensors_take_a_request_each(gcs_bucket: Bucket, tmp_path: Path) -> None:
    large = np.zeros(50_000, np.float32)
    folder = write_dcp(tmp_path / "x", {f"w{number}": large for number in range(8)})
    url = upload(gcs_bucket, folder, "large")
    # Between two tensors the end of one archive and the beginning of the next are one range.
    assert requests_of(gcs_bucket, url) <= 8 + 1 + 6


def test_a_file_that_changes_while_it_is_opened_is_noticed(
    gcs_bucket: Bucket, tmp_path: Path
) -> None:
    folder = write_dcp(tmp_path / "x", {"w": ROWS})
    url = upload(gcs_bucket, folder, "changed")
    opened = reshard.open_checkpoint(url)
    (folder / "__0_0.distcp").write_bytes((folder / "__0_0.distcp").read_bytes()[::-1])
    gcs_bucket.store().put("changed/__0_0.distcp", (folder / "__0_0.distcp").read_bytes())
    with pytest.raises(reshard.SourceChangedError):
        opened.restore()
