"""The tutorial from training to serving runs as written: torch in its own environment, the bucket on an emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.page import steps
from tests.docs.run_page import DOCS, run_steps
from tests.emulators.buckets import Bucket
from tests.oracles.oracle import ENVIRONMENTS

PAGE = DOCS / "tutorials" / "training-to-serving.md"


@pytest.mark.xdist_group("torch")
def test_the_tutorial_runs_as_written(s3_bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "torch-env").symlink_to(ENVIRONMENTS / "torch")
    todo = steps(PAGE.read_text("utf-8"))
    todo = [replace(step, text=step.text.replace("my-bucket", s3_bucket.name)) for step in todo]
    run_steps(PAGE, todo, tmp_path)
    assert (tmp_path / "served" / "tokenizer.json").exists()
    found = [one["path"] for page in s3_bucket.store().list("ranks") for one in page]
    assert len([path for path in found if path.endswith(".safetensors")]) == 2
