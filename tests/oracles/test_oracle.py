"""The oracles must be installed, and their errors must not pass for answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.oracles.oracle import Oracle, RefusedError


@pytest.mark.parametrize("library", ["tensorflow", "torch"])
def test_a_missing_environment_is_a_failure(library: str) -> None:
    with pytest.raises(AssertionError, match="make oracles"):
        Oracle(library, Path("no"))


@pytest.mark.xdist_group("tensorflow")
def test_what_tensorflow_raises_is_raised_here(tensorflow: Oracle) -> None:
    with pytest.raises(RefusedError, match="mask cannot be scalar") as caught:
        tensorflow.ask("index", shards=[np.zeros(2, np.float32)], items=[True], single=True)
    assert caught.value.kind == "ValueError"


@pytest.mark.xdist_group("torch")
def test_what_torch_raises_is_raised_here(torch: Oracle, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"?")
    with pytest.raises(RefusedError, match="header too small") as caught:
        torch.ask("stored", folder=str(tmp_path))
    assert caught.value.kind == "SafetensorError"


@pytest.mark.xdist_group("torch")
def test_a_group_of_processes_that_fails_is_raised_here(torch: Oracle) -> None:
    with pytest.raises(RefusedError, match="KeyError: 'change'"):
        torch.ask("group", action="change", folders=[])


def test_a_process_that_ends_is_no_answer(tmp_path: Path) -> None:
    broken = tmp_path / "tensorflow" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nread line\nexit 1\n")
    broken.chmod(0o755)
    oracle = Oracle("tensorflow", tmp_path)
    with pytest.raises(AssertionError, match="tensorflow did not answer construct"):
        oracle.ask("construct", shards=[])
    oracle.close()
