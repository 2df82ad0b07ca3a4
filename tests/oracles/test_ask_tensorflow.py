"""The oracle must be installed, and its errors must not pass for answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.oracles.ask_tensorflow import RefusedError, TensorFlow

pytestmark = pytest.mark.xdist_group("tensorflow")


def test_a_missing_environment_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="make oracles"):
        TensorFlow(Path("no") / "python")


def test_what_it_raises_is_raised_here(tensorflow: TensorFlow) -> None:
    with pytest.raises(RefusedError, match="mask cannot be scalar") as caught:
        tensorflow.ask("index", shards=[np.zeros(2, np.float32)], items=[True], single=True)
    assert caught.value.kind == "ValueError"


def test_a_process_that_ends_is_no_answer(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nread line\nexit 1\n")
    broken.chmod(0o755)
    oracle = TensorFlow(broken)
    with pytest.raises(AssertionError, match="did not answer construct"):
        oracle.ask("construct", shards=[])
    oracle.close()
