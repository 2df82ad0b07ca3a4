"""Small checkpoints on a local disk, and the bucket that they go to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.engine import task_stream
from reshard.storage import target
from reshard.storage.buckets import objects
from reshard.storage.buckets.clouds import CLOUDS
from tests.emulators.buckets import Bucket
from tests.emulators.no_clock import no_clock
from tests.emulators.server import Options
from tests.orbax_trees import save_pytree
from tests.robustness.buckets.children import PART_BYTES


@pytest.fixture(autouse=True)
def _no_clock() -> Iterator[None]:
    """Tests count the requests of a run, and disturb one by its number."""
    with no_clock():
        yield


@pytest.fixture(params=["s3_bucket", "gcs_bucket"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket on each of the project's own servers; parts of uploads may be small."""
    found: Bucket = request.getfixturevalue(request.param)
    found.emulator.options = Options(least_part_bytes=1)
    return found


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``small_tasks`` for the process of the test."""
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)
    monkeypatch.setattr(objects, "WHOLE_BYTES", PART_BYTES)
    monkeypatch.setattr(objects, "_PART_BYTES", PART_BYTES)
    monkeypatch.setattr(target, "PIECE_BYTES", PART_BYTES)
    for scheme, cloud in CLOUDS.items():
        monkeypatch.setitem(CLOUDS, scheme, replace(cloud, least_part_bytes=1))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tensors, 250 KiB."""
    random = np.random.default_rng(0)
    tree = {
        "rows": random.standard_normal((256, 128)).astype("float32"),
        "cols": random.standard_normal((128, 256)).astype("float32"),
    }
    return save_pytree(tmp_path_factory.mktemp("tiny") / "saved", tree, use_ocdbt=False)
