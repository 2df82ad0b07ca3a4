"""Sources, saved once by stock Orbax, and an interrupted run of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import reshard
from reshard.engine import task_stream
from reshard.storage.local.staging import staging_for
from tests.checkpoint_files import files_without_times
from tests.orbax_trees import save_pytree
from tests.robustness.crash.cases import make_tree
from tests.robustness.crash.interrupted import CASE, stop


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Never changed: tests that change a source copy it."""
    root, tree = tmp_path_factory.mktemp("sources"), make_tree()
    return {
        "raw": save_pytree(root / "raw", tree, use_ocdbt=False, use_compression=False),
        "zstd": save_pytree(root / "zstd", tree),
    }


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)


@pytest.fixture(scope="module")
def source(sources):
    return sources["raw"]


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    target = tmp_path_factory.mktemp("expected") / "t"
    reshard.convert(source, target, **CASE.options)
    return files_without_times(target)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "t"


@pytest.fixture
def unfinished(source, target, small_batches):  # noqa: ARG001  a fixture that only has to be set up
    """The staging folder of an interrupted run to ``target``."""
    stop(source, target, KeyboardInterrupt())
    return staging_for(target)
